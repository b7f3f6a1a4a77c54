"""Closing a scheduler: once, in bounded time, whoever asks and whatever fails."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from asyncnn.hal.errors import (
    DeviceClosedError,
    DeviceUnavailableError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.types import ErrorStatus
from asyncnn.qos import Pause, Scheduler, Work
from tests.qos.recorded import Recorded, endless
from tests.waits import cancelled, until

LIMIT_S = 0.05


class Stuck(Recorded):
    """Work that comes to no boundary before its gate is opened."""

    gate: threading.Event

    def __init__(self) -> None:
        super().__init__([], gate=threading.Event())

    def abort(self, status: ErrorStatus) -> None:
        self.status = status


class Separable(Stuck):
    """Work whose abort may be reported while it goes on."""

    is_separable = True


def at_work(name: str, work: Recorded, **settings: Any) -> Scheduler:
    """Return a scheduler that has begun with ``work``."""
    scheduler = Scheduler(name, max_pending=8, **settings)
    scheduler.submit(work)
    assert work.started.wait(20)
    return scheduler


def lanes_alive(name: str) -> int:
    return [thread.name for thread in threading.enumerate()].count(name)


async def test_two_closers_end_together() -> None:
    work = endless()
    scheduler = at_work("twice-lane", work)
    async with asyncio.timeout(20):
        await asyncio.gather(scheduler.aclose(), scheduler.aclose())
    assert work.finished.is_set()
    assert not lanes_alive("twice-lane")


@pytest.mark.alone
async def test_work_that_is_stuck_is_given_up_in_bounded_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stuck = Stuck()
    scheduler = at_work("bound-lane", stuck, stuck_after_s=LIMIT_S)
    began = time.monotonic()
    await scheduler.aclose()
    assert LIMIT_S <= time.monotonic() - began < 2 * LIMIT_S + 0.5
    assert stuck.finished.is_set()
    assert stuck.status is ErrorStatus.DEVICE_UNAVAILABLE
    assert "stuck" in caplog.text
    stuck.gate.set()
    await until(lambda: not lanes_alive("bound-lane"))


async def test_a_cancelled_close_gives_up_what_runs_and_reports_it_once() -> None:
    stuck = Stuck()
    scheduler = at_work("cancelled-lane", stuck)
    closing = asyncio.create_task(scheduler.aclose())
    await asyncio.sleep(0.005)
    assert not stuck.finished.is_set()
    await cancelled(closing)
    assert stuck.finished.is_set()
    stuck.gate.set()  # its end is of no interest any more
    await until(lambda: not lanes_alive("cancelled-lane"))
    await scheduler.aclose()


async def test_work_that_ends_as_a_close_is_cancelled_is_reported() -> None:
    stuck = Stuck()
    scheduler = at_work("ending-lane", stuck)
    closing = asyncio.create_task(scheduler.aclose())
    await asyncio.sleep(0)
    stuck.gate.set()
    while lanes_alive("ending-lane"):  # before the loop learns of its end
        time.sleep(0.001)  # noqa: ASYNC251
    await cancelled(closing)
    async with asyncio.timeout(20):
        await stuck.finished.wait()
        await scheduler.aclose()


async def test_closing_keeps_the_loop_going() -> None:
    slow = Stuck()
    scheduler = at_work("slow-lane", slow)
    closing = asyncio.create_task(scheduler.aclose())
    turns = 0
    while turns < 20:
        await asyncio.sleep(0.001)
        turns += 1
    slow.gate.set()
    await closing


async def test_a_closed_scheduler_runs_nothing_and_starts_nothing() -> None:
    scheduler = Scheduler("shut-lane", max_pending=8)
    await scheduler.aclose()
    short = Recorded([], "early")
    short.should_inline = True
    with pytest.raises(DeviceClosedError, match="the device is closed"):
        scheduler.submit(short)
    assert short.thread is None
    assert not short.finished.is_set()
    assert isinstance(scheduler.cause_of_death(), DeviceUnavailableError)
    assert not lanes_alive("shut-lane")


async def test_an_abort_of_separable_work_is_reported_while_it_goes_on(
    scheduler: Scheduler,
) -> None:
    work = Separable()
    scheduler.submit(work)
    assert work.started.wait(20)
    scheduler.cancel(work, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)
    assert work.finished.is_set()
    assert scheduler.is_idle
    work.gate.set()
    next_one = Recorded([])
    scheduler.submit(next_one)
    await asyncio.wait_for(next_one.finished.wait(), 20)


async def test_closing_reports_separable_work_at_once_and_waits_for_its_thread() -> (
    None
):
    work = Separable()
    scheduler = at_work("apart-lane", work)
    closing = asyncio.create_task(scheduler.aclose())
    await until(work.finished.is_set)
    await asyncio.sleep(0.005)
    assert not closing.done()
    work.gate.set()
    await closing
    assert not lanes_alive("apart-lane")


@contextmanager
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield


async def test_work_for_which_no_thread_starts_is_refused_and_the_next_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = Scheduler("scarce-lane", max_pending=8)
    refused = pytest.raises(ResourceExhaustedTransientError, match="can't start new")
    with no_threads(monkeypatch), refused:
        scheduler.submit(Recorded([]))
    assert scheduler.is_idle
    status = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
    assert scheduler.statistics().done[status] == 1
    work = Recorded([])
    scheduler.submit(work)
    await asyncio.wait_for(work.finished.wait(), 20)
    await scheduler.aclose()


async def test_work_that_waits_when_no_thread_replaces_a_stuck_one_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stuck, waiting = Stuck(), Recorded([])
    scheduler = at_work("lost-lane", stuck, stuck_after_s=0.02)
    scheduler.submit(waiting)
    with no_threads(monkeypatch):
        await asyncio.wait_for(waiting.finished.wait(), 20)
    assert waiting.status is ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
    assert stuck.status is ErrorStatus.GENERAL_FAILURE
    stuck.gate.set()
    await scheduler.aclose()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MemoryError("no workspace"), ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT),
        (ValueError("odd"), ErrorStatus.GENERAL_FAILURE),
    ],
)
@pytest.mark.parametrize("is_quick", [False, True])
async def test_whatever_work_raises_is_its_end(
    scheduler: Scheduler, error: Exception, status: ErrorStatus, is_quick: bool
) -> None:
    def fail() -> None:
        raise error

    work = Recorded([], body=fail)
    work.should_inline = is_quick
    assert scheduler.submit(work) is is_quick
    await asyncio.wait_for(work.finished.wait(), 20)
    assert work.status is status
    assert scheduler.statistics().done[status] == 1


async def test_work_that_is_interrupted_on_the_loop_is_reported_first(
    scheduler: Scheduler,
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    work = Recorded([], body=interrupt)
    work.should_inline = True
    with pytest.raises(KeyboardInterrupt):
        scheduler.submit(work)
    assert work.finished.is_set()


async def test_a_report_that_fails_does_not_keep_others_from_theirs(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Recorded):
        def finish(self) -> ErrorStatus:
            raise RuntimeError("no report")

    gate = threading.Event()
    pieces = [Broken([], gate=gate), Recorded([]), Recorded([])]
    for work in pieces:
        scheduler.submit(work)
    gate.set()
    for work in pieces[1:]:
        await asyncio.wait_for(work.finished.wait(), 20)
    assert "no report" in caplog.text
    assert scheduler.is_idle


async def test_a_pause_is_never_asked_of_work_on_the_loop(scheduler: Scheduler) -> None:
    class Observing(Recorded):
        def run(self) -> int:
            return super(Recorded, self).run()

        def advance(self, pause: Pause) -> bool:
            assert not pause.requested
            return super().advance(pause)

    work = Observing([], "early")
    work.should_inline = True
    assert scheduler.submit(work)
    assert work.finished.is_set()


async def test_work_whose_end_cancels_the_others_ends_once_and_so_do_they() -> None:
    scheduler = Scheduler("chained-lane", max_pending=8)
    first = Stuck()
    waiting: list[Work] = []

    class Cancelling(Separable):
        def finish(self) -> ErrorStatus:
            status = super().finish()
            for other in waiting:
                scheduler.cancel(other, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)
            return status

    works = [Cancelling() for _ in range(3)]
    waiting += works
    for work in (first, *works):
        scheduler.submit(work)
    scheduler.begin_closing()
    assert all(work.finished.is_set() for work in works)
    first.gate.set()
    await asyncio.wait_for(scheduler.aclose(), 20)
    assert first.finished.is_set()
    assert scheduler.is_idle


async def test_a_callback_that_raises_a_cancellation_keeps_nobody_from_their_end(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    class Cancelled(Recorded):
        def finish(self) -> ErrorStatus:
            super().finish()
            raise asyncio.CancelledError

    works = [Cancelled([]), Recorded([])]
    last = endless()
    for work in (*works, last):
        scheduler.submit(work)
    assert last.started.wait(20)  # the others wait for the loop by now, together
    await until(lambda: all(work.finished.is_set() for work in works))
    assert "reporting the end of work failed" in caplog.text
    scheduler.cancel(last, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)


def test_a_callback_that_stops_the_application_keeps_nobody_from_their_end() -> None:
    class Exiting(Recorded):
        def finish(self) -> ErrorStatus:
            super().finish()
            raise SystemExit

    ended: list[bool] = []

    async def serve() -> None:
        scheduler = Scheduler("exiting-lane", max_pending=8)
        works = [Exiting([]), Recorded([])]
        for work in works:
            scheduler.submit(work)
        while not works[1].log:
            assert works[1].started.wait(20)
        time.sleep(0.01)  # noqa: ASYNC251 - they wait for the loop by now, together
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.wait_for(scheduler.aclose(), 20)
            ended.extend(work.finished.is_set() for work in works)

    with pytest.raises(SystemExit):
        asyncio.run(serve())
    assert ended == [True, True]
