"""Interrupts of the application, which come behind any call, lose no work or lane."""

import asyncio
import gc
import logging
import sys
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from asyncnn.hal.types import ErrorStatus
from asyncnn.qos import Scheduler
from asyncnn.qos.native_lanes import ILanePort
from tests.qos.recorded import Recorded

MOST_CALLS = 24


class Returning(ILanePort):
    """Lanes that do nothing, and come back when a test says so."""

    def __init__(self) -> None:
        self.back: list[Any] = []

    def lane(self, name: str, nice: int = 0) -> Any:
        return self

    def close(self) -> None:
        """Do nothing."""

    has_ended = True

    def drain(self, ended: list[Any], /) -> None:
        ended += self.back
        self.back = []


class Offered(Recorded):
    """Work that such a lane takes as one in C does: an interrupt is behind that."""

    goes_native = True
    lane: Any = None
    stops = 0

    def offer(self, idle: list[Any], /) -> bool:
        lane = idle[-1]
        lane.work = self
        self.lane = lane
        del idle[-1]
        return True

    def come_back(self, *_: Any) -> bool:
        self.stops -= 1
        return self.stops < 0

    def finish(self) -> ErrorStatus:
        self.finished.set()  # first: an interrupt in here is the application's
        return ErrorStatus.NONE


def interrupted(
    number: int, function: Callable[[], object], other: str = "return"
) -> bool:
    """Call a function with an interrupt at an event; False if there are less."""

    def interrupt(_: FrameType, event: str, __: Any) -> None:
        nonlocal number
        number -= event in ("c_return", other)
        if number < 0:
            sys.setprofile(None)
            raise KeyboardInterrupt

    gc.disable()  # what it calls is not the function's
    sys.setprofile(interrupt)
    try:
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
        gc.enable()
    return False


class Desk:
    """A scheduler with one such lane, which has had work."""

    def __init__(self) -> None:
        self.port = Returning()
        self.scheduler = Scheduler("lane", max_pending=8, make_port=lambda _: self.port)
        self.run()

    def take_back(self) -> None:
        """Have the lanes come back that have work."""
        lanes = self.scheduler._natives.lanes
        self.port.back = [(lane, 0, 0, 0, 0) for lane in lanes if lane.work]
        self.scheduler._deliver()

    def run(self) -> None:
        work = Offered([])
        self.scheduler.submit(work)
        self.take_back()
        assert work.finished.is_set()

    async def close(self, works: list[Offered]) -> None:
        """Cancel all, as an application does that is stopped; the lane is there."""
        for work in works:
            self.scheduler.cancel(work, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)
        self.take_back()
        assert self.scheduler.pending == 0
        self.run()
        await self.scheduler.aclose()


@pytest.mark.parametrize("number", range(MOST_CALLS))
async def test_what_is_submitted_is_taken_or_not(number: int) -> None:
    desk, work = Desk(), Offered([])
    assert interrupted(number, lambda: desk.scheduler.submit(work)) or number > 0
    await desk.close([work])


@pytest.mark.parametrize("number", range(MOST_CALLS))
async def test_what_waits_is_given_to_a_lane_or_ends(number: int) -> None:
    desk = Desk()
    scheduler, works = desk.scheduler, [Offered([]) for _ in range(3)]
    for work in works:
        scheduler.submit(work)
    scheduler.run_queue.give_back(works[0], 1, 0)
    works[0].lane.work = None
    scheduler._natives.idle.append(works[0].lane)
    assert interrupted(number, lambda: scheduler._fill(2, deque())) or number > 0
    await desk.close(works)


@pytest.mark.parametrize("number", range(MOST_CALLS))
async def test_what_has_come_back_is_reported_by_a_later_turn(number: int) -> None:
    desk, works = Desk(), [Offered([]), Offered([])]
    for work in works:
        desk.scheduler.submit(work)
    lanes = desk.scheduler._natives.lanes
    desk.port.back = [(lane, 0, 0, 0, 0) for lane in lanes if lane.work]
    assert interrupted(number, desk.scheduler._deliver) or number > 0
    await asyncio.sleep(0)
    assert works[0].finished.is_set()
    await desk.close(works[1:])


@pytest.mark.parametrize("number", range(MOST_CALLS))
async def test_what_was_stopped_is_counted_where_it_waits(number: int) -> None:
    desk, work = Desk(), Offered([])
    work.stops = 1
    desk.scheduler.submit(work)
    desk.port.back = [(work.lane, 0, 0, 0, 0)]
    assert interrupted(number, desk.scheduler._deliver, "call") or number > 0
    await desk.close([work])
    run_queue = desk.scheduler.run_queue
    assert (run_queue.waiting, run_queue.room, run_queue.pending) == (0, 1, 0)


async def test_who_logs_a_failure_may_submit_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk, failing, more = Desk(), Offered([]), Offered([])
    failing.come_back = None  # type: ignore[assignment,method-assign]

    def submit(record: logging.LogRecord) -> bool:
        if not more.lane:
            assert desk.scheduler._lock.acquire(timeout=0), "it would wait for itself"
            desk.scheduler._lock.release()
            desk.scheduler.submit(more)
        return True

    desk.scheduler.submit(failing)
    caplog.handler.addFilter(submit)
    desk.take_back()
    caplog.handler.removeFilter(submit)
    assert "work failed" in caplog.text
    assert failing.finished.is_set()
    await desk.close([more])
