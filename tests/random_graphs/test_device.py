"""Random graphs by way of a device's calls."""

import asyncio

import pytest

from asyncnn import DeviceSettings, open_device
from asyncnn.runtime.prepared import Path
from asyncnn.tools.conformance.random_graphs.families import RandomGraph
from tests.random_graphs.running import assert_same, directly
from tests.random_graphs.trying import on_graphs


@pytest.mark.parametrize("inline_below_us", [0.0, 1e9], ids=["lane", "inline"])
@pytest.mark.parametrize("path", ["async", "sync"])
@on_graphs(0.1)
def test_a_device_gives_what_the_kernels_give(
    graph: RandomGraph, path: Path, inline_below_us: float
) -> None:
    asyncio.run(
        check_device(graph, path, DeviceSettings(inline_below_us=inline_below_us))
    )


async def check_device(
    graph: RandomGraph, path: Path, settings: DeviceSettings
) -> None:
    """Run both sets of inputs, the first one twice, on a device of its own."""
    async with open_device(settings=settings) as device:
        prepared = await device.prepare(graph.named)
        for inputs in (graph.inputs, graph.other_inputs, graph.inputs):
            outputs = await prepared.run(inputs, path=path)
            assert_same(list(outputs.values()), directly(graph, inputs))
