import asyncio
import gc

import anyio
import pytest

from asyncnn.callbacks import (
    AlreadyNotifiedError,
    CallbackObject,
    Completion,
    ExecutionFuture,
    ExecutionResult,
    FencedOutcome,
    OneShot,
    PreparedModelFuture,
)
from asyncnn.hal.errors import (
    GeneralFailureError,
    InvalidArgumentError,
    OutputInsufficientSizeError,
)
from asyncnn.hal.types import NO_TIMING, ErrorStatus, OutputShape, Timing
from asyncnn.turn import in_this_turn
from tests.waits import cancelled


class TestOneShot:
    def test_forwards_the_first_notification(self) -> None:
        seen: list[int] = []
        notify = OneShot(seen.append)
        assert not notify.is_done
        notify(7)
        assert seen == [7]
        assert notify.is_done

    def test_a_second_notification_is_an_error_that_reaches_nobody(self) -> None:
        seen: list[int] = []
        notify = OneShot(seen.append)
        notify(1)
        with pytest.raises(AlreadyNotifiedError):
            notify(2)
        assert seen == [1]

    def test_a_failing_callback_is_logged_and_counts_as_notified(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail() -> None:
            raise ValueError("client bug")

        notify = OneShot(fail)
        notify()
        assert "client bug" in caplog.text
        assert notify.is_done


class TestCompletion:
    def test_is_made_by_classes_that_say_how_to_abandon_it(self) -> None:
        class Named(Completion):
            def __init__(self, name: str, *, number: int) -> None:
                self.called = f"{name} {number}"

            def abandon(self) -> None:
                raise NotImplementedError

        assert Named("run", number=1).called == "run 1"
        with pytest.raises(TypeError, match="abstract"):
            Completion()  # type: ignore[abstract]


class TestDeath:
    def test_tells_every_recipient_once(self) -> None:
        told: list[str] = []
        callback = CallbackObject()
        callback.link_to_death(lambda: told.append("a"))
        callback.link_to_death(lambda: told.append("b"))
        callback.die()
        callback.die()
        assert told == ["a", "b"]
        assert callback.is_dead

    def test_a_late_recipient_is_told_at_once(self) -> None:
        told: list[str] = []
        callback = CallbackObject()
        callback.die()
        callback.link_to_death(lambda: told.append("late"))
        assert told == ["late"]

    def test_unlinked_recipients_are_not_told(self) -> None:
        told: list[str] = []
        callback = CallbackObject()
        callback.link_to_death(lambda: told.append("a"))
        callback.unlink_to_death()
        callback.die()
        assert not told


class TestExecutionFuture:
    async def test_awaiting_returns_what_was_notified(self) -> None:
        future = ExecutionFuture()
        shapes = (OutputShape((2, 3), True),)
        loop = asyncio.get_running_loop()
        loop.call_soon(future.notify_1_3, ErrorStatus.NONE, shapes, Timing(1, 2))
        result = await future
        result.raise_for_status()
        assert result.output_shapes == shapes
        assert result.timing == Timing(1, 2)

    async def test_a_second_notification_is_an_error(self) -> None:
        future = ExecutionFuture()
        future.notify_1_3(ErrorStatus.NONE, (), NO_TIMING)
        with pytest.raises(AlreadyNotifiedError):
            future.notify_1_3(ErrorStatus.NONE, (), NO_TIMING)

    async def test_cancelling_the_awaiting_task_kills_the_callback(self) -> None:
        future = ExecutionFuture()
        died = asyncio.Event()
        future.link_to_death(died.set)

        async def wait() -> None:
            await future

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        await cancelled(task)
        assert died.is_set()
        future.notify_1_3(ErrorStatus.NONE, (), NO_TIMING)  # too late, harmless

    async def test_insufficient_size_carries_the_shapes(self) -> None:
        future = ExecutionFuture()
        shapes = (OutputShape((4,), False),)
        future.notify_1_3(ErrorStatus.OUTPUT_INSUFFICIENT_SIZE, shapes, NO_TIMING)
        with pytest.raises(OutputInsufficientSizeError) as caught:
            (await future).raise_for_status()
        assert caught.value.output_shapes == shapes

    async def test_the_reason_becomes_the_message(self) -> None:
        future = ExecutionFuture()
        future.reason = "operand 3 is too large"
        future.notify_1_3(ErrorStatus.INVALID_ARGUMENT, (), NO_TIMING)
        with pytest.raises(InvalidArgumentError, match="operand 3 is too large"):
            (await future).raise_for_status()

    async def test_without_a_reason_the_message_says_what_failed(self) -> None:
        failed = ExecutionResult(ErrorStatus.GENERAL_FAILURE, (), NO_TIMING)
        with pytest.raises(GeneralFailureError, match="a burst failed: GENERAL"):
            failed.raise_for_status("a burst")

    async def test_what_is_given_up_has_the_result_that_it_is_given(self) -> None:
        future, died = ExecutionFuture(), asyncio.Event()
        future.link_to_death(died.set)
        given = ExecutionResult(ErrorStatus.DEVICE_UNAVAILABLE, (), NO_TIMING)
        asyncio.get_running_loop().call_soon(future.give_up, given)
        assert await future is given
        assert died.is_set()

    async def test_what_has_ended_is_not_given_up(self) -> None:
        future, died = ExecutionFuture(), asyncio.Event()
        future.notify_1_3(ErrorStatus.NONE, (), Timing(1, 2))
        future.link_to_death(died.set)
        future.give_up(ExecutionResult(ErrorStatus.DEVICE_UNAVAILABLE, (), NO_TIMING))
        assert (await future).timing == Timing(1, 2)
        assert not died.is_set()


class TestPreparedModelFuture:
    async def test_an_error_status_is_raised(self) -> None:
        future = PreparedModelFuture()
        future.notify_1_3(ErrorStatus.INVALID_ARGUMENT, None)
        with pytest.raises(InvalidArgumentError):
            await future

    async def test_success_without_a_model_is_a_failure(self) -> None:
        future = PreparedModelFuture()
        future.notify_1_3(ErrorStatus.NONE, None)
        with pytest.raises(GeneralFailureError):
            await future

    async def test_a_second_notification_is_an_error(self) -> None:
        future = PreparedModelFuture()
        future.notify_1_3(ErrorStatus.GENERAL_FAILURE, None)
        with pytest.raises(AlreadyNotifiedError):
            future.notify_1_3(ErrorStatus.GENERAL_FAILURE, None)
        with pytest.raises(GeneralFailureError):
            await future

    async def test_an_error_that_nobody_awaits_is_not_reported_as_lost(self) -> None:
        lost: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: lost.append(context))
        PreparedModelFuture().notify_1_3(ErrorStatus.GENERAL_FAILURE, None)
        gc.collect()
        await asyncio.sleep(0)
        assert not lost


