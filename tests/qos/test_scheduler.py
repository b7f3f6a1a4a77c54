"""Work, its lanes and the loop: order, deadlines, cancellation, closing."""

import asyncio
import errno
import os
import threading
import time

import pytest

from asyncnn.hal.errors import (
    DeviceUnavailableError,
    MissedDeadlinePersistentError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.types import ErrorStatus, Priority
from asyncnn.qos import Client, Pause, Policy, Scheduler
from tests.qos.recorded import Endless, Recorded, endless
from tests.waits import until


async def test_work_runs_on_the_lane_and_finishes_on_the_loop(
    scheduler: Scheduler,
) -> None:
    log: list[str] = []
    work = Recorded(log)
    scheduler.submit(work)
    assert scheduler.pending == 1
    await work.finished.wait()
    assert log == ["run work", "finish work"]
    assert work.thread != threading.get_ident()
    assert scheduler.is_idle


@pytest.mark.parametrize(
    ("short", "busy", "is_first"),
    [
        (Priority.HIGH, Priority.LOW, True),
        (Priority.MEDIUM, Priority.LOW, True),
        (Priority.HIGH, Priority.HIGH, False),
        (Priority.LOW, Priority.LOW, False),
        (Priority.MEDIUM, Priority.HIGH, False),
    ],
)
@pytest.mark.parametrize("is_others", [False, True])
async def test_short_work_waits_for_no_less_urgent_work_of_its_client(
    scheduler: Scheduler,
    short: Priority,
    busy: Priority,
    is_first: bool,
    is_others: bool,
) -> None:
    running = Recorded([], gate=threading.Event(), priority=busy)
    if is_others:
        running.client = Client("another")
    scheduler.submit(running)
    assert await asyncio.to_thread(running.started.wait, 20)
    work = Recorded([], priority=short)
    work.should_inline = True
    assert scheduler.submit(work) is (is_first and not is_others)
    assert (work.thread == threading.get_ident()) is (is_first and not is_others)
    assert running.gate is not None
    running.gate.set()
    await asyncio.gather(work.finished.wait(), running.finished.wait())


async def test_it_is_busy_until_its_work_has_ended(scheduler: Scheduler) -> None:
    gate = threading.Event()
    work = Recorded([], gate=gate)
    assert not scheduler.is_busy
    scheduler.submit(work)
    assert scheduler.is_busy
    gate.set()
    await work.finished.wait()
    assert not scheduler.is_busy


@pytest.mark.parametrize("lacking", ["descriptors", "watches"])
async def test_work_ends_where_the_loop_can_be_woken_by_no_descriptor(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, "there is no more")

    before = len(os.listdir("/proc/self/fd"))
    if lacking == "descriptors":
        monkeypatch.setattr(os, "eventfd", fail)
    else:
        monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", fail)
    work = Recorded([])
    scheduler.submit(work)
    async with asyncio.timeout(20):
        await work.finished.wait()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_higher_priority_overtakes_what_waits(scheduler: Scheduler) -> None:
    log: list[str] = []
    gate = threading.Event()
    busy = Recorded(log, "busy", gate=gate)
    scheduler.submit(busy)
    assert busy.started.wait(20)
    low = Recorded(log, "low", priority=Priority.LOW)
    high = Recorded(log, "high", priority=Priority.HIGH)
    scheduler.submit(low)
    scheduler.submit(high)
    gate.set()
    await low.finished.wait()
    runs = [line for line in log if line.startswith("run")]
    assert runs == ["run busy", "run high", "run low"]


async def test_cancelled_work_that_waits_never_runs(scheduler: Scheduler) -> None:
    log: list[str] = []
    gate = threading.Event()
    busy = Recorded(log, "busy", gate=gate)
    waiting = Recorded(log, "waiting")
    scheduler.submit(busy)
    assert busy.started.wait(20)
    scheduler.submit(waiting)
    scheduler.cancel(waiting, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)
    assert waiting.finished.is_set()
    assert waiting.status is ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
    gate.set()
    await busy.finished.wait()
    assert "run waiting" not in log


async def test_cancelled_work_that_runs_is_aborted_and_finishes_once(
    scheduler: Scheduler,
) -> None:
    work = Recorded([], gate=threading.Event())
    scheduler.submit(work)
    assert work.started.wait(20)
    scheduler.cancel(work, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)
    await work.finished.wait()
    scheduler.cancel(work, ErrorStatus.GENERAL_FAILURE)  # too late: ignored
    assert work.status is ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT


async def test_work_is_refused_at_the_bound(scheduler: Scheduler) -> None:
    gate = threading.Event()
    pieces = [Recorded([], gate=gate) for _ in range(8)]
    for work in pieces:
        scheduler.submit(work)
    with pytest.raises(ResourceExhaustedTransientError, match="max_pending is 8"):
        scheduler.submit(Recorded([]))
    gate.set()
    await asyncio.gather(*(work.finished.wait() for work in pieces))
    last = Recorded([])
    scheduler.submit(last)
    await last.finished.wait()


async def test_a_deadline_that_has_passed_is_refused(scheduler: Scheduler) -> None:
    with pytest.raises(MissedDeadlinePersistentError):
        scheduler.submit(Recorded([], deadline_ns=time.monotonic_ns()))
    assert scheduler.is_idle


async def test_a_deadline_aborts_work_that_waits(scheduler: Scheduler) -> None:
    gate = threading.Event()
    busy = Recorded([], gate=gate)
    scheduler.submit(busy)
    assert busy.started.wait(20)
    late = Recorded([], deadline_ns=time.monotonic_ns() + 50_000_000)
    scheduler.submit(late)
    await asyncio.wait_for(late.finished.wait(), 20)
    assert late.status is ErrorStatus.MISSED_DEADLINE_TRANSIENT
    assert not busy.finished.is_set()
    gate.set()
    await busy.finished.wait()


async def test_closing_finishes_all_that_is_pending() -> None:
    scheduler = Scheduler("closing-lane", max_pending=8)
    running = Recorded([], gate=threading.Event())
    waiting = Recorded([])
    scheduler.submit(running)
    assert running.started.wait(20)
    scheduler.submit(waiting)
    await scheduler.aclose()
    for work in (running, waiting):
        assert work.finished.is_set()
        assert work.status is ErrorStatus.DEVICE_UNAVAILABLE
    with pytest.raises(DeviceUnavailableError):
        scheduler.submit(Recorded([]))


async def test_a_failing_run_ends_the_work_and_not_the_lane(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("broken work")

    broken = Recorded([], body=fail)
    scheduler.submit(broken)
    await broken.finished.wait()
    assert broken.status is ErrorStatus.GENERAL_FAILURE
    assert "broken work" in caplog.text
    good = Recorded([])
    scheduler.submit(good)
    await good.finished.wait()


async def test_a_shortage_ends_the_work_and_is_no_failure_to_log(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise MemoryError

    short = Recorded([], body=fail)
    scheduler.submit(short)
    await short.finished.wait()
    assert short.status is ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
    assert not caplog.text


async def test_a_scheduler_without_work_has_no_thread() -> None:
    scheduler = Scheduler("unused-lane", max_pending=8)
    assert "unused-lane" not in [thread.name for thread in threading.enumerate()]
    await scheduler.aclose()


async def test_higher_priority_takes_the_lane_and_the_work_goes_on_afterwards(
    scheduler: Scheduler,
) -> None:
    low = endless()
    scheduler.submit(low)
    assert low.started.wait(20)
    high = Recorded([], priority=Priority.HIGH)
    scheduler.submit(high)
    await asyncio.wait_for(high.finished.wait(), 20)
    assert not low.finished.is_set()
    low.gate.set()
    await asyncio.wait_for(low.finished.wait(), 20)
    assert low.preemptions == 1
    assert scheduler.statistics().preemptions == 1


async def test_a_starved_priority_gets_its_turn() -> None:
    policy = Policy(starvation_limit_ns=5_000_000, starved_slice_ns=0)
    scheduler = Scheduler("aging-lane", max_pending=8, policy=policy)
    high, low = endless(Priority.HIGH), endless(Priority.LOW)
    scheduler.submit(high)
    assert high.started.wait(20)
    scheduler.submit(low)
    await until(low.started.is_set)
    await until(lambda: high.preemptions >= 2)
    for work in (high, low):
        work.gate.set()
        await work.finished.wait()
    await scheduler.aclose()


async def test_suspended_work_that_is_cancelled_finishes_at_once(
    scheduler: Scheduler,
) -> None:
    low = endless()
    gate = threading.Event()
    scheduler.submit(low)
    assert low.started.wait(20)
    high = Recorded([], gate=gate, priority=Priority.HIGH)
    scheduler.submit(high)
    await until(high.started.is_set)
    assert scheduler.statistics().running == 2
    scheduler.cancel(low, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)
    assert low.finished.is_set()
    assert not high.finished.is_set()
    gate.set()
    await high.finished.wait()


async def test_cancelled_work_that_only_pauses_is_not_resumed(
    scheduler: Scheduler,
) -> None:
    class Deaf(Endless):
        def abort(self, status: ErrorStatus) -> None:
            self.status = status

    deaf = Deaf([], gate=threading.Event(), priority=Priority.LOW)
    scheduler.submit(deaf)
    assert deaf.started.wait(20)
    scheduler.cancel(deaf, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)
    high = Recorded([], priority=Priority.HIGH)
    scheduler.submit(high)
    await asyncio.wait_for(deaf.finished.wait(), 20)
    await high.finished.wait()
    assert deaf.stops == 1


async def test_closing_finishes_suspended_work() -> None:
    scheduler = Scheduler("closing-lane", max_pending=8)
    low, high = endless(), endless(Priority.HIGH)
    scheduler.submit(low)
    assert low.started.wait(20)
    scheduler.submit(high)
    await until(high.started.is_set)
    await scheduler.aclose()
    assert low.finished.is_set()
    assert high.finished.is_set()


async def test_lanes_run_side_by_side() -> None:
    scheduler = Scheduler("side-lane", max_pending=8, lanes=3)
    pieces = [endless() for _ in range(3)]
    for work in pieces:
        scheduler.submit(work)
    for work in pieces:
        await until(work.started.is_set)
    assert scheduler.threads == 3
    for work in pieces:
        work.gate.set()
    for work in pieces:
        await work.finished.wait()
    await scheduler.aclose()


async def test_what_surely_misses_its_deadline_is_refused(scheduler: Scheduler) -> None:
    work = Recorded([], deadline_ns=time.monotonic_ns() + 10**9)
    work.min_runtime_ns = 2 * 10**9
    with pytest.raises(MissedDeadlinePersistentError, match="takes at least 2 s"):
        scheduler.submit(work)
    assert scheduler.statistics().deadline_misses == 1


async def test_what_surely_misses_its_deadline_by_waiting_is_not_begun(
    scheduler: Scheduler,
) -> None:
    gate = threading.Event()
    busy = Recorded([], gate=gate)
    scheduler.submit(busy)
    assert busy.started.wait(20)
    late = Recorded([], deadline_ns=time.monotonic_ns() + 30 * 10**9)
    late.min_runtime_ns = 30 * 10**9 - 1_000_000
    scheduler.submit(late)
    await asyncio.sleep(0.002)
    gate.set()
    await asyncio.wait_for(late.finished.wait(), 20)
    assert late.status is ErrorStatus.MISSED_DEADLINE_TRANSIENT
    assert not late.started.is_set()


class Sharing(Recorded):
    """Keeps how many lanes there are for each piece of work that runs."""

    lanes_each = 0

    def advance(self, pause: Pause) -> bool:
        self.lanes_each = pause.lanes_each
        return super().advance(pause)


async def test_what_has_ended_takes_no_lane_from_what_follows() -> None:
    scheduler = Scheduler("test", max_pending=8, lanes=4)
    for _ in range(100):
        work = Sharing([])
        scheduler.submit(work)
        await work.finished.wait()
        assert work.lanes_each == 4
    gate = threading.Event()
    running = [Sharing([], gate=gate) for _ in range(2)]
    for each in running:
        scheduler.submit(each)
        await until(each.started.is_set)
    assert [each.lanes_each for each in running] == [4, 2]
    gate.set()
    await scheduler.aclose()
