"""Work that other threads submit: it ends where it ends, by the rules of all work."""

import asyncio
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Callable

import pytest

from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceUnavailableError,
    MissedDeadlinePersistentError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.types import ErrorStatus, Priority
from asyncnn.qos import Pause, Scheduler, Work
from asyncnn.qos.accounting import MOST_LATE as MOST
from asyncnn.qos.lanes import LoopInbox
from tests.forks import in_child
from tests.qos.recorded import Recorded
from tests.waits import until


class Noted(Work):
    """Work that notes the threads that it runs and ends on, and how often it ends."""

    def __init__(
        self,
        body: Callable[[Pause], bool] = lambda pause: True,
        *,
        priority: Priority = Priority.MEDIUM,
        deadline_ns: int | None = None,
    ) -> None:
        super().__init__(priority, deadline_ns)
        self.body = body
        self.ran_on = 0
        self.ended_on: list[int] = []
        self.status = ErrorStatus.NONE
        self.ended = threading.Event()

    def advance(self, pause: Pause) -> bool:
        self.ran_on = threading.get_ident()
        return self.body(pause)

    def abort(self, status: ErrorStatus) -> None:
        self.status = status

    def finish(self) -> ErrorStatus:
        self.ended_on.append(threading.get_ident())
        self.ended.set()
        return self.status


async def held(scheduler: Scheduler) -> tuple[Recorded, threading.Event]:
    """Have the only lane busy until an event is set."""
    gate = threading.Event()
    busy = Recorded([], gate=gate)
    scheduler.submit(busy)
    assert await asyncio.to_thread(busy.started.wait, 20)
    return busy, gate


async def test_it_ends_on_its_lane_and_is_counted(scheduler: Scheduler) -> None:
    works = [Noted() for _ in range(5)]
    for work in works:
        await asyncio.to_thread(scheduler.submit_threadsafe, work)
        assert await asyncio.to_thread(work.ended.wait, 20)
    for work in works:
        assert work.ended_on == [work.ran_on] != [threading.get_ident()]
    statistics = scheduler.statistics()
    assert statistics.done[ErrorStatus.NONE] == statistics.latency.count == 5
    assert scheduler.is_idle


async def test_it_waits_by_priority_among_the_loops(scheduler: Scheduler) -> None:
    _, gate = await held(scheduler)
    order: list[str] = []

    def noting(name: str) -> Callable[[Pause], bool]:
        return lambda pause: order.append(name) is None

    low = Recorded([], priority=Priority.LOW, body=lambda: order.append("loop"))
    scheduler.submit(low)
    high = Noted(noting("high"), priority=Priority.HIGH)
    medium = Noted(noting("medium"))
    await asyncio.to_thread(scheduler.submit_threadsafe, medium)
    await asyncio.to_thread(scheduler.submit_threadsafe, high)
    assert scheduler.statistics().queued == 3
    gate.set()
    await low.finished.wait()
    assert order == ["high", "medium", "loop"]


async def test_what_is_too_much_is_refused_and_counted(scheduler: Scheduler) -> None:
    _, gate = await held(scheduler)
    waiting = [Noted() for _ in range(7)]
    for work in waiting:
        await asyncio.to_thread(scheduler.submit_threadsafe, work)
    assert scheduler.is_full
    with pytest.raises(ResourceExhaustedTransientError):
        await asyncio.to_thread(scheduler.submit_threadsafe, Noted())
    done = scheduler.statistics().done
    assert done[ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT] == 1
    gate.set()
    for work in waiting:
        assert await asyncio.to_thread(work.ended.wait, 20)
    await until(lambda: scheduler.is_idle)
    assert not scheduler.is_full


async def test_the_loop_is_told_that_it_is_full() -> None:
    told: list[int] = []
    scheduler = Scheduler(
        "test-lane",
        max_pending=1,
        filled_or_freed=lambda: told.append(threading.get_ident()),
    )
    work = Noted()
    await asyncio.to_thread(scheduler.submit_threadsafe, work)
    await until(lambda: len(told) == 2)
    assert set(told) == {threading.get_ident()}
    await scheduler.aclose()


async def test_a_deadline_ends_what_waits_once(scheduler: Scheduler) -> None:
    _, gate = await held(scheduler)
    late = Noted(deadline_ns=time.monotonic_ns() + 100_000_000)
    await asyncio.to_thread(scheduler.submit_threadsafe, late)
    assert await asyncio.to_thread(late.ended.wait, 20)
    assert late.status is ErrorStatus.MISSED_DEADLINE_TRANSIENT
    gate.set()
    with pytest.raises(MissedDeadlinePersistentError):
        await asyncio.to_thread(scheduler.submit_threadsafe, Noted(deadline_ns=1))
    in_time = Noted(deadline_ns=time.monotonic_ns() + 60_000_000_000)
    await asyncio.to_thread(scheduler.submit_threadsafe, in_time)
    assert await asyncio.to_thread(in_time.ended.wait, 20)
    await until(lambda: scheduler.is_idle and not scheduler._deadlines)
    assert len(late.ended_on) == len(in_time.ended_on) == 1
    assert not late.ran_on


