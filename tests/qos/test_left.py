"""Work that is reported before its lane has stopped, and what becomes of the lane."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest.mock import Mock

import pytest

from asyncnn.hal.errors import AsyncnnError, ResourceExhaustedTransientError
from asyncnn.hal.types import ErrorStatus, Priority
from asyncnn.qos import Client, Scheduler, acting_for
from asyncnn.qos.native_lanes import NativeLane
from asyncnn.qos.work import Pause, QueueEntry, Work
from tests.qos.recorded import Recorded
from tests.qos.test_run_queue import ALICE, BOB, add, run_queue
from tests.waits import until

CANCELLED = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
MISSED = ErrorStatus.MISSED_DEADLINE_TRANSIENT


class Deaf(Recorded):
    """Work that goes on until its gate is open, and whose end is reported before."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__([], gate=threading.Event(), **keywords)
        self.decision = threading.Lock()

    def abort(self, status: ErrorStatus) -> None:
        self.status = status


class OnNative(Deaf):
    """The same on a native lane."""

    goes_native = True
    ends = 0

    def offer(self, idle: list[NativeLane]) -> bool:
        self.lane = idle.pop()
        self.lane.work = self
        return True

    def come_back(self, *_: Any) -> bool:
        return True

    def finish(self) -> ErrorStatus:
        self.ends += 1
        return super().finish()


async def left(scheduler: Scheduler) -> Deaf:
    """Return work that was reported and goes on."""
    work = Deaf()
    scheduler.submit(work)
    assert await asyncio.to_thread(work.started.wait, 20)
    scheduler.cancel(work, CANCELLED)
    assert work.finished.is_set()
    return work


def open_gates(works: list[Deaf]) -> None:
    for work in works:
        assert work.gate is not None
        work.gate.set()


@pytest.fixture
async def lefts(scheduler: Scheduler) -> AsyncIterator[Callable[[int], Any]]:
    made: list[Deaf] = []

    async def leave(count: int) -> list[Deaf]:
        made.extend([await left(scheduler) for _ in range(count)])
        return made

    yield leave
    open_gates(made)


async def test_a_deadline_is_reported_while_the_lane_goes_on(
    scheduler: Scheduler,
) -> None:
    work = Deaf(deadline_ns=time.monotonic_ns() + 300_000_000)
    scheduler.submit(work)
    assert work.started.wait(20)
    await asyncio.wait_for(work.finished.wait(), 20)
    assert work.status is MISSED
    assert scheduler.statistics().deadline_misses == 1
    open_gates([work])


async def test_what_a_native_lane_brings_back_later_ends_once() -> None:
    works: list[Deaf] = []
    port = Mock()
    port.drain.side_effect = lambda ended: ended.extend(
        (work.lane, 0, 0, 0, 0) for work in works
    )
    scheduler = Scheduler("test-lane", max_pending=8, make_port=lambda _: port)
    work = OnNative()
    scheduler.submit(work)
    scheduler.cancel(work, CANCELLED)
    assert work.ends == 1
    works.append(work)
    scheduler._deliver()
    works.clear()
    assert work.ends == 1
    assert scheduler.pending == 0
    await scheduler.aclose()


async def test_others_have_a_lane_in_its_place_and_it_ends_with_it(
    scheduler: Scheduler, lefts: Callable[[int], Any]
) -> None:
    works = await lefts(1)
    assert scheduler.threads == 1
    next_one = Recorded([])
    scheduler.submit(next_one)
    await asyncio.wait_for(next_one.finished.wait(), 20)
    assert scheduler.threads == 2
    open_gates(works)
    await until(lambda: scheduler.threads == 1)


async def test_others_that_wait_already_have_its_place_at_once(
    scheduler: Scheduler,
) -> None:
    work, waiting = Deaf(), Recorded([])
    scheduler.submit(work)
    assert await asyncio.to_thread(work.started.wait, 20)
    scheduler.submit(waiting)
    scheduler.cancel(work, CANCELLED)
    await asyncio.wait_for(waiting.finished.wait(), 20)
    open_gates([work])


async def test_beyond_as_many_as_lanes_it_keeps_its_own(
    scheduler: Scheduler, lefts: Callable[[int], Any]
) -> None:
    works = await lefts(2)
    waiting = Recorded([])
    scheduler.submit(waiting)
    assert scheduler.threads == 2
    assert not waiting.started.is_set()
    open_gates(works[:1])
    await asyncio.wait_for(waiting.finished.wait(), 20)
    await until(lambda: scheduler.threads <= 2)


async def test_it_counts_for_its_client_until_it_has_stopped(
    scheduler: Scheduler,
) -> None:
    with acting_for(Client("small", max_pending=1)):
        work = await left(scheduler)
        with pytest.raises(ResourceExhaustedTransientError, match="of small"):
            scheduler.submit(Recorded([]))
        others = Recorded([])
    others.client = Client("other")
    scheduler.submit(others)
    await asyncio.wait_for(others.finished.wait(), 20)
    open_gates([work])
    last = Recorded([])
    last.client = work.client
    await until(lambda: not scheduler.run_queue.pending)
    scheduler.submit(last)
    await asyncio.wait_for(last.finished.wait(), 20)


