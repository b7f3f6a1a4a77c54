"""``asyncnn bench awaiting``: what it costs to await an operation that costs nothing.

A model that adds two vectors of four floats is run in this process, one layer after
the other, beside the ways of calling NumPy without it. Each layer's figure includes
those below it, so that a layer's own cost is the difference to the one before.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
import numpy as np

from asyncnn.bench.environment import (
    ALL_CPUS,
    ONE_CPU,
    Environment,
    describe_environment,
    placement,
)
from asyncnn.bench.rounds import (
    DEFAULT_ROUNDS,
    Batch,
    Figure,
    measure,
    timed_await,
    timed_call,
)
from asyncnn.callbacks import ExecutionFuture, ExecutionResult
from asyncnn.devices import DeviceSettings
from asyncnn.engine import Execution, Program
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    FusedActivationFunc,
    MeasureTiming,
    Operand,
    OperandType,
    OperationType,
)
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.device import open_device
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.runtime.requests import RequestBuilder

NUMPY = "numpy"
ENGINE = "engine"
HAL = "hal"
RUN = "run"
RUN_ON_LANE = "run_on_lane"
TO_THREAD = "to_thread"

DESCRIPTIONS = {
    NUMPY: "np.add(x, y), called",
    ENGINE: "the compiled plan, called",
    HAL: "IPreparedModel.execute_1_3 of a ready request, awaited",
    RUN: "prepared.run([x, y]), awaited",
    RUN_ON_LANE: "the same, never inline on the loop",
    TO_THREAD: "asyncio.to_thread(np.add, x, y), awaited",
}
"""Contenders in the order in which they are reported."""

GOAL = 0.3
"""Largest ratio of `RUN` to `TO_THREAD`, in each placement."""

_LENGTH = 4
_BATCH_US = 20_000.0


class PlacementReport(msgspec.Struct, frozen=True):
    """Figures of one placement, by contender; ``ratio`` is `RUN` to `TO_THREAD`."""

    placement: str
    figures: dict[str, Figure]
    us: dict[str, float]
    ratio: float
    limit: float
    met: bool


class AwaitingReport(msgspec.Struct, frozen=True):
    """The JSON document of ``asyncnn bench awaiting --json``."""

    environment: Environment
    rounds: int
    placements: tuple[PlacementReport, ...]

    @property
    def met(self) -> bool:
        """Whether the goal was met in every placement."""
        return all(placed.met for placed in self.placements)


def bench_awaiting(*, rounds: int = DEFAULT_ROUNDS) -> AwaitingReport:
    """Measure with all threads on one CPU, then wherever the system puts them."""
    return AwaitingReport(
        environment=describe_environment(),
        rounds=rounds,
        placements=tuple(_bench(cpus, rounds) for cpus in (ONE_CPU, ALL_CPUS)),
    )


def _bench(cpus: str, rounds: int) -> PlacementReport:
    with placement(cpus) as where:
        # A loop of its own: threads keep the placement that they were started in.
        figures = asyncio.run(_measure(rounds))
    ratio = figures[RUN].ratio_to(figures[TO_THREAD])
    return PlacementReport(
        placement=where,
        figures=figures,
        us={name: figures[name].us for name in DESCRIPTIONS},
        ratio=ratio,
        limit=GOAL,
        met=ratio <= GOAL,
    )


async def _measure(rounds: int) -> dict[str, Figure]:
    model = tiny_addition()
    x, y = np.arange(2 * _LENGTH, dtype=np.float32).reshape(2, _LENGTH)
    on_lane = DeviceSettings(inline_below_us=0)
    async with open_device() as device, open_device(settings=on_lane) as lane_device:
        prepared = await device.prepare(model)
        never_inline = await lane_device.prepare(model)
        batches: list[Batch] = [
            timed_call(NUMPY, lambda: np.add(x, y)),
            timed_call(ENGINE, _engine_call(model, (x, y))),
            timed_await(HAL, _hal_call(model, prepared, (x, y))),
            timed_await(RUN, lambda: prepared.run([x, y])),
            timed_await(RUN_ON_LANE, lambda: never_inline.run([x, y])),
            timed_await(TO_THREAD, lambda: asyncio.to_thread(np.add, x, y)),
        ]
        return await measure(batches, rounds=rounds, batch_us=_BATCH_US)


def tiny_addition() -> NamedModel:
    """Return the model that adds two vectors of four floats."""
    builder = ModelBuilder()
    kind = OperandType.TENSOR_FLOAT32
    x = builder.input("x", kind, (_LENGTH,))
    y = builder.input("y", kind, (_LENGTH,))
    none = builder.scalar(FusedActivationFunc.NONE)
    total = builder.operation(
        OperationType.ADD, [x, y, none], Operand(kind, (_LENGTH,))
    )
    builder.output(total, "sum")
    return builder.build()


def _engine_call(model: NamedModel, inputs: Sequence[Array]) -> Callable[[], object]:
    program = Program(model.model)
    plan = program.plan(tuple(array.shape for array in inputs))
    return lambda: Execution(program, plan, inputs, [None]).advance()


def _hal_call(
    model: NamedModel, prepared: PreparedModel, inputs: Sequence[Array]
) -> Callable[[], Coroutine[Any, Any, ExecutionResult]]:
    output = np.empty(_LENGTH, np.float32)
    request = RequestBuilder(model.inputs, model.outputs)(inputs, [output])

    async def call() -> ExecutionResult:
        callback = ExecutionFuture()
        prepared.hal.execute_1_3(request, MeasureTiming.NO, None, None, callback)
        return await callback

    return call