async def test_what_waits_ends_where_it_is_cancelled(scheduler: Scheduler) -> None:
    _, gate = await held(scheduler)
    work = Noted()
    seen: list[int] = []

    def cancel() -> None:
        scheduler.submit_threadsafe(work)
        scheduler.cancel_threadsafe(work, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)
        scheduler.cancel_threadsafe(work, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)
        seen.append(threading.get_ident())

    await asyncio.to_thread(cancel)
    assert work.ended_on == seen
    gate.set()
    await until(lambda: scheduler.is_idle)
    statistics = scheduler.statistics()
    assert statistics.done[ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT] == 1


async def test_what_runs_ends_on_its_lane_when_it_is_cancelled(
    scheduler: Scheduler,
) -> None:
    begun = threading.Event()

    def until_aborted(pause: Pause) -> bool:
        begun.set()
        while work.status is ErrorStatus.NONE:
            time.sleep(0.001)
        return True

    work = Noted(until_aborted)
    await asyncio.to_thread(scheduler.submit_threadsafe, work)
    assert await asyncio.to_thread(begun.wait, 20)
    scheduler.cancel_threadsafe(work, ErrorStatus.GENERAL_FAILURE)
    assert await asyncio.to_thread(work.ended.wait, 20)
    assert work.ended_on == [work.ran_on]


