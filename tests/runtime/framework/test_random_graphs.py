"""Random graphs on randomly crippled devices: the CPU's results, on every path."""

import asyncio
import random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from asyncnn.devices import DeviceSettings
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.runtime.device import Device
from asyncnn.runtime.framework import Fallback, FrameworkSettings
from asyncnn.runtime.framework.opening import OpenDevice, open_framework
from tests.random_graphs.running import assert_same, directly
from tests.random_graphs.strategies import Graph, graphs
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
MANY = settings(FEW, max_examples=2000, derandomize=False)

FAULTS = st.sampled_from([Fault.NONE, *Fault])
DRAWN = {
    "graph": graphs(),
    "faults": st.lists(FAULTS, min_size=2, max_size=3),
    "seed": st.integers(0, 2**16),
    "fallback": st.sampled_from([Fallback.PARTIAL, Fallback.FULL]),
}


async def check(
    graph: Graph, faults: list[Fault], seed: int, fallback: Fallback
) -> None:
    choice = random.Random(seed)
    types = sorted({each.type for each in graph.named.model.main.operations})
    framework = FrameworkSettings(
        fallback=fallback, moving_weight=choice.choice((0, 0, 0.001)), pause_s=0.01
    )
    async with crippled_devices(3, choice, types, faults) as devices:
        given = [OpenDevice(f"d{k}", each) for k, each in enumerate(devices)]
        async with open_framework(
            DeviceSettings(), devices=given, framework=framework
        ) as hal:
            device = Device("framework", hal)
            prepared = await device.prepare(graph.named)
            for path in PATHS:
                for inputs in (graph.inputs, graph.other_inputs):
                    expected = directly(graph, inputs)
                    try:
                        async with prepared.runner(path) as run:
                            outputs = await run(inputs)
                    except InvalidArgumentError as error:
                        assert path == "fenced"
                        assert "not fully specified" in str(error)
                        continue
                    assert_same(list(outputs.values()), expected)
                    covered = [p for s in outputs.route.steps for p in s.operations]
                    count = len(graph.named.model.main.operations)
                    assert sorted(covered) == list(range(count))
                    failing = {
                        f"d{k}" for k, f in enumerate(faults) if f is not Fault.NONE
                    }
                    for step in outputs.route.steps:
                        if step.instead_of:
                            assert step.reason
            assert not hal._host.active


@pytest.mark.parametrize(
    "depth", [FEW, pytest.param(MANY, marks=pytest.mark.exhaustive)]
)
def test_crippled_devices_change_no_result(depth: settings) -> None:
    @depth
    @given(**DRAWN)
    def run(**drawn) -> None:
        asyncio.run(check(**drawn))

    run()
