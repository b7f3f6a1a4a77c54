"""Measures each layer around an addition."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import numpy as np

from asyncnn.callbacks import ExecutionFuture, ExecutionResult
from asyncnn.devices import DeviceSettings
from asyncnn.engine import Execution, Program
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import MeasureTiming
from asyncnn.runtime.device import open_device
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.runtime.requests import RequestBuilder
from asyncnn.tools.bench.addition import LENGTH, tiny_addition
from asyncnn.tools.bench.awaiting.report import (
    DESCRIPTIONS,
    ENGINE,
    GOAL,
    HAL,
    NUMPY,
    RUN,
    RUN_ON_LANE,
    TO_THREAD,
    AwaitingReport,
    PlacementReport,
)
from asyncnn.tools.bench.environment import describe_environment
from asyncnn.tools.bench.placement import ALL_CPUS, ONE_CPU, placement
from asyncnn.tools.bench.rounds import (
    DEFAULT_ROUNDS,
    Batch,
    Figure,
    measure,
    timed_await,
    timed_call,
)

_BATCH_US = 20_000.0


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
    x, y = np.arange(2 * LENGTH, dtype=np.float32).reshape(2, LENGTH)
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


def _engine_call(model: NamedModel, inputs: Sequence[Array]) -> Callable[[], object]:
    program = Program(model.model)
    plan = program.plan(tuple(array.shape for array in inputs))
    return lambda: Execution(program, plan, inputs, [None]).advance()


def _hal_call(
    model: NamedModel, prepared: PreparedModel, inputs: Sequence[Array]
) -> Callable[[], Coroutine[Any, Any, ExecutionResult]]:
    output = np.empty(LENGTH, np.float32)
    request = RequestBuilder(model.inputs, model.outputs)(inputs, [output])

    async def call() -> ExecutionResult:
        callback = ExecutionFuture()
        prepared.hal.execute_1_3(request, MeasureTiming.NO, None, None, callback)
        return await callback

    return call
