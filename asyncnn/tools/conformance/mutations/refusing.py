"""Asks a device for a mutant and says what is wrong with its answers, if anything.

INVALID_ARGUMENT is demanded of every call, and of one notification, no result beside
it, and that nothing was started. A packet that is malformed may be a GENERAL_FAILURE.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import msgspec

from asyncnn import hal
from asyncnn.burst import BurstController
from asyncnn.callbacks import ExecutionResult
from asyncnn.hal.types import ExecutionOptions
from asyncnn.tools.conformance.mutations.bare import BareBurst
from asyncnn.tools.conformance.mutations.mutant import (
    Mutant,
    PacketMutant,
    RequestMutant,
)
from asyncnn.tools.conformance.preparing import preparing

T = TypeVar("T")

_INVALID = hal.ErrorStatus.INVALID_ARGUMENT
_NO_RESULT = (_INVALID, (), hal.NO_TIMING)
_REFUSALS = frozenset({_INVALID, hal.ErrorStatus.GENERAL_FAILURE})
_TOKEN = bytes(hal.BYTE_SIZE_OF_CACHE_TOKEN)
TIMEOUT_S = 30.0
"""How long an answer may take."""


class _Witness(hal.IPreparedModelCallback, hal.IExecutionCallback):
    """Testifies how often, and of what, a preparation or an execution notified it."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[tuple[Any, ...]] = []
        self._notified = asyncio.Event()

    def notify_1_3(self, *outcome: Any, **_: Any) -> None:
        self.outcomes.append(outcome)
        self._notified.set()

    async def complete(self) -> None:
        """Wait for the first notification, and a round of the loop for a second."""
        await self._notified.wait()
        await asyncio.sleep(0)


class Way(msgspec.Struct, frozen=True):
    """A way to a driver.

    The bare one is a client that checks nothing: calls that launch something cannot
    return the status, which only the notification has. It has no fences nor bursts.
    """

    name: str
    device: hal.IDevice
    is_bare: bool = False


class PreparedWay(msgspec.Struct, frozen=True, eq=False):
    """A model prepared by a way, and a burst of it unless its packets are too long."""

    way: Way
    prepared: hal.IPreparedModel
    burst: BurstController | None = None


async def prepare(model: hal.Model, device: hal.IDevice) -> hal.IPreparedModel:
    """Prepare the model that mutants are made of, or the model of their requests.

    :raises AsyncnnError: if the device does not take it, or does not answer.
    """
    return await answer_of(preparing(device, hal.HalVersion.V1_3)(model))


async def answer_of(call: Awaitable[T]) -> T:
    """Wait for what a device answers.

    :raises DeviceUnavailableError: if it takes longer than `TIMEOUT_S`.
    """
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await call
    except TimeoutError:
        raise hal.DeviceUnavailableError(f"no answer within {TIMEOUT_S} s") from None


async def judge_model(
    mutant: Mutant, original: hal.Model | None, way: Way
) -> list[str]:
    """Return what is wrong with the answers to a mutated model; empty if nothing.

    One that differs from ``original`` only in what is said beside it is prepared; of
    any other, the supported operations are asked for as well.
    """
    problems: list[str] = []
    if mutant.model is not original:
        problems += await in_time(_judge_supported(mutant, way))
    problems += await in_time(_judge_preparation(mutant, way))
    return [f"{way.name}: {mutant.label}: {problem}" for problem in problems]


async def judge_request(
    mutant: RequestMutant, target: PreparedWay, *, by_burst: bool
) -> list[str]:
    """Return what is wrong with the answers to a mutated request; empty if nothing."""
    way, prepared = target.way, target.prepared
    problems: list[str] = []
    if not mutant.wait_for:
        problems += await in_time(_judge_execution(mutant, prepared, way))
        problems += await in_time(_judge_synchronous(mutant, prepared))
    if not way.is_bare:
        problems += _judge_fenced(mutant, prepared)
    if target.burst is not None and by_burst:
        problems += await in_time(_judge_burst(mutant, target.burst))
    return [f"{way.name}: {mutant.label}: {problem}" for problem in problems]


async def judge_packet(mutant: PacketMutant, burst: BareBurst) -> list[str]:
    """Return what is wrong with the answer to a mutated packet; empty if nothing."""

    async def judge() -> list[str]:
        return refusal_problems(await burst.execute(mutant.packet))

    return [f"{mutant.label}: {problem}" for problem in await in_time(judge())]


def refusal_problems(result: ExecutionResult) -> list[str]:
    """Return what is wrong with the result of an altered packet; empty if nothing."""
    problems: list[str] = []
    if result.status not in _REFUSALS:
        problems = [f"burst: {result.status!r}, expected a refusal"]
    found = (result.output_shapes, result.timing)
    return problems + _unless(found, ((), hal.NO_TIMING), "burst")


async def in_time(judging: Awaitable[list[str]]) -> list[str]:
    """Return what ``judging`` does; that there is no answer is a problem as well."""
    try:
        return await answer_of(judging)
    except hal.AsyncnnError as error:
        return [str(error)]


async def _judge_supported(mutant: Mutant, way: Way) -> list[str]:
    answer = await way.device.get_supported_operations_1_3(mutant.model)
    return _unless(answer, (_INVALID, ()), "supported operations")


async def _judge_preparation(mutant: Mutant, way: Way) -> list[str]:
    witness = _Witness()
    asked: tuple[Any, Any] = mutant.preference, mutant.priority
    status = way.device.prepare_model_1_3(
        mutant.model, *asked, None, (), (), _TOKEN, witness
    )
    return await _judge_launch(status, witness, (_INVALID, None), way)


async def _judge_execution(
    mutant: RequestMutant, prepared: hal.IPreparedModel, way: Way
) -> list[str]:
    witness = _Witness()
    status = prepared.execute_1_3(mutant.request, mutant.measure, None, None, witness)
    return await _judge_launch(status, witness, _NO_RESULT, way)


async def _judge_synchronous(
    mutant: RequestMutant, prepared: hal.IPreparedModel
) -> list[str]:
    answer = await prepared.execute_synchronously_1_3(
        mutant.request, mutant.measure, None, None
    )
    return _unless(answer, _NO_RESULT, "synchronously")


def _judge_fenced(mutant: RequestMutant, prepared: hal.IPreparedModel) -> list[str]:
    wait_for: Any = mutant.wait_for
    answer = prepared.execute_fenced(
        mutant.request, wait_for, mutant.measure, None, None, None
    )
    return _unless(answer, (_INVALID, None, None), "fenced")


async def _judge_burst(mutant: RequestMutant, burst: BurstController) -> list[str]:
    result = await burst.execute(mutant.request, ExecutionOptions(mutant.measure))
    answer = (result.status, result.output_shapes, result.timing)
    problems = _unless(answer, _NO_RESULT, "burst")
    return problems + _unless(burst.statistics().fallbacks, 0, "sent by other means")


async def _judge_launch(
    status: hal.ErrorStatus, witness: _Witness, expected: tuple[object, ...], way: Way
) -> list[str]:
    problems: list[str] = []
    if not way.is_bare:
        problems += _unless(status, _INVALID, "launch")
        problems += _unless(len(witness.outcomes), 1, "notifications within the launch")
    await witness.complete()
    problems += _unless(len(witness.outcomes), 1, "notifications")
    return problems + _unless(witness.outcomes[0], expected, "notification")


def _unless(actual: object, expected: object, what: str) -> list[str]:
    return [] if actual == expected else [f"{what}: {actual}, expected {expected}"]
