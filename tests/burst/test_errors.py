"""What an application is told of a burst that was closed, died or is busy."""

import asyncio
from typing import Any

import pytest

from asyncnn.burst import BurstController
from asyncnn.burst.controller import CLOSED
from asyncnn.burst.link import ENDED
from asyncnn.hal.errors import (
    AsyncnnError,
    BusyError,
    DeviceClosedError,
    DeviceUnavailableError,
    DriverDiedError,
    ForkedError,
    GeneralFailureError,
)
from asyncnn.hal.types import NO_TIMING, ErrorStatus, ExecutionOptions
from tests.burst.ends import Configured, ScriptedModel
from tests.burst.test_controller import Mortal, Refusing, a_request


class Fated(Mortal):
    """A model that may know why it has died."""

    def __init__(self) -> None:
        super().__init__()
        self.cause: DeviceUnavailableError | None = None

    def cause_of_death(self) -> DeviceUnavailableError | None:
        return None if self.cause is None else type(self.cause)(self.cause.message)

    async def configure_execution_burst(self, *given: Any) -> Configured:
        if self.cause is not None:
            return self.cause.status, None
        return await super().configure_execution_burst(*given)


async def error_of(burst: BurstController) -> AsyncnnError:
    result = await burst.execute(a_request())
    with pytest.raises(AsyncnnError) as caught:
        result.raise_for_status()
    assert caught.value.status is result.status
    return caught.value


class TestErrors:
    """What was closed, died and is busy are errors of their own."""

    async def test_a_burst_that_was_closed_here_is_closed(
        self, scripted_burst: BurstController
    ) -> None:
        scripted_burst.close()
        error = await error_of(scripted_burst)
        assert type(error) is DeviceClosedError
        assert str(error) == CLOSED

    async def test_what_waits_when_it_is_closed_learns_that(
        self, scripted: ScriptedModel, scripted_burst: BurstController
    ) -> None:
        scripted.outcome = None
        waiting = asyncio.create_task(error_of(scripted_burst))
        await scripted.launched()
        scripted_burst.close()
        assert type(await waiting) is DeviceClosedError

    async def test_an_execution_in_flight_makes_it_busy(
        self, scripted: ScriptedModel, scripted_burst: BurstController
    ) -> None:
        scripted.outcome = None
        first = asyncio.create_task(scripted_burst.execute(a_request()))
        await scripted.launched()
        assert type(await error_of(scripted_burst)) is BusyError
        scripted.end()
        await first

    @pytest.mark.parametrize(
        "cause", [None, DeviceClosedError("the device is closed"), ForkedError("no")]
    )
    async def test_the_model_may_know_why_the_driver_ended_it(
        self, cause: DeviceUnavailableError | None
    ) -> None:
        fated = Fated()
        with await BurstController.open(fated) as burst:
            fated.outcome = None
            waiting = asyncio.create_task(error_of(burst))
            await fated.launched()
            fated.cause = cause
            fated.end_burst()
            error = await waiting
            expected = DriverDiedError(ENDED) if cause is None else cause
            assert type(error) is type(expected)
            assert str(error) == str(expected)
            if cause is not None:
                again = await error_of(burst)
                assert (type(again), str(again)) == (type(error), str(error))

    async def test_opening_one_of_a_model_that_died_says_why(self) -> None:
        fated = Fated()
        fated.cause = DeviceClosedError("the device is closed")
        with pytest.raises(DeviceClosedError, match="the device is closed"):
            await BurstController.open(fated)

    async def test_a_burst_that_cannot_be_opened_anew_fails_as_opening_does(
        self,
    ) -> None:
        mortal = Refusing()
        mortal.configure_execution_burst = (  # type: ignore[method-assign]
            Mortal().configure_execution_burst
        )
        with await BurstController.open(mortal) as burst:
            del mortal.configure_execution_burst
            burst._link._context.die()
            error = await error_of(burst)
        assert type(error) is GeneralFailureError
        assert "opening it anew failed" in str(error)


async def test_closing_ends_what_goes_by_another_call(
    scripted: ScriptedModel, scripted_burst: BurstController
) -> None:
    """It is told at once, even by a driver that does not answer."""
    scripted.outcome = None
    options = ExecutionOptions(loop_timeout=1_000_000)
    task = asyncio.create_task(scripted_burst.execute(a_request(), options))
    await scripted.launched()
    callback, stopped = scripted.callback, []
    assert callback is not None
    callback.unlink_to_death()
    callback.link_to_death(lambda: stopped.append(True))
    scripted_burst.close()
    async with asyncio.timeout(20):
        result = await task
    assert (result.kind, result.reason) == (DeviceClosedError, CLOSED)
    assert stopped == [True]
    callback.notify_1_3(ErrorStatus.NONE, (), NO_TIMING)  # late, and for nobody
