"""The ends in C, which leave no memory wrong, and their twins in Python."""

import asyncio
import gc
import sys
import weakref
from typing import Any

import pytest

from asyncnn import turn
from asyncnn.callbacks import ExecutionFuture
from asyncnn.hal.interfaces import AlreadyNotifiedError
from asyncnn.hal.types import NO_TIMING, ErrorStatus
from asyncnn.turn import TURN_NS, Waiter, in_this_turn

needs_compiled = pytest.mark.skipif(
    issubclass(Waiter, asyncio.Future), reason="there are no compiled waiters"
)
RESULT = (ErrorStatus.NONE, (), NO_TIMING)


@needs_compiled
def test_it_counts_as_its_twin_does() -> None:
    built: Any = turn._built
    assert built.TURN_NS == TURN_NS


async def test_what_was_awaited_goes_with_its_task() -> None:
    async def wait(end: ExecutionFuture) -> None:
        await end

    gone = []
    for how in ("ended", "ended in a turn", "cancelled", "left"):
        end = ExecutionFuture()
        gone.append(weakref.ref(asyncio.create_task(wait(end))))
        task = gone[-1]()
        assert task is not None
        await asyncio.sleep(0)
        if how == "ended":
            end.notify_1_3(*RESULT)
        elif how == "ended in a turn":
            loop = asyncio.get_running_loop()
            loop.call_soon(in_this_turn, lambda e=end: e.notify_1_3(*RESULT))
        elif how == "cancelled":
            task.cancel("a word")
        if how != "left":
            await asyncio.wait([task])
        if how == "cancelled":
            with pytest.raises(asyncio.CancelledError, match="a word"):
                task.result()
        del task, end
    await asyncio.sleep(0)
    gc.collect()
    assert [each() for each in gone[:3]] == [None] * 3


@needs_compiled
async def test_references_are_counted() -> None:
    loop, counted = asyncio.get_running_loop(), (None, True, False, Waiter)
    before = [sys.getrefcount(each) for each in counted]
    for _ in range(500):
        end = ExecutionFuture()
        loop.call_soon(in_this_turn, lambda e=end: e.notify_1_3(*RESULT))
        assert await end is await end
        left = ExecutionFuture()
        task = asyncio.ensure_future(left)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert left.is_dead
    after = [sys.getrefcount(each) for each in counted]
    assert all(abs(a - b) < 100 for a, b in zip(after, before, strict=True))


async def test_by_hand_it_is_told_that_no_task_waits() -> None:
    by_hand = ExecutionFuture().__await__()
    first = next(by_hand)
    assert first._asyncio_future_blocking
    with pytest.raises(RuntimeError):
        next(by_hand)


async def test_what_is_thrown_in_is_raised() -> None:
    end = ExecutionFuture()
    by_hand = end.__await__()
    next(by_hand)
    with pytest.raises(ValueError, match="a word"):
        by_hand.throw(ValueError("a word"))
    assert not end.is_dead


@needs_compiled
async def test_one_that_had_its_result_at_once_calls_by_the_loop() -> None:
    end, called = ExecutionFuture(), []
    end.notify_1_3(*RESULT)
    by_hand: Any = end.__await__()
    by_hand.add_done_callback(called.append)
    assert by_hand.get_loop() is asyncio.get_running_loop()
    assert not called
    await asyncio.sleep(0)
    assert called == [by_hand]
    with pytest.raises(TypeError):
        by_hand.throw(7)


class PlainEnd(turn.PythonEnd):
    """An end as it is where there was no compiler."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    def _leave(self, waiter: Any) -> None:
        assert self._waiting is not None
        del self._waiting[waiter]


@pytest.mark.parametrize("is_busy", [False, True])
async def test_without_a_compiler_tasks_go_on_in_the_same_turn(is_busy: bool) -> None:
    loop, end = asyncio.get_running_loop(), PlainEnd()
    went_on, seen = [], []

    async def wait() -> None:
        went_on.append(await end)

    left, *waiting = (asyncio.create_task(wait()) for _ in range(3))
    await asyncio.sleep(0)
    left.cancel("a word")
    with pytest.raises(asyncio.CancelledError, match="a word"):
        await left

    def resolve() -> None:
        turn._in_this_turn(lambda: end._resolve(1))
        seen.extend(went_on)

    if is_busy:  # no task can go on inside another one
        resolve()
    else:
        loop.call_soon(resolve)
    await asyncio.wait(waiting)
    assert went_on == [1, 1]
    assert seen == ([] if is_busy else [1, 1])
    assert await end is await end
    with pytest.raises(AlreadyNotifiedError):
        end._resolve(2)
