"""The driver's side of bursts."""

import asyncio
import gc
import weakref
from collections.abc import Sequence

import pytest

from asyncnn.burst import slots as slots_module
from asyncnn.burst.packets import DATUM_BYTES, RequestShape
from asyncnn.callbacks import ExecutionResult
from asyncnn.fmq.layout import READ, WRITTEN
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.interfaces import IPreparedModel
from asyncnn.hal.types import (
    NO_TIMING,
    UINT64_MAX,
    DataLocation,
    ErrorStatus,
    MeasureTiming,
    Memory,
    OutputShape,
    RequestArgument,
    Timing,
)
from asyncnn.memory.shared import allocate
from tests.burst.ends import (
    ADDITION,
    KnownPools,
    ScriptedModel,
    addition_pools,
    buffers_of,
    result_of,
    served,
)
from tests.fmq.words import add_to_word
from tests.waits import until

PACKET = ADDITION.encode((4, 9), MeasureTiming.NO)
TIMED = ADDITION.encode((4, 9), MeasureTiming.YES)
INVALID_SLOT = 2**31 - 1


@pytest.fixture
def known() -> KnownPools:
    inputs, outputs = addition_pools()
    return KnownPools({4: inputs, 9: outputs})


def failed(status: ErrorStatus) -> ExecutionResult:
    return ExecutionResult(status, (), NO_TIMING)


async def test_a_request_is_executed(
    prepared: IPreparedModel, known: KnownPools
) -> None:
    async with served(prepared, known) as ends:
        result = await ends(PACKET)
    assert result.status is ErrorStatus.NONE
    assert result.output_shapes in ((), (OutputShape((4,), True),))
    assert result.timing == NO_TIMING
    assert result_of(known.pools[9]) == [11, 22, 33, 44]


async def test_timing_is_measured_when_asked_for(
    prepared: IPreparedModel, known: KnownPools
) -> None:
    async with served(prepared, known) as ends:
        timing = (await ends(TIMED)).timing
    assert timing.time_on_device <= timing.time_in_driver < UINT64_MAX


async def test_time_in_driver_begins_when_the_packet_is_taken(
    scripted: ScriptedModel, known: KnownPools
) -> None:
    scripted.outcome = (ErrorStatus.NONE, (), Timing(3, 2**40))
    async with served(scripted, known) as ends:
        timing = (await ends(TIMED)).timing
    assert timing.time_on_device == 3
    assert timing.time_in_driver < 5_000_000


async def test_a_repeated_packet_is_the_same_request(
    scripted: ScriptedModel, known: KnownPools
) -> None:
    async with served(scripted, known) as ends:
        for _ in range(3):
            await ends(PACKET)
    assert scripted.requests[0] is scripted.requests[1] is scripted.requests[2]
    assert known.asked == [[4, 9]]


async def test_other_slots_are_other_pools(
    scripted: ScriptedModel, known: KnownPools
) -> None:
    known.pools[5] = allocate(64)
    async with served(scripted, known) as ends:
        await ends(PACKET)
        await ends(ADDITION.encode((4, 5), MeasureTiming.NO))
    first, second = scripted.requests
    assert (first.inputs, first.outputs) == (second.inputs, second.outputs)
    expected = buffers_of((known.pools[4], known.pools[5]))
    assert buffers_of(second.pools) == expected
    assert known.asked == [[4, 9], [5]]


async def test_slots_are_asked_for_once_each(
    scripted: ScriptedModel, known: KnownPools
) -> None:
    shape = RequestShape.of((), (), 3)
    async with served(scripted, known) as ends:
        await ends(shape.encode((9, 4, 9), MeasureTiming.NO))
    assert known.asked == [[9, 4]]


async def test_an_unknown_slot_is_an_invalid_argument(
    scripted: ScriptedModel, known: KnownPools
) -> None:
    async with served(scripted, known) as ends:
        result = await ends(ADDITION.encode((4, INVALID_SLOT), MeasureTiming.YES))
        assert result == failed(ErrorStatus.INVALID_ARGUMENT)
        assert (await ends(PACKET)).status is ErrorStatus.NONE
    assert known.asked == [[4, INVALID_SLOT], [4, 9]]


async def test_a_request_that_breaks_a_rule_is_an_invalid_argument(
    prepared: IPreparedModel, known: KnownPools
) -> None:
    shape = RequestShape.of(ADDITION.inputs[:1], ADDITION.outputs, 2)
    async with served(prepared, known) as ends:
        result = await ends(shape.encode((4, 9), MeasureTiming.YES))
        assert result == failed(ErrorStatus.INVALID_ARGUMENT)
        assert (await ends(PACKET)).status is ErrorStatus.NONE


