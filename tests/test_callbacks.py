import asyncio
import gc

import pytest

from asyncnn.callbacks import (
    AlreadyNotifiedError,
    CallbackObject,
    ExecutionFuture,
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
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
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
