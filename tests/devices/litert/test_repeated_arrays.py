"""Arrays that come again, and others in their place."""

import mmap

import numpy as np
import pytest

from asyncnn.devices.litert.c_api_engine import CApiGraph
from asyncnn.devices.litert.chain_model import Chain
from asyncnn.devices.litert.engine import Array, Engine
from asyncnn.engine.array_memory import address_of, has_tail
from asyncnn.engine.job import MOST_BINDINGS
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


SHAPES = ((4, 32), (32, 512))
"""Of arrays that are copied, and of some that are used in place."""


@pytest.mark.parametrize("shape", SHAPES)
def test_each_set_of_arrays_has_its_own_buffers(
    c_api: Engine, shape: tuple[int, int]
) -> None:
    chain = Chain(3, *shape)
    case = Case(chain, shape)
    graph = c_api.compile(chain.model())
    assert isinstance(graph, CApiGraph)
    sets = sets_of(chain, case, 2 * MOST_BINDINGS)
    assert_right_each_time(graph, sets)
    graph.forget()
    assert_right_each_time(graph, sets)


@pytest.mark.parametrize("shape", SHAPES)
def test_arrays_in_place_of_others_are_taken_for_what_they_are(
    c_api: Engine, shape: tuple[int, int]
) -> None:
    chain = Chain(3, *shape)
    case = Case(chain, shape)
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