class Unhelpful(KnownPools):
    """An application that answers as ``how`` says."""

    def __init__(self, how: str) -> None:
        inputs, outputs = addition_pools()
        super().__init__({4: inputs, 9: outputs})
        self.how = how

    async def get_memories(
        self, slots: Sequence[int]
    ) -> tuple[ErrorStatus, tuple[Memory, ...]]:
        status, found = await super().get_memories(slots)
        match self.how:
            case "too few":
                return status, found[:1]
            case "too many":
                return status, found * 2
            case "raises":
                raise KeyError("no idea")
            case "fails":
                raise GeneralFailureError("no memory")
            case "hangs":
                await asyncio.Event().wait()
            case "busy":
                return ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT, ()
        return status, found


@pytest.mark.parametrize(
    "how", ["too few", "too many", "raises", "fails", "hangs", "busy"]
)
async def test_memories_that_do_not_come_fail_the_request_alone(
    scripted: ScriptedModel, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots_module, "GET_MEMORIES_TIMEOUT_S", 0.05)
    callback = Unhelpful(how)
    async with served(scripted, callback) as ends:
        assert await ends(TIMED) == failed(ErrorStatus.GENERAL_FAILURE)
        callback.how = "well"
        assert (await ends(TIMED)).status is ErrorStatus.NONE
    assert len(scripted.requests) == 1
    assert callback.asked == [[4, 9], [4, 9]]


@pytest.mark.parametrize(
    "status", [s for s in ErrorStatus if s > ErrorStatus.INVALID_ARGUMENT]
)
async def test_statuses_that_bursts_do_not_know_are_general_failures(
    scripted: ScriptedModel, known: KnownPools, status: ErrorStatus
) -> None:
    scripted.outcome = (status, (), NO_TIMING)
    async with served(scripted, known) as ends:
        assert await ends(PACKET) == failed(ErrorStatus.GENERAL_FAILURE)


async def test_shapes_of_insufficient_outputs_travel(
    scripted: ScriptedModel, known: KnownPools
) -> None:
    shapes = (OutputShape((2, 0), False), OutputShape((7,), True))
    scripted.outcome = (ErrorStatus.OUTPUT_INSUFFICIENT_SIZE, shapes, NO_TIMING)
    async with served(scripted, known) as ends:
        result = await ends(PACKET)
    assert result == ExecutionResult(
        ErrorStatus.OUTPUT_INSUFFICIENT_SIZE, shapes, NO_TIMING
    )


class SlowPools(KnownPools):
    """An application that answers when it may."""

    def __init__(self, pools: dict[int, Memory]) -> None:
        super().__init__(pools)
        self.may_answer = asyncio.Event()

    async def get_memories(
        self, slots: Sequence[int]
    ) -> tuple[ErrorStatus, tuple[Memory, ...]]:
        answer = await super().get_memories(slots)
        await self.may_answer.wait()
        return answer


