"""Random graphs by way of a device's calls."""

import pytest
from hypothesis import given

from asyncnn import DeviceSettings, open_device
from asyncnn.runtime.prepared import Path
from tests.random_graphs.profiles import examples
from tests.random_graphs.running import assert_same, directly, replayable
from tests.random_graphs.strategies import Graph, graphs


@pytest.mark.parametrize("inline_below_us", [0.0, 1e9], ids=["lane", "inline"])
@pytest.mark.parametrize("path", ["async", "sync"])
@examples(0.1)
@given(graph=graphs())
async def test_a_device_gives_what_the_kernels_give(
    graph: Graph, path: Path, inline_below_us: float
) -> None:
    settings = DeviceSettings(inline_below_us=inline_below_us)
    with replayable(graph):
        async with open_device(settings=settings) as device:
            prepared = await device.prepare(graph.named)
            for inputs in (graph.inputs, graph.other_inputs):
                outputs = await prepared.run(inputs, path=path)
                assert_same(list(outputs.values()), directly(graph, inputs))
