"""What holds for fences of every make."""

import asyncio
import gc
import select
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from asyncnn.fences import FenceSource, FenceState, SyncFence
from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceUnavailableError,
    InvalidArgumentError,
    MissedDeadlineTransientError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.types import ErrorStatus, Handle
from tests.fences.conftest import Made
from tests.service.test_descriptors import only
from tests.waits import cancelled


def readable(fence: SyncFence) -> bool:
    return bool(select.select([fence.fileno()], [], [], 0)[0])


def race(source: FenceSource, barrier: threading.Barrier) -> bool:
    barrier.wait()
    return source.signal()


class TestStates:
    def test_a_new_fence_is_active(self, made: Made) -> None:
        assert made.fence.state is FenceState.ACTIVE
        assert made.fence.status is None
        assert made.fence.reason == ""
        assert made.fence.signalled_at_ns is None
        assert not readable(made.fence)

    def test_a_signalled_fence_is_so_for_ever(self, made: Made) -> None:
        made.signal()
        for _ in range(2):
            assert made.fence.state is FenceState.SIGNALLED
            assert made.fence.status is ErrorStatus.NONE
            assert readable(made.fence)

    def test_a_failed_fence_is_so_for_ever(self, fallible: Made) -> None:
        assert fallible.fail
        fallible.fail()
        for _ in range(2):
            assert fallible.fence.state is FenceState.ERROR
            assert fallible.fence.status
            assert readable(fallible.fence)

    def test_the_first_end_counts(self) -> None:
        fence, source = SyncFence.pair()
        assert source.signal()
        assert source.is_done
        assert not source.fail(ErrorStatus.GENERAL_FAILURE)
        assert not source.signal()
        assert fence.state is FenceState.SIGNALLED

    def test_a_fence_made_signalled_is_signalled(self) -> None:
        fence = SyncFence.signalled()
        assert fence.status is ErrorStatus.NONE
        assert readable(fence)

    async def test_a_fence_made_failed_has_failed(self) -> None:
        fence = SyncFence.failed(ErrorStatus.INVALID_ARGUMENT, "no such input")
        assert (fence.status, fence.reason) == (
            ErrorStatus.INVALID_ARGUMENT,
            "no such input",
        )
        assert readable(fence)
        with pytest.raises(InvalidArgumentError, match="no such input"):
            await fence

    def test_none_is_no_failure(self) -> None:
        _, source = SyncFence.pair()
        with pytest.raises(ValueError, match="NONE"):
            source.fail(ErrorStatus.NONE)
        with pytest.raises(ValueError, match="NONE"):
            SyncFence.failed(ErrorStatus.NONE)

    @pytest.mark.parametrize("status", ErrorStatus)
    def test_a_descriptor_shows_every_status(self, status: ErrorStatus) -> None:
        fence, source = SyncFence.pair()
        before, after = SyncFence.from_fd(fence.fileno()), fence.duplicate()
        if status is ErrorStatus.NONE:
            source.signal()
        else:
            source.fail(status)
        assert before.status is status
        assert before.reason == ""  # a descriptor has no words
        assert SyncFence.from_fd(after.fileno()).status is status

    def test_its_representation_says_how_it_ended(self) -> None:
        fence, source = SyncFence.pair()
        assert (repr(fence), repr(source)) == (
            "<SyncFence active>",
            "<FenceSource pending>",
        )
        source.fail(ErrorStatus.GENERAL_FAILURE)
        assert (repr(fence), repr(source)) == (
            "<SyncFence error GENERAL_FAILURE>",
            "<FenceSource done>",
        )


class TestTimes:
    def test_every_process_learns_when_a_fence_was_signalled(self) -> None:
        fence, source = SyncFence.pair()
        imported = SyncFence.from_fd(fence.fileno())
        before = time.monotonic_ns()
        source.signal()
        at_ns = fence.signalled_at_ns
        assert at_ns is not None
        assert before <= at_ns <= time.monotonic_ns()
        assert imported.signalled_at_ns == at_ns

    def test_an_owner_may_know_it_better(self) -> None:
        (fence, source), (failed, other) = SyncFence.pair(), SyncFence.pair()
        source.signal(at_ns=30)
        other.fail(ErrorStatus.GENERAL_FAILURE, at_ns=70)
        assert (fence.signalled_at_ns, failed.signalled_at_ns) == (30, 70)

    def test_a_time_that_nobody_noted_is_not_known(self, made: Made) -> None:
        made.signal()
        at_ns = made.fence.signalled_at_ns
        assert at_ns is None or at_ns <= time.monotonic_ns()