async def test_a_thread_may_leave_it_as_well(scheduler: Scheduler) -> None:
    work = Deaf()
    ended = threading.Event()
    work.finish = lambda: (ended.set(), CANCELLED)[1]  # type: ignore[method-assign]
    await asyncio.to_thread(scheduler.submit_threadsafe, work)
    assert await asyncio.to_thread(work.started.wait, 20)
    await asyncio.to_thread(scheduler.cancel_threadsafe, work, CANCELLED)
    assert ended.is_set()
    assert scheduler.is_idle
    open_gates([work])
    await until(lambda: not scheduler.run_queue.pending)


@pytest.mark.parametrize("is_first", [True, False])
async def test_what_a_lane_has_decided_is_not_left(
    scheduler: Scheduler, is_first: bool
) -> None:
    """Whoever decides first how it ends reports that: it or who cancels it."""
    work = Deaf()
    scheduler.submit(work)
    assert await asyncio.to_thread(work.started.wait, 20)
    if is_first:
        assert work.decides()
        work.decision = None
    scheduler.cancel(work, CANCELLED)
    assert work.finished.is_set() is not is_first
    open_gates([work])
    await asyncio.wait_for(work.finished.wait(), 20)
    await until(lambda: not scheduler.run_queue.pending)


async def test_a_lane_that_is_stuck_with_it_is_given_up() -> None:
    scheduler = Scheduler("left-lane", max_pending=1, stuck_after_s=0.02)
    work = await left(scheduler)
    with pytest.raises(ResourceExhaustedTransientError):
        scheduler.submit(Recorded([]))
    await until(lambda: scheduler.threads == 0)
    next_one = Recorded([])
    scheduler.submit(next_one)
    await asyncio.wait_for(next_one.finished.wait(), 20)
    assert scheduler.threads == 1
    open_gates([work])
    await scheduler.aclose()


async def test_closing_waits_for_it() -> None:
    scheduler = Scheduler("left-lane", max_pending=8)
    work = await left(scheduler)
    closing = asyncio.create_task(scheduler.aclose())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not closing.done()
    open_gates([work])
    await closing
    assert "left-lane" not in [thread.name for thread in threading.enumerate()]


class TestWhatIsLeftInTheRunQueue:
    def test_goes_on_beside_the_lanes_and_counts_for_its_client(self) -> None:
        r = run_queue()
        left = add(r, client=ALICE)
        assert r.take(0) is left
        assert r.set_aside(left)
        first, second = add(r, client=BOB, now_ns=10), add(r, client=BOB, now_ns=10)
        others = add(r, client=ALICE, now_ns=10)
        assert r.take(10) is first
        # Bob has had a third of the time by his weight, and Alice all of it.
        r.end(first, 110)
        assert r.take(110) is second
        r.end(second, 210)
        assert r.take(210) is others
        assert r.account(ALICE).virtual_ns == pytest.approx(210)
        r.end(left, 250)
        assert r.account(ALICE).virtual_ns == pytest.approx(250)
        assert r.running == (others,)

    def test_takes_the_places_of_others_beyond_as_many_as_there_are_lanes(self) -> None:
        r = run_queue(lanes=2)
        jobs = [add(r) for _ in range(4)]
        assert [r.take(0), r.take(0)] == jobs[:2]
        for left, lanes in enumerate((3, 4, 4)):
            assert r.set_aside(jobs[left])
            assert r.most_lanes == lanes
            if left < 2:
                assert r.take(0) is jobs[left + 2]
        # The third has no other in its place: one more has to wait for the fourth.
        high = QueueEntry(Priority.HIGH, None, ALICE)
        assert r.add(high, 1) is jobs[3]
        r.end(jobs[1], 2)
        assert r.most_lanes == 4
        r.end(jobs[0], 3)
        r.end(jobs[2], 4)
        assert r.most_lanes == 2

    def test_is_nothing_that_does_not_run(self) -> None:
        r = run_queue()
        assert not r.set_aside(add(r))


class Kept(Work):
    """Work that keeps its lane as it is reported, and rests whenever it is asked to."""

    is_separable = True
    keeps_its_lane = True

    def __init__(self) -> None:
        super().__init__(Priority.MEDIUM, None)
        self.started, self.may_end = threading.Event(), threading.Event()
        self.rests = 0
        self.is_complete = threading.Event()

    def advance(self, pause: Pause) -> bool:
        self.started.set()
        while not (pause.requested or self.may_end.wait(0.001)):
            pass
        if not self.may_end.is_set():
            self.rests += 1
            return False
        self.is_complete.set()
        return True

    def abort(self, status: ErrorStatus) -> None:
        pass

    def fail(self, error: AsyncnnError) -> None:
        raise error

    def finish(self) -> ErrorStatus:
        return MISSED


async def test_what_keeps_its_lane_goes_on_after_it_has_rested(
    scheduler: Scheduler,
) -> None:
    work = Kept()
    scheduler.submit(work)
    assert await asyncio.to_thread(work.started.wait, 20)
    scheduler.cancel(work, MISSED)
    try:
        scheduler.submit(Recorded([], priority=Priority.HIGH))  # it has to make way
        await until(lambda: work.rests > 0)
    finally:
        work.may_end.set()
    assert await asyncio.to_thread(work.is_complete.wait, 20)
