"""The application's side of bursts."""

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncnn.burst import BurstController
from asyncnn.burst.controller import CLOSED, IN_FLIGHT
from asyncnn.burst.link import ENDED
from asyncnn.burst.packets import ResultShape
from asyncnn.callbacks import ExecutionResult
from asyncnn.devices import ReferenceDevice
from asyncnn.fmq import MemoryOrderError, MessageQueue
from asyncnn.fmq.layout import READ
from asyncnn.hal.errors import AsyncnnError, GeneralFailureError
from asyncnn.hal.interfaces import IBurstContext, IPreparedModel
from asyncnn.hal.types import (
    NO_TIMING,
    UINT64_MAX,
    BufferToken,
    ErrorStatus,
    ExecutionOptions,
    MeasureTiming,
    OutputShape,
    Request,
    RequestArgument,
    Timing,
)
from asyncnn.runtime.device import Device
from tests.burst.ends import (
    ADDITION,
    Configured,
    ScriptedModel,
    a_request,
    addition_pools,
    buffers_of,
    by,
    result_of,
    soon,
)
from tests.fmq.words import add_to_word
from tests.networks import addition
from tests.waits import cancelled, until


@pytest.fixture
async def burst(prepared: IPreparedModel) -> AsyncIterator[BurstController]:
    with await BurstController.open(prepared) as burst:
        yield burst


async def test_requests_are_executed(burst: BurstController) -> None:
    request = a_request()
    for sent in (1, 2, 3):
        result = await burst.execute(request)
        assert result.status is ErrorStatus.NONE
        assert result_of(request.pools[1]) == [11, 22, 33, 44]
        assert burst.statistics().sent == sent
    assert burst.statistics().fallbacks == 0


async def test_timing_is_reported_when_asked_for(burst: BurstController) -> None:
    request = a_request()
    for measure in (MeasureTiming.NO, MeasureTiming.YES) * 2:
        timing = (await burst.execute(request, ExecutionOptions(measure))).timing
        assert (timing.time_in_driver < UINT64_MAX) is (measure is MeasureTiming.YES)


async def test_an_invalid_request_is_refused_by_the_driver_not_sent_elsewhere(
    burst: BurstController,
) -> None:
    request = a_request()
    broken = Request(request.inputs[:1], request.outputs, request.pools)
    result = await burst.execute(broken, ExecutionOptions(MeasureTiming.YES))
    assert result == ExecutionResult(ErrorStatus.INVALID_ARGUMENT, (), NO_TIMING)
    assert burst.statistics().fallbacks == 0
    assert (await burst.execute(request)).status is ErrorStatus.NONE


async def test_a_result_that_was_seen_before_is_the_same_object(
    scripted: ScriptedModel, scripted_burst: BurstController
) -> None:
    request = a_request()
    shapes = (OutputShape((4,), True),)
    scripted.outcome = (ErrorStatus.NONE, shapes, NO_TIMING)
    first = await scripted_burst.execute(request)
    assert await scripted_burst.execute(request) is first
    scripted.outcome = (ErrorStatus.NONE, shapes, Timing(1, 2))
    timed = await scripted_burst.execute(request, ExecutionOptions(MeasureTiming.YES))
    assert timed.output_shapes is first.output_shapes
    assert timed.timing.time_on_device == 1


async def test_a_second_request_in_flight_is_a_general_failure(
    scripted: ScriptedModel, scripted_burst: BurstController
) -> None:
    scripted.outcome = None
    first = asyncio.ensure_future(scripted_burst.execute(a_request()))
    await scripted.launched()
    second = await scripted_burst.execute(a_request())
    assert second.status is ErrorStatus.GENERAL_FAILURE
    assert second.reason == IN_FLIGHT
    scripted.end()
    assert (await first).status is ErrorStatus.NONE


async def test_cancelling_stops_the_execution_and_the_burst_goes_on(
    scripted: ScriptedModel, scripted_burst: BurstController
) -> None:
    for round_ in (1, 2):
        scripted.outcome = None
        task = asyncio.ensure_future(scripted_burst.execute(a_request()))
        await scripted.launched()
        await cancelled(task)
        assert scripted.killed == round_
        scripted.outcome = (ErrorStatus.NONE, (), NO_TIMING)
        result = await scripted_burst.execute(a_request())
        assert result.status is ErrorStatus.NONE, "that is the second one's"


async def test_the_next_request_waits_until_a_cancelled_one_has_ended(
    scripted: ScriptedModel, scripted_burst: BurstController
) -> None:
    scripted.outcome = None
    task = asyncio.ensure_future(scripted_burst.execute(a_request()))
    await scripted.launched()
    scripted.callback.unlink_to_death()  # it does not listen
    task.cancel()
    await asyncio.wait([task])
    following = asyncio.ensure_future(scripted_burst.execute(a_request()))
    await asyncio.sleep(0.01)
    assert len(scripted.requests) == 1
    following.cancel()
    await asyncio.wait([following])
    following = asyncio.ensure_future(scripted_burst.execute(a_request()))
    await asyncio.sleep(0.01)
    scripted.outcome = (ErrorStatus.NONE, (), Timing(7, 8))
    scripted.end()
    assert (await following).timing.time_on_device == 7


