"""Altered packets of bursts, and what is found wrong with the answers to them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from asyncnn.burst import BurstStatistics
from asyncnn.burst.packets import (
    DATUM_BYTES,
    DEFAULT_QUEUE_LENGTH,
    RESULT_OPERAND,
    ResultKind,
    ResultShape,
)
from asyncnn.callbacks import ExecutionResult
from asyncnn.devices import ReferenceDevice
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.types import NO_TIMING, ErrorStatus, MeasureTiming, OutputShape, Timing
from asyncnn.service import RemoteDevice, Server
from asyncnn.tools.conformance.mutations import refusing
from asyncnn.tools.conformance.mutations.bare import BareBurst, bare_burst
from asyncnn.tools.conformance.mutations.mutant import (
    PacketMutant,
    PacketRow,
    RequestMutant,
)
from asyncnn.tools.conformance.mutations.refusing import (
    PreparedWay,
    Way,
    judge_packet,
    judge_request,
)
from asyncnn.tools.conformance.mutations.request_rows import (
    BAD_DATUMS,
    BURST_ROWS,
    PACKET_ROWS,
    BurstRow,
    NothingToLearnError,
    Sender,
)
from asyncnn.tools.conformance.mutations.trial import CaseTrial, MutantPlan, RowResult
from asyncnn.tools.conformance.vectors import Case, load_cases
from tests.burst.ends import ADDITION, ScriptedModel, addition_pools
from tests.hal.validate.samples import float_request

NONE, GENERAL = ErrorStatus.NONE, ErrorStatus.GENERAL_FAILURE
INVALID = ErrorStatus.INVALID_ARGUMENT
PACKET = ADDITION.encode((0, 1), MeasureTiming.YES)
DATUMS = len(PACKET) // DATUM_BYTES
SHAPES = (OutputShape((2, 3), True),) * 3


@pytest.mark.parametrize("row", PACKET_ROWS, ids=lambda row: row.number)
def test_mutants_of_a_packet_differ_in_one_datum(row: PacketRow) -> None:
    mutants = [mutant.packet for mutant in row.mutate(PACKET)]
    assert PACKET not in mutants
    change = {"VB1": -1, "VB2": 1, "VB3": 0}[row.number]
    assert {len(m) // DATUM_BYTES for m in mutants} == {DATUMS + change}


def test_every_datum_is_mutated_in_every_way() -> None:
    counts = {row.number: len(list(row.mutate(PACKET))) for row in PACKET_ROWS}
    kinds = len(BAD_DATUMS)
    # The last datum asks for timing, as one of the bad ones does.
    assert counts == {
        "VB1": DATUMS,
        "VB2": kinds * (DATUMS + 1),
        "VB3": kinds * DATUMS - 1,
    }


def test_a_packet_that_fills_the_queue_gets_no_longer() -> None:
    (inserting,) = (row for row in PACKET_ROWS if row.number == "VB2")
    full = bytes(DATUM_BYTES * DEFAULT_QUEUE_LENGTH)
    assert list(inserting.mutate(full)) == []


class FaultyBurst:
    """A burst that answers as it is told to, right or wrong."""

    def __init__(self, result: ExecutionResult | None, fallbacks: int = 0) -> None:
        self._result = result
        self._fallbacks = fallbacks

    async def execute(self, *arguments: Any) -> ExecutionResult:
        if self._result is None:
            await asyncio.Event().wait()
        assert self._result is not None
        return self._result

    def statistics(self) -> BurstStatistics:
        return BurstStatistics(1, self._fallbacks, "", 0)


@pytest.mark.parametrize("status", [GENERAL, INVALID])
async def test_a_failure_is_the_right_answer_to_a_packet(status: ErrorStatus) -> None:
    burst = FaultyBurst(ExecutionResult(status, (), NO_TIMING))
    assert await judge_packet(PacketMutant("altered", b""), burst) == []


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (ExecutionResult(NONE, (), NO_TIMING), "expected a refusal"),
        (ExecutionResult(ErrorStatus.DEVICE_UNAVAILABLE, (), NO_TIMING), "refusal"),
        (ExecutionResult(GENERAL, SHAPES, NO_TIMING), "OutputShape"),
        (ExecutionResult(GENERAL, (), Timing(1, 2)), "Timing"),
        (None, "no answer"),
    ],
)
async def test_wrong_answers_to_a_packet_are_found(
    result: ExecutionResult | None, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusing, "TIMEOUT_S", 0.01)
    mutant = PacketMutant("altered", b"")
    found = await judge_packet(mutant, FaultyBurst(result))
    assert any(problem in each for each in found), found


class Refusing:
    """A prepared model that refuses everything, but for bursts."""

    def execute_1_3(self, *arguments: Any) -> ErrorStatus:
        arguments[-1].notify_1_3(INVALID, (), NO_TIMING)
        return INVALID

    async def execute_synchronously_1_3(self, *arguments: Any) -> tuple[Any, ...]:
        return INVALID, (), NO_TIMING

    def execute_fenced(self, *arguments: Any) -> tuple[Any, ...]:
        return INVALID, None, None


@pytest.mark.parametrize(
    ("burst", "problem"),
    [
        (FaultyBurst(ExecutionResult(GENERAL, (), NO_TIMING)), "burst: "),
        (FaultyBurst(ExecutionResult(NONE, SHAPES, NO_TIMING)), "burst: "),
        (FaultyBurst(ExecutionResult(INVALID, (), NO_TIMING), 1), "by other means"),
    ],
)
async def test_requests_are_to_be_refused_by_burst_too(
    burst: FaultyBurst, problem: str
) -> None:
    mutant = RequestMutant("wrong", float_request(2))
    target = PreparedWay(Way("device", None), Refusing(), burst)
    found = await judge_request(mutant, target, by_burst=True)
    assert any(problem in each for each in found), found
    assert await judge_request(mutant, target, by_burst=False) == []


def row_of(number: str) -> BurstRow:
    (row,) = (row for row in BURST_ROWS if row.number == number)
    return row


@pytest.fixture
async def scripted_sender() -> AsyncIterator[tuple[ScriptedModel, Sender]]:
    model, pools = ScriptedModel(), addition_pools()
    async with bare_burst(model, pools) as burst:
        yield model, Sender(PACKET, burst, model, pools)


@pytest.mark.parametrize("row", ["VR3", "VB5"])
async def test_a_burst_that_breaks_is_found(
    scripted_sender: tuple[ScriptedModel, Sender], row: str
) -> None:
    model, sender = scripted_sender
    assert await row_of(row).judge(sender) == []
    model.outcome = (GENERAL, (), NO_TIMING)
    (problem,) = await row_of(row).judge(sender)
    assert "GENERAL_FAILURE" in problem


class StrayBurst:
    """A burst whose results have a byte between two fields."""

    async def send(self, packet: bytes) -> bytes:
        answer = bytearray(ResultShape.of(NONE, SHAPES).encode())
        assert answer[DATUM_BYTES] == ResultKind.OPERAND
        answer[DATUM_BYTES + RESULT_OPERAND.size - 1] = 1
        return bytes(answer)


async def test_stray_bytes_are_found() -> None:
    (problem,) = await row_of("VB5").judge(Sender(PACKET, StrayBurst(), None, ()))
    assert "between the fields" in problem


async def test_a_result_that_is_longer_than_its_queue_has_to_fail(
    scripted_sender: tuple[ScriptedModel, Sender],
) -> None:
    model, sender = scripted_sender
    model.outcome = (NONE, SHAPES, NO_TIMING)
    assert await row_of("VB4").judge(sender) == []


async def test_a_result_that_is_short_tells_nothing_of_short_queues(
    scripted_sender: tuple[ScriptedModel, Sender],
) -> None:
    model, sender = scripted_sender
    model.outcome = (NONE, SHAPES[:1], NO_TIMING)
    with pytest.raises(NothingToLearnError):
        await row_of("VB4").judge(sender)


async def test_an_answer_that_nothing_was_sent_for_is_found() -> None:
    results = SimpleNamespace(available_to_read=lambda: 3)
    burst = BareBurst(None, results, None)
    with pytest.raises(GeneralFailureError, match="second answer"):
        await burst.send(PACKET)


@pytest.fixture
def case(shared: Path) -> Case:
    """A TOPK_V2 of two outputs, whose result is longer than a short queue."""
    return load_cases(shared / "vts" / "V1_2" / "topk_v2.json.gz")[0]


def bursting(results: list[RowResult]) -> dict[str, RowResult]:
    numbers = {row.number for row in (*PACKET_ROWS, *BURST_ROWS)}
    return {result.row: result for result in results if result.row in numbers}


@pytest.mark.parametrize("transport", ["inprocess", "remote"])
async def test_every_packet_of_a_vector_is_refused(
    case: Case, transport: str, tmp_path: Path
) -> None:
    path = tmp_path / "driver.sock"
    async with ReferenceDevice() as device:
        if transport == "inprocess":
            results = await CaseTrial(
                case, [Way("device", device)], MutantPlan(limit=None)
            ).run()
        else:
            async with Server(device, path), RemoteDevice(path) as remote:
                results = await CaseTrial(
                    case, [Way("client", remote)], MutantPlan(limit=None)
                ).run()
    found = bursting(results)
    assert [problem for result in found.values() for problem in result.problems] == []
    assert sum(result.passed for result in found.values()) > 100
    assert found["VR3"].passed == found["VB5"].passed == 1


async def test_a_case_that_may_fail_has_altered_packets_alone(case: Case) -> None:
    failing = replace(case, expect_failure=True)
    async with ReferenceDevice() as device:
        found = bursting(
            await CaseTrial(failing, [Way("device", device)], MutantPlan()).run()
        )
    assert {row for row, result in found.items() if result.passed} == {
        row.number for row in PACKET_ROWS
    }


async def test_a_case_whose_packet_is_too_long_has_none(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "asyncnn.tools.conformance.mutations.trial.DEFAULT_QUEUE_LENGTH", 4
    )
    async with ReferenceDevice() as device:
        results = await CaseTrial(case, [Way("device", device)], MutantPlan()).run()
    assert [problem for result in results for problem in result.problems] == []
    assert all(result.skipped for result in bursting(results).values())
