"""Arrays that come again, and others in their place."""

import mmap

import numpy as np

from asyncnn.devices.litert.array_memory import address_of, has_tail
from asyncnn.devices.litert.c_api_engine import MOST_BINDINGS, MOST_KNOWN, CApiGraph
from asyncnn.devices.litert.chain_model import Chain
from asyncnn.devices.litert.engine import Array, Engine
from asyncnn.memory.shared import allocate
from tests.devices.litert.conftest import Case, at_offset

Set = tuple[Array, list[Array], list[Array]]
"""An input, where outputs go, and what they have to be."""


def sets_of(chain: Chain, case: Case, count: int) -> list[Set]:
    random = np.random.default_rng(0)
    sets = []
    for _ in range(count):
        x = at_offset(random.integers(-8, 9, case.x.shape).astype(np.float32), 0)
        outputs = [at_offset(like, 0) for like in case.outputs]
        sets.append((x, outputs, chain.expected(x)))
    return sets


def assert_right_each_time(graph: CApiGraph, sets: list[Set]) -> None:
    for _ in range(4):
        for x, outputs, expected in sets:
            for output in outputs:
                output.fill(-1)
            assert graph.run([x], outputs)
            for output, right in zip(outputs, expected, strict=True):
                np.testing.assert_array_equal(output, right)


def test_each_set_of_arrays_has_its_own_buffers(
    c_api: Engine, chain: Chain, case: Case
) -> None:
    graph = c_api.compile(chain.model())
    assert isinstance(graph, CApiGraph)
    sets = sets_of(chain, case, 2 * MOST_BINDINGS)
    assert_right_each_time(graph, sets)
    graph.forget()
    assert_right_each_time(graph, sets)


def test_only_so_many_arrays_are_known(c_api: Engine, chain: Chain, case: Case) -> None:
    graph = c_api.compile(chain.model())
    assert isinstance(graph, CApiGraph)
    sets = sets_of(chain, case, MOST_KNOWN + 10)
    assert_right_each_time(graph, sets)
    assert len(graph._known) <= MOST_KNOWN


def test_buffers_of_arrays_that_are_gone_go_as_others_come(
    c_api: Engine, chain: Chain, case: Case
) -> None:
    graph = c_api.compile(chain.model())
    assert isinstance(graph, CApiGraph)
    sets = sets_of(chain, case, 20)
    assert_right_each_time(graph, sets)
    sets.clear()
    others = sets_of(chain, case, 40)
    assert_right_each_time(graph, others)
    assert not any(
        known is not None and not known.are_alive for known in graph._known.values()
    )


def test_arrays_in_place_of_others_are_taken_for_what_they_are(
    c_api: Engine, chain: Chain, case: Case
) -> None:
    graph = c_api.compile(chain.model())
    seen: set[int] = set()
    has_been_reused = False
    for number in range(200):
        x, outputs = at_offset(case.x, 0), [at_offset(o, 0) for o in case.outputs]
        has_been_reused |= id(x) in seen
        seen.add(id(x))
        for _ in range(number % 4):
            for output in outputs:
                output.fill(-1)
            assert graph.run([x], outputs)
            case.assert_right(outputs)
    assert has_been_reused


def test_pools_of_whole_pages_are_computed_on_where_they_are() -> None:
    data = allocate(2 * mmap.PAGESIZE).buffer
    assert data is not None
    array = np.ndarray(2 * mmap.PAGESIZE, np.uint8, data)
    assert has_tail(array, address_of(array))