class TestPools:
    async def test_pools_get_slots_when_they_are_used(
        self, burst: BurstController
    ) -> None:
        first, second = a_request(), a_request()
        for request in (first, second, first):
            await burst.execute(request)
        assert burst.statistics().slots == 4

    async def test_a_freed_pool_is_made_known_again(
        self, burst: BurstController
    ) -> None:
        request = a_request()
        await burst.execute(request)
        burst.free_memory(request.pools[0])
        burst.free_memory(request.pools[0])
        assert burst.statistics().slots == 1
        assert (await burst.execute(request)).status is ErrorStatus.NONE

    async def test_pools_that_are_gone_are_forgotten_by_the_driver(
        self, scripted: ScriptedModel, scripted_burst: BurstController
    ) -> None:
        first, second = a_request(), a_request()
        freed: list[int] = []
        context = scripted_burst._link._context
        context.free_memory = freed.append
        await scripted_burst.execute(first)
        del first
        scripted.requests.clear()
        await scripted_burst.execute(second)
        context._binder.clear()  # the driver in this process is their last user
        gc.collect()
        await until(lambda: sorted(freed) == [0, 1])


class TestFallback:
    """What cannot be sent goes by `execute_1_3`, and that can be seen."""

    async def test_without_memory_order_nothing_is_sent(
        self,
        prepared: IPreparedModel,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        def refuse(quantum: int, count: int) -> MessageQueue:
            raise MemoryOrderError("plain stores are not ordered here")

        monkeypatch.setattr(MessageQueue, "create", refuse)
        with await BurstController.open(prepared) as burst:
            assert "not ordered here" in caplog.text
            for _ in range(2):
                assert (await burst.execute(a_request())).status is ErrorStatus.NONE
            burst.free_memory(addition_pools()[0])
            statistics = burst.statistics()
        assert (await burst.execute(a_request())).reason == CLOSED
        assert (statistics.sent, statistics.fallbacks) == (0, 2)
        assert "no queues" in statistics.fallback_reason

    async def test_a_loop_timeout_goes_by_the_call_that_has_room_for_it(
        self, scripted: ScriptedModel, scripted_burst: BurstController
    ) -> None:
        options = ExecutionOptions(loop_timeout=1_000_000)
        result = await scripted_burst.execute(a_request(), options)
        assert result.status is ErrorStatus.NONE
        assert scripted.loop_timeouts == [1_000_000]
        assert scripted_burst.statistics().fallbacks == 1

    @pytest.mark.parametrize(
        ("request_", "reason"),
        [
            pytest.param(
                Request(
                    ADDITION.inputs, ADDITION.outputs, (BufferToken(1), BufferToken(1))
                ),
                "several tokens",
                id="token",
            ),
            pytest.param(
                Request((RequestArgument(dimensions=(1,) * 2000),), (), ()),
                "longer than the queue",
                id="length",
            ),
            pytest.param(
                Request((RequestArgument(dimensions=(-1,)),), (), ()),
                "no packet can hold",
                id="number",
            ),
        ],
    )
    async def test_a_request_that_cannot_be_sent_is_executed_without(
        self,
        scripted: ScriptedModel,
        scripted_burst: BurstController,
        request_: Request,
        reason: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        assert (await scripted_burst.execute(request_)).status is ErrorStatus.NONE
        assert scripted.requests == [request_]
        statistics = scripted_burst.statistics()
        assert (statistics.sent, statistics.fallbacks) == (0, 1)
        assert reason in statistics.fallback_reason
        assert reason in caplog.text
        assert (await scripted_burst.execute(a_request())).status is ErrorStatus.NONE
        assert scripted_burst.statistics().sent == 1


class TestEnding:
    async def test_a_closed_burst_takes_no_requests(
        self, burst: BurstController
    ) -> None:
        await burst.execute(a_request())
        burst.close()
        burst.close()
        result = await burst.execute(a_request())
        assert result.status is ErrorStatus.DEVICE_UNAVAILABLE
        assert result.reason == CLOSED

    async def test_closing_ends_what_waits_and_stops_what_runs(
        self, scripted: ScriptedModel, scripted_burst: BurstController
    ) -> None:
        scripted.outcome = None
        task = asyncio.ensure_future(scripted_burst.execute(a_request()))
        await scripted.launched()
        scripted_burst.close()
        assert (await task).status is ErrorStatus.DEVICE_UNAVAILABLE
        assert scripted.killed == 1

    async def test_closing_the_device_ends_its_bursts(self) -> None:
        async with ReferenceDevice() as device:
            prepared = (await Device("reference", device).prepare(addition(4))).hal
            burst = await BurstController.open(prepared)
            await burst.execute(a_request())
        result = await burst.execute(a_request())
        assert result.status is ErrorStatus.DEVICE_UNAVAILABLE
        assert result.reason == "the device is closed"

    async def test_a_malformed_result_is_a_general_failure(
        self, scripted: ScriptedModel, scripted_burst: BurstController
    ) -> None:
        driver = scripted_burst._link._context
        driver._result = ResultShape(ErrorStatus.NONE, (), bytes(24))
        result = await scripted_burst.execute(a_request())
        assert result.status is ErrorStatus.GENERAL_FAILURE
        assert "malformed" in result.reason

    async def test_an_impossible_counter_ends_the_burst(
        self, scripted: ScriptedModel, scripted_burst: BurstController
    ) -> None:
        add_to_word(scripted_burst._link._requests, READ, 2**50)
        result = await scripted_burst.execute(a_request())
        assert result.status is ErrorStatus.DEVICE_UNAVAILABLE
        assert "unread" in result.reason


class Mortal(ScriptedModel):
    """A model whose bursts can be ended; opening one waits until it ``may_open``."""

    def __init__(self) -> None:
        super().__init__()
        self.served: list[IBurstContext] = []
        self.may_open = asyncio.Event()
        self.may_open.set()

    async def configure_execution_burst(self, *given: Any) -> Configured:
        await self.may_open.wait()
        status, context = await super().configure_execution_burst(*given)
        assert context is not None
        self.served.append(context)
        return status, context

    def end_burst(self) -> None:
        self.served[-1].die()


class TestReopening:
    async def test_what_was_under_way_fails_and_the_next_succeeds(self) -> None:
        mortal = Mortal()
        with await BurstController.open(mortal, queue_length=64) as burst:
            mortal.outcome = None
            task = asyncio.ensure_future(burst.execute(a_request()))
            await mortal.launched()
            mortal.end_burst()
            result = await task
            assert result.status is ErrorStatus.DEVICE_UNAVAILABLE
            assert result.reason == ENDED
            mortal.outcome = (ErrorStatus.NONE, (), NO_TIMING)
            for sent in (2, 3):
                result = await burst.execute(a_request())
                assert result.status is ErrorStatus.NONE
                assert burst.statistics().sent == sent
            assert burst.statistics().reopened == 1
            assert len(mortal.served) == 2

    async def test_the_same_request_is_sent_with_slots_of_the_new_burst(self) -> None:
        mortal = Mortal()
        request = a_request()
        with await BurstController.open(mortal) as burst:
            for _ in range(3):
                await burst.execute(request)
                assert burst.statistics().slots == 2
                mortal.end_burst()
        pools = [buffers_of(each.pools) for each in mortal.requests]
        assert pools == [buffers_of(request.pools)] * 3

    async def test_closing_meanwhile_closes_the_new_burst(self) -> None:
        mortal = Mortal()
        burst = await BurstController.open(mortal)
        mortal.end_burst()
        mortal.may_open.clear()
        task = asyncio.ensure_future(burst.execute(a_request()))
        await asyncio.sleep(0)
        burst.close()
        mortal.may_open.set()
        result = await task
        assert result.status is ErrorStatus.DEVICE_UNAVAILABLE
        assert result.reason == CLOSED
        assert mortal.served[-1].is_dead
        assert mortal.requests == []

    async def test_cancelling_meanwhile_leaves_it_to_the_next(self) -> None:
        mortal = Mortal()
        with await BurstController.open(mortal) as burst:
            mortal.end_burst()
            mortal.may_open.clear()
            task = asyncio.ensure_future(burst.execute(a_request()))
            await asyncio.sleep(0)
            await cancelled(task)
            mortal.may_open.set()
            assert (await burst.execute(a_request())).status is ErrorStatus.NONE
            assert burst.statistics().reopened == 1

    async def test_a_driver_that_does_not_answer_keeps_no_deadline_waiting(
        self,
    ) -> None:
        mortal = Mortal()
        with await BurstController.open(mortal, deadline_grace=0.01) as burst:
            mortal.end_burst()
            mortal.may_open.clear()
            async with asyncio.timeout(20):
                result = await burst.execute(a_request(), by(soon()))
            assert result.status is ErrorStatus.MISSED_DEADLINE_TRANSIENT
            mortal.may_open.set()
            result = await burst.execute(a_request(), by(soon(60)))
            assert result.status is ErrorStatus.NONE


class Refusing(ScriptedModel):
    """A model that takes no bursts."""

    async def configure_execution_burst(self, *given: Any) -> Configured:
        return ErrorStatus.GENERAL_FAILURE, None


async def test_a_driver_that_refuses_bursts_is_no_reason_to_go_without() -> None:
    with pytest.raises(GeneralFailureError, match="takes no burst"):
        await BurstController.open(Refusing())


async def test_a_queue_that_cannot_be_is_refused(scripted: ScriptedModel) -> None:
    with pytest.raises(AsyncnnError):
        await BurstController.open(scripted, queue_length=0)
