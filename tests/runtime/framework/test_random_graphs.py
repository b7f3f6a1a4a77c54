"""Random graphs on randomly crippled devices: the CPU's results, on every path."""

import asyncio
import random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from asyncnn.devices import DeviceSettings
from asyncnn.hal.operands import is_tensor
from asyncnn.hal.routes import Route
from asyncnn.runtime.device import Device
from asyncnn.runtime.framework import Fallback, FrameworkSettings
from asyncnn.runtime.framework.opening import OpenDevice, open_framework
from asyncnn.tools.conformance.random_graphs.families import RandomGraph, graphs
from tests.random_graphs.running import assert_same, directly
from tests.runtime.framework.crippled import Fault, crippled_devices

PATHS = ("async", "sync", "burst", "fenced")

FEW = settings(
    max_examples=60,
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.generate,),
    suppress_health_check=tuple(HealthCheck),
)
MANY = settings(FEW, max_examples=500, derandomize=False, print_blob=True)

# One that says nothing ends a run at its deadline alone, and these have none.
FAULTS = st.sampled_from([Fault.NONE, *(f for f in Fault if f is not Fault.SILENT)])
DRAWN = {
    "graph": graphs(),
    "faults": st.lists(FAULTS, min_size=2, max_size=3),
    "seed": st.integers(0, 2**16),
    "fallback": st.sampled_from([Fallback.PARTIAL, Fallback.FULL]),
}


async def check(
    graph: RandomGraph, faults: list[Fault], seed: int, fallback: Fallback
) -> None:
    choice = random.Random(seed)
    types = sorted({each.type for each in graph.named.model.main.operations})
    framework = FrameworkSettings(
        fallback=fallback, moving_weight=choice.choice((0, 0, 0.001)), pause_s=0.01
    )
    sets = [
        (each, directly(graph, each)) for each in (graph.inputs, graph.other_inputs)
    ]
    async with crippled_devices(choice, types, faults) as devices:
        given = [OpenDevice(f"d{k}", each) for k, each in enumerate(devices)]
        async with open_framework(
            DeviceSettings(), devices=given, framework=framework
        ) as hal:
            prepared = await Device("framework", hal).prepare(graph.named)
            is_open = any(
                is_tensor(info.type) and (not info.dimensions or 0 in info.dimensions)
                for info in prepared.outputs
            )
            for path in PATHS[:3] if is_open else PATHS:
                async with prepared.runner(path) as run:
                    for inputs, expected in sets:
                        outputs = await run(inputs)
                        assert_same(list(outputs.values()), expected)
                        check_route(outputs.route, graph)
            await asyncio.sleep(0)
            assert not hal._host.active
    assert asyncio.all_tasks() == {asyncio.current_task()}


def check_route(route: Route, graph: RandomGraph) -> None:
    """Each operation went exactly one way; what fell back has a reason."""
    went = sorted(position for step in route.steps for position in step.operations)
    assert went == list(range(len(graph.named.model.main.operations)))
    for step in route.steps:
        assert bool(step.instead_of) == bool(step.reason)
        assert not step.instead_of or step.device == "reference"


@pytest.mark.parametrize(
    "depth",
    [
        pytest.param(FEW, id="60"),
        *(
            pytest.param(MANY, id=f"500, {part} of 4", marks=pytest.mark.exhaustive)
            for part in range(1, 5)
        ),
    ],
)
@pytest.mark.timeout(1800)
@pytest.mark.unrecorded
def test_crippled_devices_change_no_result(depth: settings) -> None:
    @depth
    @given(**DRAWN)
    def run(**drawn) -> None:
        asyncio.run(check(**drawn))

    run()
