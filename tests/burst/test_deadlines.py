"""Deadlines of bursts, which follow packets."""

import asyncio
import time
from typing import Any

import pytest

from asyncnn.burst import BurstController
from asyncnn.burst.packets import DATUM_BYTES, with_deadline
from asyncnn.burst.slots import PoolSlots
from asyncnn.hal.types import (
    NO_TIMING,
    UINT64_MAX,
    BufferToken,
    ErrorStatus,
    ExecutionOptions,
    MeasureTiming,
    Request,
    Timing,
)
from tests.burst.ends import (
    ADDITION,
    Configured,
    KnownPools,
    ScriptedModel,
    a_request,
    addition_pools,
    by,
    served,
    soon,
)
from tests.waits import until

NONE = ErrorStatus.NONE


class StrictModel(ScriptedModel):
    """One whose bursts take the HAL's packets alone."""

    async def configure_execution_burst(
        self, callback: PoolSlots, *channels: Any
    ) -> Configured:
        callback.carries_deadlines = False
        return await super().configure_execution_burst(callback, *channels)


class TestWithoutCarriedDeadlines:
    async def test_one_is_kept_at_this_end_by_cancelling(self) -> None:
        strict = StrictModel()
        with await BurstController.open(strict) as burst:
            assert (await burst.execute(a_request(), by(soon(60)))).status is NONE
            strict.outcome = None
            result = await burst.execute(a_request(), by(soon()))
            assert result.status is ErrorStatus.MISSED_DEADLINE_TRANSIENT
            assert strict.killed == 1
            strict.outcome = (NONE, (), NO_TIMING)
            assert (await burst.execute(a_request(), by(soon(60)))).status is NONE
            assert strict.deadlines == [None] * 3
            assert burst.statistics().fallbacks == 0

    async def test_a_driver_that_does_not_stop_is_left_to_itself(self) -> None:
        strict = StrictModel()
        strict.outcome = None
        with await BurstController.open(strict, deadline_grace=0.01) as burst:
            executing = asyncio.ensure_future(burst.execute(a_request(), by(soon(0.2))))
            await strict.launched()
            assert strict.callback is not None
            strict.callback.unlink_to_death()  # it does not listen
            assert "has not answered" in (await executing).reason
            strict.end()


class TestDeadlines:
    async def test_one_later_than_the_hal_can_tell_is_its_last(
        self, scripted: ScriptedModel, scripted_burst: BurstController
    ) -> None:
        result = await scripted_burst.execute(a_request(), by(2**80))
        assert result.status is NONE
        assert scripted.deadlines == [UINT64_MAX]

    async def test_one_for_which_the_queue_has_no_room_goes_another_way(
        self, scripted: ScriptedModel
    ) -> None:
        count = ADDITION.size_bytes // DATUM_BYTES
        with await BurstController.open(scripted, queue_length=count) as burst:
            for options in (ExecutionOptions(), by(soon(60))):
                assert (await burst.execute(a_request(), options)).status is NONE
            assert (burst.statistics().sent, burst.statistics().fallbacks) == (1, 1)

    async def test_an_execution_is_cancelled_when_its_deadline_passes(
        self, scripted: ScriptedModel, scripted_burst: BurstController
    ) -> None:
        scripted.outcome = None
        result = await scripted_burst.execute(a_request(), by(soon()))
        assert result.status is ErrorStatus.MISSED_DEADLINE_TRANSIENT
        assert scripted.killed == 1
        scripted.outcome = (ErrorStatus.NONE, (), NO_TIMING)
        result = await scripted_burst.execute(a_request(), by(soon(60)))
        assert result.status is ErrorStatus.NONE

    async def test_the_driver_knows_it_with_the_packet(
        self, scripted: ScriptedModel, scripted_burst: BurstController
    ) -> None:
        request, deadline = a_request(), soon(60)
        for options in (by(deadline), ExecutionOptions(), by(deadline + 1)):
            result = await scripted_burst.execute(request, options)
            assert result.status is ErrorStatus.NONE
        assert scripted.deadlines == [deadline, None, deadline + 1]
        assert scripted_burst.statistics().fallbacks == 0

    @pytest.mark.parametrize(
        "status", [s for s in ErrorStatus if s > ErrorStatus.INVALID_ARGUMENT]
    )
    async def test_its_answer_has_a_status_of_hal_1_3(
        self,
        scripted: ScriptedModel,
        scripted_burst: BurstController,
        status: ErrorStatus,
    ) -> None:
        scripted.outcome = (status, (), NO_TIMING)
        request = a_request()
        for _ in range(2):
            result = await scripted_burst.execute(request, by(soon(60)))
            assert result.status is status
            result = await scripted_burst.execute(request)
            assert result.status is ErrorStatus.GENERAL_FAILURE

    async def test_one_that_does_not_end_by_that_is_left_to_itself(
        self, scripted: ScriptedModel
    ) -> None:
        scripted.outcome = None
        with await BurstController.open(scripted, deadline_grace=0.01) as burst:
            executing = asyncio.ensure_future(burst.execute(a_request(), by(soon(0.2))))
            await scripted.launched()
            scripted.callback.unlink_to_death()  # it does not listen
            result = await executing
            assert result.status is ErrorStatus.MISSED_DEADLINE_TRANSIENT
            assert "has not answered" in result.reason
            result = await burst.execute(a_request(), by(soon()))
            assert result.status is ErrorStatus.MISSED_DEADLINE_TRANSIENT
            assert "before it" in result.reason
            assert burst.statistics().sent == 1
            scripted.outcome = (ErrorStatus.NONE, (), Timing(7, 8))
            scripted.end()
            result = await burst.execute(a_request(), by(soon(60)))
            assert result.timing.time_on_device == 7

    async def test_a_result_in_time_counts_though_the_deadline_passed_meanwhile(
        self, scripted: ScriptedModel
    ) -> None:
        scripted.outcome = None
        with await BurstController.open(scripted, deadline_grace=60) as burst:
            deadline = soon()
            executing = asyncio.ensure_future(burst.execute(a_request(), by(deadline)))
            await scripted.launched()
            await until(lambda: time.monotonic_ns() > deadline)
            scripted.end()
            assert (await executing).status is ErrorStatus.NONE

    async def test_one_that_goes_another_way_takes_its_deadline_along(
        self, scripted: ScriptedModel, scripted_burst: BurstController
    ) -> None:
        scripted.outcome = (ErrorStatus.NONE, (), NO_TIMING)
        deadline = soon(60)
        request = a_request()
        # Two objects for one buffer, so its slot belongs to the first alone.
        tokens = BufferToken(1), BufferToken(1)
        with_token = Request(request.inputs, request.outputs, tokens)
        await scripted_burst.execute(with_token, by(deadline))
        assert scripted.deadlines == [deadline]


async def test_one_follows_a_packet_where_that_was_agreed(
    scripted: ScriptedModel,
) -> None:
    known = KnownPools(dict(enumerate(addition_pools())))
    packet = ADDITION.encode((0, 1), MeasureTiming.NO)
    sent = with_deadline(packet, 2**63)
    async with served(scripted, known) as ends:
        assert (await ends(sent)).status is ErrorStatus.GENERAL_FAILURE
    known.carries_deadlines = True
    async with served(scripted, known) as ends:
        for each in (sent, packet):
            assert (await ends(each)).status is ErrorStatus.NONE
        # It is one datum, the last one, and no packet by itself.
        for each in (sent[-DATUM_BYTES:], with_deadline(sent, 1)):
            assert (await ends(each)).status is ErrorStatus.GENERAL_FAILURE
    assert scripted.deadlines == [2**63, None]
