"""Where an engine reads and writes: in place, or in memory of the graph's own."""

import numpy as np
import pytest

from asyncnn.engine.array_memory import address_of
from asyncnn.engine.job import COPIED_BYTES, MOST_BINDINGS
from asyncnn.engine.plan_execution import run_bound
from tests.engine.scripted import Chain, Way, arrays


@pytest.mark.parametrize("elements", [4, COPIED_BYTES])
@pytest.mark.parametrize("offset", [0, 4])
def test_large_aligned_memory_is_used_in_place(
    way: Way, elements: int, offset: int
) -> None:
    chain = Chain(way, 1, elements)
    (graph,) = chain.graphs
    for _ in range(2):
        x, y = arrays(elements, offset=offset)
        run_bound(chain.program, chain.plan, [x, y])
        found = (address_of(x), address_of(y)) in graph.bound_addresses()
        assert found == (4 * elements > COPIED_BYTES and not offset)


def test_only_so_many_addresses_are_known(way: Way) -> None:
    chain = Chain(way, 1, COPIED_BYTES)
    (graph,) = chain.graphs
    sets = [arrays(COPIED_BYTES) for _ in range(MOST_BINDINGS + 5)]
    for _ in range(2):
        for x, y in sets:
            y.fill(0)
            run_bound(chain.program, chain.plan, [x, y])
            np.testing.assert_array_equal(y, x + 1)
            assert len(graph.bound_addresses()) <= MOST_BINDINGS
    assert len(graph.bound_addresses()) == MOST_BINDINGS
    graph.forget()
    assert not graph.bound_addresses()