class TestFreeing:
    async def test_a_freed_slot_is_asked_for_again(
        self, scripted: ScriptedModel, known: KnownPools
    ) -> None:
        async with served(scripted, known) as ends:
            await ends(PACKET)
            known.pools[9] = allocate(64)
            ends.context.free_memory(9)
            await ends(PACKET)
        assert known.asked == [[4, 9], [9]]
        assert scripted.requests[1].pools[1].buffer is known.pools[9].buffer

    async def test_freeing_unknown_slots_and_freeing_twice_has_no_effect(
        self, scripted: ScriptedModel, known: KnownPools
    ) -> None:
        async with served(scripted, known) as ends:
            await ends(PACKET)
            for slot in (9, 9, 77, INVALID_SLOT, -1):
                ends.context.free_memory(slot)
            assert (await ends(PACKET)).status is ErrorStatus.NONE

    async def test_a_slot_freed_meanwhile_is_forgotten_before_the_next_request(
        self, scripted: ScriptedModel, known: KnownPools
    ) -> None:
        scripted.outcome = None
        async with served(scripted, known) as ends:
            for expected in ([[4, 9]], [[4, 9], [4]]):
                ends.requests.write_nowait(PACKET)
                await scripted.launched()
                assert known.asked == expected
                ends.context.free_memory(4)
                scripted.end()
                await ends.receive()

    async def test_a_slot_freed_while_it_is_asked_for_is_not_remembered(
        self, scripted: ScriptedModel
    ) -> None:
        callback = SlowPools({4: allocate(128), 9: allocate(64)})
        async with served(scripted, callback) as ends:
            ends.requests.write_nowait(PACKET)
            await callback.was_asked.wait()
            ends.context.free_memory(9)
            callback.may_answer.set()
            await ends.receive()
            callback.pools[9] = allocate(64)
            await ends(PACKET)
        assert callback.asked == [[4, 9], [9]]
        assert scripted.requests[1].pools[1].buffer is callback.pools[9].buffer

    async def test_a_known_slot_freed_while_others_are_asked_for_serves_its_request(
        self, scripted: ScriptedModel, known: KnownPools
    ) -> None:
        callback = SlowPools(known.pools | {5: allocate(64)})
        callback.may_answer.set()
        async with served(scripted, callback) as ends:
            await ends(PACKET)
            callback.may_answer.clear()
            callback.was_asked.clear()
            ends.requests.write_nowait(ADDITION.encode((4, 5), MeasureTiming.NO))
            await callback.was_asked.wait()
            ends.context.free_memory(4)
            callback.may_answer.set()
            assert (await ends.receive()).status is ErrorStatus.NONE
            await ends(PACKET)
        assert callback.asked == [[4, 9], [5], [4]]

    async def test_a_freed_memory_is_let_go(
        self, scripted: ScriptedModel, known: KnownPools
    ) -> None:
        async with served(scripted, known) as ends:
            await ends(PACKET)
            scripted.requests.clear()
            gone = weakref.ref(known.pools.pop(9))
            ends.context.free_memory(9)
            gc.collect()
            assert gone() is None

    async def test_slots_used_least_are_forgotten_when_there_are_too_many(
        self,
        scripted: ScriptedModel,
        known: KnownPools,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(slots_module, "MAX_CACHED_SLOTS", 2)
        monkeypatch.setattr(slots_module, "MAX_BOUND", 1)
        known.pools[5], known.pools[6] = allocate(64), allocate(64)
        async with served(scripted, known) as ends:
            for slots in ((4, 9), (4, 5), (4, 6), (4, 9)):
                await ends(ADDITION.encode(slots, MeasureTiming.NO))
        assert known.asked == [[4, 9], [5], [6], [9]]


class TestEnding:
    async def test_closing_stops_what_runs_without_a_result(
        self, scripted: ScriptedModel, known: KnownPools
    ) -> None:
        scripted.outcome = None
        async with served(scripted, known) as ends:
            ends.requests.write_nowait(PACKET)
            await scripted.launched()
            ends.context.close()
            await asyncio.sleep(0)
            assert scripted.killed == 1
            assert ends.results.read_nowait() is None

    async def test_closing_lets_go_of_memories(
        self, scripted: ScriptedModel, known: KnownPools
    ) -> None:
        async with served(scripted, known) as ends:
            await ends(PACKET)
            scripted.requests.clear()
            gone = [weakref.ref(memory) for memory in known.pools.values()]
            known.pools.clear()
            ends.context.close()
            gc.collect()
            assert [reference() for reference in gone] == [None, None]

    async def test_closing_while_memories_are_asked_for_ends_the_asking(
        self, scripted: ScriptedModel
    ) -> None:
        callback = Unhelpful("hangs")
        async with served(scripted, callback) as ends:
            ends.requests.write_nowait(PACKET)
            await callback.was_asked.wait()
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    async def test_cancelling_stops_the_execution_and_its_result_is_sent(
        self, scripted: ScriptedModel, known: KnownPools
    ) -> None:
        scripted.outcome = None
        async with served(scripted, known) as ends:
            for number in (1, 2):
                ends.requests.write_nowait(PACKET)
                await scripted.launched()
                ends.context.cancel(3 - number)
                ends.context.cancel(7)
                assert scripted.killed == number - 1
                ends.context.cancel(number)
                assert await ends.receive() == failed(ErrorStatus.GENERAL_FAILURE)
        assert scripted.killed == 2

    async def test_a_request_cancelled_before_its_memories_came_is_not_executed(
        self, scripted: ScriptedModel
    ) -> None:
        callback = SlowPools({4: allocate(128), 9: allocate(64)})
        async with served(scripted, callback) as ends:
            ends.requests.write_nowait(PACKET)
            await callback.was_asked.wait()
            ends.context.cancel(1)
            callback.may_answer.set()
            assert await ends.receive() == failed(ErrorStatus.GENERAL_FAILURE)
            assert scripted.requests == []
            assert (await ends(PACKET)).status is ErrorStatus.NONE

    async def test_closing_is_no_death(
        self, scripted: ScriptedModel, known: KnownPools
    ) -> None:
        deaths: list[str] = []
        async with served(scripted, known) as ends:
            ends.context.link_to_death(lambda: deaths.append("dead"))
            ends.context.close()
            ends.context.close()
        assert deaths == []

    @pytest.mark.parametrize("queue", ["requests", "results"])
    async def test_impossible_counters_are_the_end_of_the_burst(
        self, scripted: ScriptedModel, known: KnownPools, queue: str
    ) -> None:
        died = asyncio.Event()
        async with served(scripted, known, results_length=2) as ends:
            ends.context.link_to_death(died.set)
            await ends(PACKET)
            ends.requests.write_nowait(PACKET)
            if queue == "requests":
                add_to_word(ends.requests, WRITTEN, 2**50)
            else:
                add_to_word(ends.results, READ, 2**50)
            await asyncio.wait_for(died.wait(), 20)


async def test_a_result_longer_than_its_queue_is_a_general_failure(
    scripted: ScriptedModel, known: KnownPools
) -> None:
    shapes = (OutputShape((1, 2, 3, 4, 5, 6), True),)
    scripted.outcome = (ErrorStatus.NONE, shapes, Timing(1, 1))
    async with served(scripted, known, results_length=8) as ends:
        assert await ends(TIMED) == failed(ErrorStatus.GENERAL_FAILURE)
        shapes = (OutputShape((1, 2, 3, 4, 5), True),)
        scripted.outcome = (ErrorStatus.NONE, shapes, Timing(1, 1))
        assert (await ends(TIMED)).output_shapes == shapes


async def test_a_result_waits_for_room(
    scripted: ScriptedModel, known: KnownPools
) -> None:
    shapes = (OutputShape((1,), True),)
    scripted.outcome = (ErrorStatus.NONE, shapes, NO_TIMING)
    async with served(scripted, known, results_length=4) as ends:
        for number in range(3):
            ends.requests.write_nowait(PACKET)
            begun = min(number + 1, 2)
            await until(lambda: len(scripted.requests) >= begun)  # noqa: B023
            await asyncio.sleep(0.01)
        assert len(scripted.requests) == 2, "the third has to wait as well"
        assert (await ends.receive()).output_shapes == shapes
        for _ in range(2):
            assert await ends.receive(2) == failed(ErrorStatus.GENERAL_FAILURE)
        assert (await ends(PACKET)).output_shapes == shapes


async def test_a_burst_does_not_ask_for_work_while_it_has_some(
    scripted: ScriptedModel, known: KnownPools
) -> None:
    scripted.outcome = None
    async with served(scripted, known) as ends:
        ends.requests.write_nowait(PACKET)
        await scripted.launched()
        ends.requests.write_nowait(PACKET)
        await asyncio.sleep(0.01)
        assert len(scripted.requests) == 1
        scripted.end()
        await ends.receive()
        await scripted.launched()
        scripted.end()
        await ends.receive()
    assert len(scripted.requests) == 2


async def test_a_model_that_raises_fails_the_request_alone(
    scripted: ScriptedModel, known: KnownPools
) -> None:
    outcome, scripted.outcome = scripted.outcome, (1, 2)  # type: ignore[assignment]
    async with served(scripted, known) as ends:
        assert await ends(PACKET) == failed(ErrorStatus.GENERAL_FAILURE)
        scripted.outcome = outcome
        assert (await ends(PACKET)).status is ErrorStatus.NONE


async def test_a_second_notification_does_not_answer_the_next_request(
    scripted: ScriptedModel, known: KnownPools
) -> None:
    async with served(scripted, known) as ends:
        scripted.outcome = None
        ends.requests.write_nowait(PACKET)
        await scripted.launched()
        late = scripted.callback
        scripted.end()
        await ends.receive()
        ends.requests.write_nowait(PACKET)
        await scripted.launched()
        late.notify_1_3(ErrorStatus.INVALID_ARGUMENT, (), NO_TIMING)
        scripted.end()
        assert (await ends.receive()).status is ErrorStatus.NONE


async def test_an_omitted_argument_with_a_location_breaks_a_rule(
    prepared: IPreparedModel, known: KnownPools
) -> None:
    location = DataLocation(0, 0, 16)
    datums = ADDITION.encode((4, 9), MeasureTiming.NO)
    omitted = RequestShape.of(
        (RequestArgument(has_no_value=True), ADDITION.inputs[1]), ADDITION.outputs, 2
    ).encode((4, 9), MeasureTiming.NO)
    assert location == ADDITION.inputs[0].location
    odd = bytearray(datums)
    odd[DATUM_BYTES + 4] = 1
    async with served(prepared, known) as ends:
        for packet in (bytes(odd), omitted):
            assert (await ends(packet)).status is not ErrorStatus.NONE
        assert (await ends(PACKET)).status is ErrorStatus.NONE