class TestAwaiting:
    async def test_it_goes_on_once_the_fence_is_signalled(self, made: Made) -> None:
        waiting = asyncio.create_task(made.fence.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        made.signal()
        await waiting

    async def test_it_raises_what_the_fence_failed_with(self, fallible: Made) -> None:
        waiting = asyncio.create_task(fallible.fence.wait())
        await asyncio.sleep(0)
        assert fallible.fail
        fallible.fail()
        with pytest.raises(AsyncnnError) as caught:
            await waiting
        assert caught.value.status is fallible.fence.status

    async def test_the_cause_is_told(self) -> None:
        fence, source = SyncFence.pair()
        source.fail(ErrorStatus.MISSED_DEADLINE_TRANSIENT, "stage 3 was late")
        with pytest.raises(MissedDeadlineTransientError, match="stage 3 was late"):
            await fence

    async def test_any_number_of_tasks_may_wait(self, made: Made) -> None:
        tasks = [asyncio.create_task(made.fence.wait()) for _ in range(3000)]
        await asyncio.sleep(0)
        made.signal()
        await asyncio.wait_for(asyncio.gather(*tasks), 10)

    async def test_cancelling_one_waiter_leaves_the_others(self, made: Made) -> None:
        first, second = (asyncio.create_task(made.fence.wait()) for _ in range(2))
        await asyncio.sleep(0)
        await cancelled(first)
        assert not second.done()
        made.signal()
        await second

    async def test_all_may_be_cancelled_and_it_can_be_awaited_again(
        self, made: Made
    ) -> None:
        first = asyncio.create_task(made.fence.wait())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        again = asyncio.create_task(made.fence.wait())
        await asyncio.sleep(0)
        made.signal()
        await again

    async def test_a_waiter_may_be_cancelled_as_the_fence_is_signalled(
        self, made: Made
    ) -> None:
        waiting = asyncio.create_task(made.fence.wait())
        await asyncio.sleep(0)
        made.signal()
        waiting.cancel()
        await asyncio.wait([waiting])
        await made.fence

    async def test_it_ends_after_its_timeout(self, made: Made) -> None:
        with pytest.raises(TimeoutError):
            await made.fence.wait(0.001)
        assert made.fence.state is FenceState.ACTIVE
        made.signal()
        await made.fence.wait(20)

    async def test_a_fence_that_is_done_does_not_suspend(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # This process may be stopped between two statements for longer than a turn.
        monkeypatch.setattr("asyncnn.fences.fence.TURN_NS", 10**18)
        fence, turns = SyncFence.signalled(), 0

        def count() -> None:
            nonlocal turns
            turns += 1

        asyncio.get_running_loop().call_soon(count)
        await fence
        assert turns == 0

    async def test_a_long_series_gives_the_loop_its_turns(self) -> None:
        fence, turns, running = SyncFence.signalled(), 0, True

        def count() -> None:
            nonlocal turns
            turns += 1
            if running:
                asyncio.get_running_loop().call_soon(count)

        count()
        ends = time.thread_time() + 0.02  # what others compute meanwhile is not counted
        while turns <= 20 and time.thread_time() < ends:
            await fence
        running = False
        await asyncio.sleep(0)
        assert turns > 20

    async def test_many_loops_may_wait_at_once(self, made: Made) -> None:
        ready = threading.Barrier(3)

        async def wait() -> None:
            waiting = asyncio.create_task(made.fence.wait(10))
            await asyncio.sleep(0)
            ready.wait()
            await waiting

        with ThreadPoolExecutor(2) as threads:
            loops = [threads.submit(asyncio.run, wait()) for _ in range(2)]
            here = asyncio.create_task(made.fence.wait(10))
            await asyncio.sleep(0)
            ready.wait(10)
            made.signal()
            await here
            for loop in loops:
                loop.result(10)


class TestThreads:
    def test_a_thread_may_block_on_it(self, made: Made) -> None:
        with ThreadPoolExecutor(2) as threads:
            waiting = [threads.submit(made.fence.wait_blocking, 10) for _ in range(2)]
            made.signal()
            for each in waiting:
                each.result(10)

    def test_it_raises_what_the_fence_failed_with(self, fallible: Made) -> None:
        assert fallible.fail
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(fallible.fence.wait_blocking, 10)
            fallible.fail()
            with pytest.raises(AsyncnnError):
                waiting.result(10)

    def test_blocking_ends_after_its_timeout(self, made: Made) -> None:
        with pytest.raises(TimeoutError):
            made.fence.wait_blocking(0.001)
        made.signal()
        made.fence.wait_blocking(0)

    async def test_a_loop_is_not_blocked(self, made: Made) -> None:
        with pytest.raises(RuntimeError, match="await"):
            made.fence.wait_blocking(0.001)
        made.signal()
        made.fence.wait_blocking()

    async def test_it_may_be_signalled_from_a_thread(self, made: Made) -> None:
        waiting = asyncio.create_task(made.fence.wait(10))
        await asyncio.sleep(0)
        thread = threading.Thread(target=made.signal)
        thread.start()
        await waiting
        thread.join()

    def test_one_of_many_threads_decides(self) -> None:
        for _ in range(50):
            fence, source = SyncFence.pair()
            barrier = threading.Barrier(4)

            with ThreadPoolExecutor(4) as threads:
                races = [threads.submit(race, source, barrier) for _ in range(4)]
            assert sorted(r.result() for r in races) == [False, False, False, True]
            assert fence.status is ErrorStatus.NONE


class TestCallbacks:
    async def test_it_is_called_soon_and_never_inside(self, made: Made) -> None:
        called: list[SyncFence] = []
        made.fence.add_done_callback(called.append)
        made.signal()
        assert not called
        await made.fence.wait(20)
        await asyncio.sleep(0)
        assert called == [made.fence]

    async def test_it_is_called_soon_if_the_fence_is_done(self, made: Made) -> None:
        made.signal()
        called: list[SyncFence] = []
        made.fence.add_done_callback(called.append)
        assert not called
        await asyncio.sleep(0)
        assert called == [made.fence]

    async def test_a_callback_can_be_taken_back(self, made: Made) -> None:
        called: list[SyncFence] = []
        for _ in range(2):
            made.fence.add_done_callback(called.append)
        assert made.fence.remove_done_callback(called.append) == 2
        assert made.fence.remove_done_callback(called.append) == 0
        made.signal()
        await made.fence.wait(20)
        await asyncio.sleep(0)
        assert not called

    async def test_a_callback_that_is_taken_back_is_let_go(self, made: Made) -> None:
        def callback(_: SyncFence) -> None: ...

        held = weakref.ref(callback)
        made.fence.add_done_callback(callback)
        made.fence.remove_done_callback(callback)
        del callback
        await asyncio.sleep(0)
        gc.collect()
        assert held() is None

    async def test_it_is_called_although_nobody_keeps_the_fence(
        self, made: Made
    ) -> None:
        called = asyncio.Event()
        made.fence.add_done_callback(lambda _: called.set())
        made.fence.close()
        del made.fence
        gc.collect()
        made.signal()
        await asyncio.wait_for(called.wait(), 20)

    @pytest.mark.alone
    async def test_taking_back_one_of_thousands_takes_no_search(
        self, made: Made
    ) -> None:
        callbacks = [partial(int, number) for number in range(5000)]
        for callback in callbacks:
            made.fence.add_done_callback(callback)
        started = time.monotonic()
        assert sum(map(made.fence.remove_done_callback, callbacks)) == 5000
        assert time.monotonic() - started < 1  # searches would take several

    async def test_taking_back_races_with_the_end(self, made: Made) -> None:
        """Each is either called or taken back, whatever a thread does meanwhile."""
        called, taken = 0, 0

        def call(_: SyncFence) -> None:
            nonlocal called
            called += 1

        thread = threading.Thread(target=made.signal)
        thread.start()
        added = 0
        while made.fence.state is FenceState.ACTIVE or added < 500:
            made.fence.add_done_callback(call)
            added += 1
            if added % 3:
                taken += made.fence.remove_done_callback(call)
        thread.join()
        await made.fence.wait(20)
        await asyncio.sleep(0)
        assert called + taken == added

    def test_a_loop_must_run(self, made: Made) -> None:
        with pytest.raises(RuntimeError):
            made.fence.add_done_callback(print)


class TestClosing:
    async def test_a_closed_fence_is_unknown_and_of_no_use(self, made: Made) -> None:
        made.fence.close()
        made.fence.close()
        assert made.fence.state is FenceState.UNKNOWN
        assert repr(made.fence) == "<SyncFence unknown>"
        for use in (made.fence.fileno, made.fence.duplicate, made.fence.handle):
            with pytest.raises(InvalidArgumentError, match="closed"):
                use()
        with pytest.raises(InvalidArgumentError, match="closed"):
            await made.fence

    async def test_who_waits_goes_on_waiting(self, made: Made) -> None:
        waiting = asyncio.create_task(made.fence.wait(20))
        await asyncio.sleep(0)
        made.fence.close()
        made.signal()
        await waiting

    def test_a_duplicate_lives_on(self, made: Made) -> None:
        with made.fence as fence:
            duplicate = fence.duplicate()
        assert made.fence.state is FenceState.UNKNOWN
        made.signal()
        assert duplicate.state is FenceState.SIGNALLED

    def test_the_descriptor_goes_with_the_last_object(self, made: Made) -> None:
        descriptor = made.fence.fileno()
        duplicate = made.fence.duplicate()
        made.fence.close()
        assert select.select([descriptor], [], [], 0) == ([], [], [])
        made.signal()
        duplicate.close()

    def test_a_closed_loop_is_no_obstacle(self, made: Made) -> None:
        async def leave() -> None:
            made.fence.add_done_callback(print)

        asyncio.run(leave())
        made.signal()
        assert made.fence.state is FenceState.SIGNALLED


class TestOwners:
    async def test_a_source_that_is_collected_leaves_an_error(self) -> None:
        fence, source = SyncFence.pair()
        imported = SyncFence.from_fd(fence.fileno())
        waiting = [asyncio.create_task(f.wait(20)) for f in (fence, imported)]
        await asyncio.sleep(0)
        del source
        for task in waiting:
            with pytest.raises(DeviceUnavailableError):
                await task
        assert "gone" in fence.reason

    def test_a_source_that_did_its_work_may_go(self) -> None:
        fence, source = SyncFence.pair()
        source.signal()
        del source
        assert fence.status is ErrorStatus.NONE

    async def test_a_source_in_a_cycle_leaves_an_error(self) -> None:
        fence, source = SyncFence.pair()
        cycle: list[object] = [source]
        cycle.append(cycle)
        waiting = asyncio.create_task(fence.wait(20))
        await asyncio.sleep(0)
        del source, cycle
        gc.collect()
        with pytest.raises(DeviceUnavailableError):
            await waiting


class TestHandles:
    @pytest.mark.parametrize("fds", [(), (0, 1)])
    def test_a_handle_has_one_descriptor(self, fds: tuple[int, ...]) -> None:
        with pytest.raises(InvalidArgumentError, match="one descriptor"):
            SyncFence.from_handle(Handle(fds))

    @pytest.mark.parametrize("fd", [-1, 1 << 20, 1 << 40])
    def test_a_descriptor_is_open(self, fd: int) -> None:
        with pytest.raises(
            InvalidArgumentError, match=r"descriptor -?\d+ of a fence: "
        ):
            SyncFence.from_fd(fd)

    def test_descriptors_that_have_run_out_are_no_fault_of_the_caller(self) -> None:
        fence, _ = SyncFence.pair()
        fd = fence.fileno()
        with only(0), pytest.raises(ResourceExhaustedTransientError):
            SyncFence.from_fd(fd)

    def test_the_handle_holds_the_descriptor(self, made: Made) -> None:
        assert made.fence.handle() == Handle((made.fence.fileno(),))