def test_a_fenced_outcome_is_a_failure_until_it_is_filled_in() -> None:
    outcome = FencedOutcome()
    unknown = (ErrorStatus.GENERAL_FAILURE, NO_TIMING, NO_TIMING)
    assert outcome.get_execution_info() == unknown
    outcome.cancel()
    assert outcome.get_execution_info() == unknown
    outcome.complete(ErrorStatus.NONE, Timing(1, 3), Timing(1, 2))
    outcome.cancel()
    assert outcome.get_execution_info() == (
        ErrorStatus.NONE,
        Timing(1, 3),
        Timing(1, 2),
    )


class TestGoingOn:
    """Whoever awaits an end goes on in the turn of the loop that brings it."""

    RESULT = (ErrorStatus.NONE, (), NO_TIMING)

    async def test_in_the_same_turn_once_all_is_done(self) -> None:
        loop, order = asyncio.get_running_loop(), list[str]()
        futures = [ExecutionFuture() for _ in range(2)]

        async def wait(which: int) -> None:
            await futures[which]
            order.append(f"task {which}")

        def end_all() -> None:
            loop.call_soon(order.append, "the next turn")
            for which, future in enumerate(futures):
                future.notify_1_3(*self.RESULT)
                order.append(f"told {which}")

        tasks = [asyncio.create_task(wait(which)) for which in range(2)]
        await asyncio.sleep(0)
        loop.call_soon(in_this_turn, end_all)
        await asyncio.gather(*tasks)
        await asyncio.sleep(0)
        assert order == ["told 0", "told 1", "task 0", "task 1", "the next turn"]

    async def test_never_inside_another_task(self) -> None:
        future = ExecutionFuture()
        waiting = asyncio.ensure_future(self.awaiting(future))
        await asyncio.sleep(0)
        in_this_turn(lambda: future.notify_1_3(*self.RESULT))
        assert not waiting.done()
        assert (await waiting).status is ErrorStatus.NONE

    async def test_one_that_goes_on_may_end_another(self) -> None:
        loop = asyncio.get_running_loop()
        first, second = ExecutionFuture(), ExecutionFuture()

        async def end_second() -> None:
            await first
            in_this_turn(lambda: second.notify_1_3(*self.RESULT))

        tasks = asyncio.gather(end_second(), self.awaiting(second))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        loop.call_soon(in_this_turn, lambda: first.notify_1_3(*self.RESULT))
        async with asyncio.timeout(5):
            await tasks

    @pytest.mark.parametrize("order", ["cancelled first", "ended first"])
    async def test_a_cancel_in_the_same_turn(self, order: str) -> None:
        loop, future = asyncio.get_running_loop(), ExecutionFuture()
        task = asyncio.ensure_future(self.awaiting(future))
        await asyncio.sleep(0)

        def end() -> None:
            if order == "cancelled first":
                task.cancel()
            future.notify_1_3(*self.RESULT)
            if order == "ended first":
                task.cancel()

        loop.call_soon(in_this_turn, end)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert future.is_dead

    async def test_two_that_await_one_end(self) -> None:
        loop, future = asyncio.get_running_loop(), ExecutionFuture()
        both = asyncio.gather(self.awaiting(future), self.awaiting(future))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        loop.call_soon(in_this_turn, lambda: future.notify_1_3(*self.RESULT))
        first, second = await both
        assert first is second

    @pytest.mark.parametrize("around", ["timeout", "wait_for", "shield", "anyio"])
    async def test_within_what_others_offer(self, around: str) -> None:
        loop, future = asyncio.get_running_loop(), ExecutionFuture()
        loop.call_later(0.01, in_this_turn, lambda: future.notify_1_3(*self.RESULT))
        if around == "timeout":
            async with asyncio.timeout(5):
                result = await future
        elif around == "wait_for":
            result = await asyncio.wait_for(self.awaiting(future), 5)
        elif around == "shield":
            result = await asyncio.shield(self.awaiting(future))
        else:
            with anyio.fail_after(5):
                result = await future
        assert result.status is ErrorStatus.NONE

    @pytest.mark.parametrize("around", ["timeout", "wait_for", "anyio"])
    async def test_what_others_cancel_is_abandoned(self, around: str) -> None:
        future = ExecutionFuture()

        async def give_up() -> None:
            if around == "timeout":
                async with asyncio.timeout(0.01):
                    await future
            elif around == "wait_for":
                await asyncio.wait_for(self.awaiting(future), 0.01)
            else:
                with anyio.fail_after(0.01):
                    await future

        with pytest.raises(TimeoutError):
            await give_up()
        assert future.is_dead

    def test_an_interrupt_leaves_the_others_their_ends(self) -> None:
        futures: list[ExecutionFuture] = []
        ended: list[int] = []

        async def wait(which: int) -> None:
            await futures[which]
            if not which:
                raise KeyboardInterrupt
            ended.append(which)

        async def main() -> None:
            futures.extend(ExecutionFuture() for _ in range(3))
            tasks = [asyncio.create_task(wait(which)) for which in range(3)]
            await asyncio.sleep(0)

            def end_all() -> None:
                for future in futures:
                    future.notify_1_3(*self.RESULT)

            asyncio.get_running_loop().call_soon(in_this_turn, end_all)
            await asyncio.gather(*tasks[1:])

        loop = asyncio.new_event_loop()
        try:
            task = loop.create_task(main())
            with pytest.raises(KeyboardInterrupt):
                loop.run_until_complete(task)
            loop.run_until_complete(task)
        finally:
            loop.close()
        assert ended == [1, 2]

    async def awaiting(self, future: ExecutionFuture) -> ExecutionResult:
        return await future
