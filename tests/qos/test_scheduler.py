import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest

from asyncnn.errors import (
    DeviceUnavailableError,
    MissedDeadlinePersistentError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.types import ErrorStatus, Priority
from asyncnn.qos import Scheduler, Work


class Recorded(Work):
    """Work that records its life; `run` waits for ``gate`` if there is one."""

    def __init__(
        self,
        log: list[str],
        label: str = "work",
        *,
        gate: threading.Event | None = None,
        priority: Priority = Priority.MEDIUM,
        deadline_ns: int | None = None,
        body: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(priority, deadline_ns)
        self.log = log
        self.label = label
        self.gate = gate
        self.body = body
        self.started = threading.Event()
        self.finished = asyncio.Event()
        self.status: ErrorStatus | None = None
        self.thread: int | None = None

    def run(self) -> None:
        self.thread = threading.get_ident()
        self.started.set()
        if self.gate is not None:
            assert self.gate.wait(5)
        self.body()
        self.log.append(f"run {self.label}")

    def abort(self, status: ErrorStatus) -> None:
        self.status = status
        if self.gate is not None:
            self.gate.set()

    def finish(self) -> None:
        assert not self.finished.is_set(), "finished twice"
        self.log.append(f"finish {self.label}")
        self.finished.set()


@pytest.fixture
async def scheduler() -> AsyncIterator[Scheduler]:
    scheduler = Scheduler("test-lane", max_pending=8)
    yield scheduler
    await scheduler.aclose()
    names = [thread.name for thread in threading.enumerate()]
    assert "test-lane" not in names


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


async def test_higher_priority_overtakes_what_waits(scheduler: Scheduler) -> None:
    log: list[str] = []
    gate = threading.Event()
    busy = Recorded(log, "busy", gate=gate)
    scheduler.submit(busy)
    busy.started.wait(5)
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
    busy.started.wait(5)
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
    work.started.wait(5)
    scheduler.cancel(work, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)
    await work.finished.wait()
    scheduler.cancel(work, ErrorStatus.GENERAL_FAILURE)  # too late: ignored
    assert work.status is ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT


async def test_work_is_refused_at_the_bound(scheduler: Scheduler) -> None:
    gate = threading.Event()
    pieces = [Recorded([], gate=gate) for _ in range(8)]
    for work in pieces:
        scheduler.submit(work)
    with pytest.raises(ResourceExhaustedTransientError, match="8 executions"):
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
    busy.started.wait(5)
    late = Recorded([], deadline_ns=time.monotonic_ns() + 5_000_000)
    scheduler.submit(late)
    await asyncio.wait_for(late.finished.wait(), 5)
    assert late.status is ErrorStatus.MISSED_DEADLINE_TRANSIENT
    assert not busy.finished.is_set()
    gate.set()
    await busy.finished.wait()


async def test_closing_finishes_all_that_is_pending() -> None:
    scheduler = Scheduler("closing-lane", max_pending=8)
    running = Recorded([], gate=threading.Event())
    waiting = Recorded([])
    scheduler.submit(running)
    running.started.wait(5)
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


async def test_a_scheduler_without_work_has_no_thread() -> None:
    scheduler = Scheduler("unused-lane", max_pending=8)
    assert "unused-lane" not in [thread.name for thread in threading.enumerate()]
    await scheduler.aclose()
