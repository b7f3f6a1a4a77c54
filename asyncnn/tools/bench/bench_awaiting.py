"""``asyncnn bench awaiting``: what it costs to await an operation that costs nothing.

A model that adds two vectors of four floats is run in this process, one layer after
the other, beside the ways of calling NumPy without it. Each layer's figure includes
those below it, so that a layer's own cost is the difference to the one before.
"""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from asyncnn.devices import DeviceSettings
from asyncnn.engine import PlanExecution, Program
from asyncnn.hal.operations.bound import Array
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.opening_devices import open_device
from asyncnn.runtime.requests import RequestBuilder
from asyncnn.tools.bench.environment import (
    ALL_CPUS,
    ONE_CPU,
    describe_environment,
    placement,
)
from asyncnn.tools.bench.noop import LENGTH, hal_execution, tiny_addition
from asyncnn.tools.bench.report import Goal, PlacedReport, Placement, judge
from asyncnn.tools.bench.rounds import (
    DEFAULT_ROUNDS,
    Batch,
    Figure,
    measure,
    timed_await,
    timed_call,
)

NUMPY = "numpy"
ENGINE = "engine"
HAL = "hal"
RUN = "run"
RUN_ON_LANE = "run_on_lane"
TO_THREAD = "to_thread"

CONTENDERS = {
    NUMPY: "np.add(x, y), called",
    ENGINE: "the compiled plan, called",
    HAL: "IPreparedModel.execute_1_3 of a ready request, awaited",
    RUN: "prepared.run([x, y]), awaited",
    RUN_ON_LANE: "the same, never inline on the loop",
    TO_THREAD: "asyncio.to_thread(np.add, x, y), awaited",
}

GOAL = Goal(RUN, TO_THREAD, 0.3)
"""It holds in each placement."""

_BATCH_US = 20_000.0


class AwaitingPlacement(Placement, frozen=True, kw_only=True):
    """Figures of one placement; the only verdict's fields once more, by themselves."""

    ratio: float
    limit: float
    met: bool


class AwaitingReport(PlacedReport, frozen=True, kw_only=True):
    """The JSON document of ``asyncnn bench awaiting --json``."""

    CONTENDERS = CONTENDERS
    GOALS = (GOAL,)

    placements: tuple[AwaitingPlacement, ...]


def bench(*, rounds: int = DEFAULT_ROUNDS) -> AwaitingReport:
    """Measure with all threads on one CPU, then wherever the system puts them."""
    return AwaitingReport(
        environment=describe_environment(),
        rounds=rounds,
        placements=tuple(_bench(cpus, rounds) for cpus in (ONE_CPU, ALL_CPUS)),
    )


def _bench(cpus: str, rounds: int) -> AwaitingPlacement:
    with placement(cpus) as where:
        # A loop of its own: threads keep the placement that they were started in.
        figures = asyncio.run(_measure(rounds))
    (verdict,) = judge([GOAL], figures)
    return AwaitingPlacement(
        placement=where,
        figures=figures,
        verdicts=(verdict,),
        ratio=verdict.ratio,
        limit=verdict.limit,
        met=verdict.met,
    )


async def _measure(rounds: int) -> dict[str, Figure]:
    model = tiny_addition()
    x, y = np.arange(2 * LENGTH, dtype=np.float32).reshape(2, LENGTH)
    output = np.empty(LENGTH, np.float32)
    request = RequestBuilder(model.inputs, model.outputs)([x, y], [output])
    on_lane = DeviceSettings(inline_below_us=0)
    async with (
        open_device("reference") as device,
        open_device("reference", settings=on_lane) as lane_device,
    ):
        prepared = await device.prepare(model)
        never_inline = await lane_device.prepare(model)
        batches: list[Batch] = [
            timed_call(NUMPY, lambda: np.add(x, y)),
            timed_call(ENGINE, _engine_call(model, (x, y))),
            timed_await(HAL, hal_execution(prepared, request)),
            timed_await(RUN, lambda: prepared.run([x, y])),
            timed_await(RUN_ON_LANE, lambda: never_inline.run([x, y])),
            timed_await(TO_THREAD, lambda: asyncio.to_thread(np.add, x, y)),
        ]
        return await measure(batches, rounds=rounds, batch_us=_BATCH_US)


def _engine_call(model: NamedModel, inputs: Sequence[Array]) -> Callable[[], object]:
    program = Program(model.model)
    plan = program.plan(tuple(array.shape for array in inputs))
    return lambda: PlanExecution(program, plan, inputs, [None]).advance()
