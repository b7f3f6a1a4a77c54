"""Alarms of an event loop: their order, precision, and what they leave behind."""

import asyncio
import gc
import os
import statistics
import time
from collections.abc import AsyncIterator
from weakref import ref

import pytest

from asyncnn.qos import alarms as module
from asyncnn.qos.alarms import Alarm, Alarms, loop_alarms
from tests.measuring import best_of

MS = 1_000_000


@pytest.fixture(params=["descriptor", "none to be had"])
async def alarms(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Alarms]:
    if request.param != "descriptor":
        monkeypatch.setattr(module, "_new_timer", lambda: -1)
    made = Alarms(asyncio.get_running_loop())
    yield made
    made.close()


def in_ms(milliseconds: float) -> int:
    return time.monotonic_ns() + int(milliseconds * MS)


async def test_they_are_called_in_the_order_of_their_times(alarms: Alarms) -> None:
    called: list[str] = []
    done = asyncio.Event()
    began_ns = time.monotonic_ns()
    alarms.call_at(in_ms(30), lambda: (called.append("late"), done.set()))
    alarms.call_at(in_ms(-5), lambda: called.append("past"))
    alarms.call_at(in_ms(10), lambda: called.append("early"))
    await asyncio.wait_for(done.wait(), 20)
    assert called == ["past", "early", "late"]
    assert time.monotonic_ns() - began_ns > 25 * MS


async def test_a_cancelled_one_is_not_called(alarms: Alarms) -> None:
    done = asyncio.Event()
    first = alarms.call_at(in_ms(1), lambda: pytest.fail("cancelled"))
    alarms.call_at(in_ms(3), done.set)
    first.cancel()
    await asyncio.wait_for(done.wait(), 20)
    first.cancel()  # nothing happens


async def test_a_call_may_cancel_and_set_others(alarms: Alarms) -> None:
    done = asyncio.Event()
    at_ns = in_ms(2)

    def first() -> None:
        second.cancel()
        alarms.call_at(in_ms(1), done.set)

    alarms.call_at(at_ns, first)
    second = alarms.call_at(at_ns, lambda: pytest.fail("cancelled"))
    await asyncio.wait_for(done.wait(), 20)


async def test_a_call_that_fails_keeps_none_from_being_called(alarms: Alarms) -> None:
    told: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    done = asyncio.Event()
    failure = RuntimeError("it fails")

    def fail() -> None:
        raise failure

    at_ns = in_ms(2)
    alarms.call_at(at_ns, fail)
    alarms.call_at(at_ns, done.set)
    await asyncio.wait_for(done.wait(), 20)
    assert told == [failure]


async def test_after_closing_nothing_is_called_until_another_is_set(
    alarms: Alarms,
) -> None:
    closed = alarms.call_at(in_ms(1), lambda: pytest.fail("closed"))
    alarms.close()
    closed.cancel()
    done = asyncio.Event()
    alarms.call_at(in_ms(3), done.set)
    await asyncio.wait_for(done.wait(), 20)


async def test_those_that_were_cancelled_do_not_pile_up(alarms: Alarms) -> None:
    far_ns = in_ms(3_600_000)
    kept = alarms.call_at(far_ns, lambda: None)
    for _ in range(1000):
        alarms.call_at(far_ns, lambda: None).cancel()
    assert len(alarms) < 200
    kept.cancel()


async def test_a_time_beyond_all_timers_is_waited_for(alarms: Alarms) -> None:
    alarms.call_at(2**63 - 1, lambda: pytest.fail("in three hundred years"))
    done = asyncio.Event()
    alarms.call_at(in_ms(2), done.set)
    await asyncio.wait_for(done.wait(), 20)


async def test_it_has_one_descriptor_until_it_is_closed() -> None:
    before = len(os.listdir("/proc/self/fd"))
    alarms = Alarms(asyncio.get_running_loop())
    assert len(os.listdir("/proc/self/fd")) == before
    for _ in range(3):
        alarms.call_at(in_ms(1000), lambda: None)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    alarms.close()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_the_last_one_closes_the_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    alarms = Alarms(asyncio.get_running_loop())
    far = alarms.call_at(in_ms(60_000), lambda: None)
    fired = asyncio.Event()
    alarms.call_at(in_ms(1), fired.set)
    await asyncio.wait_for(fired.wait(), 20)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    far.cancel()
    assert len(os.listdir("/proc/self/fd")) == before
    fired.clear()
    alarms.call_at(in_ms(1), fired.set)
    await asyncio.wait_for(fired.wait(), 20)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_loop_has_its_alarms_until_it_ends() -> None:
    before = len(os.listdir("/proc/self/fd"))

    async def leave() -> ref[Alarms]:
        alarms = loop_alarms()
        assert loop_alarms() is alarms
        alarms.call_at(in_ms(60_000), lambda: pytest.fail("the loop is closed"))
        return ref(alarms)

    left = asyncio.run(leave())
    gc.collect()
    assert left() is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_one_may_be_cancelled_after_its_loop_has_ended() -> None:
    before = len(os.listdir("/proc/self/fd"))

    async def leave() -> Alarm:
        return loop_alarms().call_at(in_ms(60_000), lambda: None)

    asyncio.run(leave()).cancel()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.alone
async def test_they_are_less_late_than_timers_of_the_loop() -> None:
    alarms = Alarms(asyncio.get_running_loop())

    async def late_ms() -> float:
        late_ns: list[int] = []
        for _ in range(20):
            done = asyncio.Event()
            at_ns = in_ms(1.05)
            alarms.call_at(at_ns, done.set)
            await done.wait()
            late_ns.append(time.monotonic_ns() - at_ns)
        return statistics.median(late_ns) / MS

    await best_of(20, late_ms, 0.4)  # a selector would wait for 0.95 ms longer
    alarms.close()
