"""Timers that a thread keeps, on behalf of event loops."""

import asyncio
import threading
import time

import pytest

from asyncnn.qos.watching import ThreadTimer
from tests.qos.recorded import until


def is_asleep() -> bool:
    return any(thread.name == "asyncnn-timer" for thread in threading.enumerate())


async def test_timers_fire_on_the_loop_in_the_order_of_their_times() -> None:
    fired: list[tuple[str, int]] = []
    started = time.monotonic()
    for name, delay_s in (("late", 0.2), ("early", 0.05), ("middle", 0.1)):
        ThreadTimer(
            delay_s, lambda name=name: fired.append((name, threading.get_ident()))
        )
    assert is_asleep()
    async with asyncio.timeout(20):
        while len(fired) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    here = threading.get_ident()
    assert fired == [("early", here), ("middle", here), ("late", here)]
    assert time.monotonic() - started >= 0.2


async def test_a_cancelled_timer_does_not_fire_and_leaves_no_thread() -> None:
    fired: list[None] = []
    timer = ThreadTimer(0.01, lambda: fired.append(None))
    timer.cancel()
    await until(lambda: not is_asleep())
    await asyncio.sleep(0.03)
    assert not fired


async def test_cancelling_one_leaves_the_others() -> None:
    fired = asyncio.Event()
    cancelled = ThreadTimer(0.01, lambda: pytest.fail("cancelled"))
    ThreadTimer(0.02, fired.set)
    cancelled.cancel()
    await asyncio.wait_for(fired.wait(), 20)
    cancelled.cancel()  # nothing happens


async def test_a_timer_that_is_cancelled_on_the_way_to_the_loop_does_not_fire() -> None:
    fired: list[None] = []
    timer = ThreadTimer(0.001, lambda: fired.append(None))
    time.sleep(0.01)  # noqa: ASYNC251 - it has expired, but the loop is busy
    timer.cancel()
    await asyncio.sleep(0.01)
    assert not fired


def test_a_closed_loop_is_not_called() -> None:
    async def leave() -> None:
        ThreadTimer(0.01, lambda: pytest.fail("the loop is closed"))

    asyncio.run(leave())
    deadline = time.monotonic() + 5
    while is_asleep() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not is_asleep()