async def test_a_report_that_raises_leaves_the_lane_alive(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    class Raising(Noted):
        def finish(self) -> ErrorStatus:
            super().finish()
            raise KeyboardInterrupt("of whoever reports")

    raising, following = Raising(), Noted()
    await asyncio.to_thread(scheduler.submit_threadsafe, raising)
    await asyncio.to_thread(scheduler.submit_threadsafe, following)
    assert await asyncio.to_thread(following.ended.wait, 20)
    assert raising.ran_on == following.ran_on
    assert "reporting the end of work failed" in caplog.text
    done = scheduler.statistics().done
    assert done[ErrorStatus.GENERAL_FAILURE] == done[ErrorStatus.NONE] == 1


async def test_many_ends_wake_the_loop_to_count_them(scheduler: Scheduler) -> None:
    _, gate = await held(scheduler)
    left = [3 * MOST]
    ended = threading.Event()

    class Chained(Noted):
        def finish(self) -> ErrorStatus:
            left[0] -= 1
            if left[0]:
                scheduler.submit_threadsafe(Chained())
            else:
                ended.set()
            return ErrorStatus.NONE

    await asyncio.to_thread(scheduler.submit_threadsafe, Chained())
    gate.set()
    assert await asyncio.to_thread(ended.wait, 10)
    await asyncio.sleep(0)
    assert len(scheduler._late_counts.ended) <= MOST
    assert scheduler.statistics().done[ErrorStatus.NONE] == 3 * MOST + 1


@pytest.mark.parametrize("delay_s", [0, 0.001, 0.01])
async def test_all_that_was_accepted_ends_once_when_it_is_closed(
    delay_s: float,
) -> None:
    scheduler = Scheduler("test-lane", max_pending=64, lanes=2)
    accepted: list[Noted] = []
    refusals: list[Exception] = []

    def submit_until_closed() -> None:
        while not refusals:
            work = Noted()
            try:
                scheduler.submit_threadsafe(work)
            except ResourceExhaustedTransientError:
                time.sleep(0)
            except DeviceUnavailableError as error:
                refusals.append(error)
            else:
                accepted.append(work)

    threads = [threading.Thread(target=submit_until_closed) for _ in range(3)]
    for thread in threads:
        thread.start()
    await asyncio.sleep(delay_s)
    async with asyncio.timeout(10):
        await scheduler.aclose()
    for thread in threads:
        await asyncio.to_thread(thread.join, 5)
        assert not thread.is_alive()
    assert refusals
    assert all(len(work.ended_on) == 1 for work in accepted)
    assert scheduler.is_idle
    assert not scheduler.run_queue.pending


async def test_refusals_are_counted_soon_and_keep_no_work(scheduler: Scheduler) -> None:
    await scheduler.aclose()

    def refused() -> weakref.ref[Work]:
        for _ in range(3 * MOST):
            work = Noted()
            with pytest.raises(DeviceUnavailableError):
                scheduler.submit_threadsafe(work)
        return weakref.ref(work)

    assert (await asyncio.to_thread(refused))() is None
    await until(lambda: len(scheduler._late_counts.ended) <= MOST)
    done = scheduler.statistics().done
    assert done[ErrorStatus.DEVICE_UNAVAILABLE] == 3 * MOST


def test_refusals_are_not_kept_once_the_loop_is_closed() -> None:
    async def closed() -> Scheduler:
        scheduler = Scheduler("test-lane", max_pending=4)
        await scheduler.aclose()
        return scheduler

    scheduler = asyncio.run(closed())
    for _ in range(3 * MOST):
        with pytest.raises(DeviceUnavailableError):
            scheduler.submit_threadsafe(Noted())
    assert len(scheduler._late_counts.ended) <= MOST


async def test_an_idle_scheduler_counts_what_has_ended(scheduler: Scheduler) -> None:
    idle: list[int] = []
    scheduler.call_when_idle(
        0.01, lambda: idle.append(len(scheduler._late_counts.ended))
    )
    for _ in range(2):
        work = Noted()
        await asyncio.to_thread(scheduler.submit_threadsafe, work)
        assert await asyncio.to_thread(work.ended.wait, 20)
    await until(lambda: bool(idle))
    assert idle == [0]


async def test_closing_does_not_wait_for_work_that_found_no_thread(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()

    def fail(thread: threading.Thread) -> None:
        loop.call_soon_threadsafe(scheduler.begin_closing)
        raise RuntimeError("can't start new thread")

    async def refused() -> None:
        with pytest.raises(ResourceExhaustedTransientError):
            await asyncio.to_thread(scheduler.submit_threadsafe, Noted())

    await asyncio.to_thread(lambda: None)  # that thread is started
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        await refused()
    async with asyncio.timeout(20):
        await scheduler.aclose()


async def test_what_fails_for_want_of_a_thread_may_at_once_submit_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = Scheduler("lost-lane", max_pending=8, stuck_after_s=0.02)
    gate, begun = threading.Event(), threading.Event()
    told: list[Exception] = []

    class Again(Noted):
        def fail(self, error: AsyncnnError) -> None:
            self.status = error.status

        def finish(self) -> ErrorStatus:
            try:
                scheduler.submit_threadsafe(Noted())
            except ResourceExhaustedTransientError as error:
                told.append(error)
            return super().finish()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def wait(pause: Pause) -> bool:
        begun.set()
        return gate.wait(20)

    stuck, waiting = Noted(wait), Again()
    scheduler.submit_threadsafe(stuck)
    assert await asyncio.to_thread(begun.wait, 20)
    scheduler.submit_threadsafe(waiting)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        await until(waiting.ended.is_set)
    assert waiting.status is ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
    assert told
    gate.set()
    await scheduler.aclose()


class Stopping(Noted):
    """Whose end stops the application."""

    def finish(self) -> ErrorStatus:
        super().finish()
        raise SystemExit


async def test_what_is_there_when_an_application_is_stopped_is_handled_later(
    scheduler: Scheduler,
) -> None:
    _, gate = await held(scheduler)
    works = [Stopping(), Noted(), Noted()]
    for work in works:
        scheduler.submit(work)
    with pytest.raises(SystemExit):
        scheduler.begin_closing()
    assert works[0].ended_on
    await asyncio.sleep(0)
    assert all(work.ended_on for work in works)
    gate.set()
    await scheduler.aclose()


async def test_what_is_put_as_the_inbox_closes_is_handled() -> None:
    handled: list[Work] = []

    def deliver() -> None:
        while inbox.works:
            handled.append(inbox.works.popleft())

    inbox = LoopInbox(asyncio.get_running_loop(), deliver)
    inbox.open()
    works = [Noted() for _ in range(2)]
    inbox.put(works[0])
    inbox.close()
    inbox.put(works[1])
    await asyncio.sleep(0)
    assert handled == works


@pytest.mark.parametrize("call", ["cancel", "cancel_threadsafe"])
async def test_a_forked_child_cancels_nothing(scheduler: Scheduler, call: str) -> None:
    busy, gate = await held(scheduler)
    work = Noted()
    await asyncio.to_thread(scheduler.submit_threadsafe, work)

    def child() -> list[int]:
        signal.alarm(5)  # the lock below stays held for ever here
        getattr(scheduler, call)(work, ErrorStatus.GENERAL_FAILURE)
        return work.ended_on

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with scheduler._lock:
            running = asyncio.create_task(in_child(child))
            await asyncio.sleep(0)
    assert await running == []
    gate.set()
    await busy.finished.wait()
    assert await asyncio.to_thread(work.ended.wait, 20)


async def test_closing_does_not_wait_for_what_is_refused_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = Scheduler("test-lane", max_pending=1)
    busy, _ = await held(scheduler)
    refusing, go_on = threading.Event(), threading.Event()
    retract = scheduler._retract

    def slowly(work: Work) -> None:
        refusing.set()
        assert go_on.wait(20)
        retract(work)

    monkeypatch.setattr(scheduler, "_retract", slowly)
    refused = asyncio.ensure_future(
        asyncio.to_thread(scheduler.submit_threadsafe, Noted())
    )
    assert await asyncio.to_thread(refusing.wait, 20)
    closing = asyncio.ensure_future(scheduler.aclose())
    await busy.finished.wait()
    go_on.set()
    async with asyncio.timeout(20):
        await closing
    with pytest.raises(ResourceExhaustedTransientError):
        await refused
