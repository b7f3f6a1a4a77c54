"""What the scheduler does when nothing happens, or no boundary comes."""

import asyncio
import math
import threading

import pytest

from asyncnn.hal.types import ErrorStatus
from asyncnn.qos import Scheduler
from tests.qos.recorded import Recorded, endless
from tests.waits import until


async def test_work_without_a_boundary_fails_and_its_lane_is_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stuck(Recorded):
        def abort(self, status: ErrorStatus) -> None:
            self.status = status

    scheduler = Scheduler("stuck-lane", max_pending=8, stuck_after_s=0.02)
    gate = threading.Event()
    stuck = Stuck([], gate=gate)
    waiting = Recorded([])
    scheduler.submit(stuck)
    assert stuck.started.wait(20)
    scheduler.submit(waiting)
    await asyncio.wait_for(stuck.finished.wait(), 20)
    assert stuck.status is ErrorStatus.GENERAL_FAILURE
    (record,) = caplog.records
    assert "for 0.02 s (stuck_after_s)" in record.message
    assert record.fields == {"client": "local"}
    await asyncio.wait_for(waiting.finished.wait(), 20)
    assert scheduler.threads == 1
    gate.set()  # the thread that was given up comes to its end, unnoticed
    await scheduler.aclose()


async def test_long_work_with_boundaries_is_left_alone() -> None:
    scheduler = Scheduler("long-lane", max_pending=8, stuck_after_s=0.05)
    work = endless()
    scheduler.submit(work)
    await until(lambda: work.stops >= 3)
    assert not work.finished.is_set()
    work.gate.set()
    await work.finished.wait()
    assert work.status is None
    assert work.preemptions == 0
    await scheduler.aclose()


async def test_an_idle_scheduler_tells_once_and_wakes_up_again() -> None:
    scheduler = Scheduler("idle-lane", max_pending=8)
    calls: list[int] = []

    def on_idle() -> None:
        scheduler.retire()
        calls.append(scheduler.threads)

    scheduler.call_when_idle(0.02, on_idle)
    for turn in range(2):
        work = Recorded([])
        scheduler.submit(work)
        await work.finished.wait()
        assert scheduler.threads == 1
        await until(lambda: len(calls) > turn)  # noqa: B023
        await asyncio.sleep(0.06)
    assert calls == [0, 0]
    await scheduler.aclose()


async def test_times_without_end_are_waited_for_without_end() -> None:
    scheduler = Scheduler("patient-lane", max_pending=8, stuck_after_s=math.inf)
    scheduler.call_when_idle(math.inf, lambda: pytest.fail("it has ended"))
    for _ in range(2):
        work = Recorded([])
        scheduler.submit(work)
        await work.finished.wait()
    await scheduler.aclose()


async def test_a_busy_scheduler_is_not_idle() -> None:
    scheduler = Scheduler("busy-lane", max_pending=8)
    calls: list[None] = []
    scheduler.call_when_idle(0.01, lambda: calls.append(None))
    first, work = Recorded([]), endless()
    scheduler.submit(first)
    await first.finished.wait()
    scheduler.submit(work)
    await asyncio.sleep(0.05)
    assert not calls
    work.gate.set()
    await work.finished.wait()
    await scheduler.aclose()
