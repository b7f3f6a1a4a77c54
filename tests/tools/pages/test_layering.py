"""Layouts of graphs: nodes below those before them, apart, with few crossings."""

import time
from itertools import combinations, pairwise
from random import Random

import pytest

from asyncnn.tools.pages.layering import LayeredGraph, lay_out, ranks_of

BOX = 80.0, 30.0

Edges = list[tuple[int, int]]


def random_edges(count: int, seed: int, *, skips: float = 0.2) -> Edges:
    """Return edges of a graph like a model's: a chain with branches and skips."""
    random = Random(seed)
    edges = {(max(0, node - random.randint(1, 3)), node) for node in range(1, count)}
    for node in range(10, count):
        if random.random() < skips:
            edges.add((node - random.randint(2, 10), node))
    return sorted(edges)


def overlapping(layout: LayeredGraph) -> list[tuple[int, int]]:
    width, height = BOX
    return [
        (a, b)
        for a, b in combinations(range(len(layout.centres)), 2)
        if abs(layout.centres[a][0] - layout.centres[b][0]) < width
        and abs(layout.centres[a][1] - layout.centres[b][1]) < height
    ]


@pytest.mark.parametrize("seed", range(5))
def test_nodes_lie_below_those_before_and_beside_no_other(seed: int) -> None:
    edges = random_edges(150, seed)
    layout = lay_out([BOX] * 150, edges)
    assert overlapping(layout) == []
    for source, target in edges:
        assert layout.centres[source][1] < layout.centres[target][1]
    for (source, target), route in zip(edges, layout.routes, strict=True):
        assert all(y <= below for (_, y), (_, below) in pairwise(route))
        assert route[0] == (layout.centres[source][0], layout.centres[source][1] + 15)
        assert abs(route[-1][0] - layout.centres[target][0]) < BOX[0] / 2
    for x, y in layout.centres:
        assert BOX[0] / 2 <= x <= layout.width - BOX[0] / 2 + 1e-6
        assert BOX[1] / 2 <= y <= layout.height - BOX[1] / 2 + 1e-6
    assert sorted(n for layer in layout.layers for n in layer) == list(range(150))


@pytest.mark.parametrize("seed", range(5))
def test_edges_pass_beside_nodes(seed: int) -> None:
    edges = random_edges(80, seed)
    layout = lay_out([BOX] * 80, edges)
    for route in layout.routes:
        for x, y in route[1:-1]:
            for across, down in layout.centres:
                inside = abs(x - across) < BOX[0] / 2 and abs(y - down) <= BOX[1] / 2
                assert not inside


def test_a_chain_is_straight() -> None:
    layout = lay_out([BOX] * 20, [(n, n + 1) for n in range(19)])
    assert {x for x, _ in layout.centres} == {BOX[0] / 2}


def test_crossings_that_can_be_undone_are() -> None:
    # As given, each edge crosses all others.
    edges = [(n, 19 - n) for n in range(10)]
    layout = lay_out([BOX] * 20, edges)
    for n in range(10):
        assert layout.centres[n][0] == pytest.approx(layout.centres[19 - n][0])


def test_what_nothing_comes_to_stands_just_above_what_it_goes_to() -> None:
    assert ranks_of(5, [(0, 1), (1, 2), (2, 3), (4, 3)]) == [0, 1, 2, 3, 2]


def test_the_longest_way_counts() -> None:
    assert ranks_of(4, [(0, 3), (0, 1), (1, 2), (2, 3)]) == [0, 1, 2, 3]


def test_no_nodes_and_no_edges() -> None:
    assert lay_out([], []).width == 0
    assert lay_out([BOX], []).centres == [(40.0, 15.0)]
    assert overlapping(lay_out([BOX] * 3, [])) == []


def test_circles_are_refused() -> None:
    with pytest.raises(ValueError, match="circle"):
        ranks_of(3, [(0, 1), (1, 2), (2, 1)])


@pytest.mark.alone
def test_three_hundred_nodes_take_less_than_a_second() -> None:
    edges = random_edges(300, 1, skips=0.6)
    began = time.perf_counter()
    lay_out([BOX] * 300, edges)
    assert time.perf_counter() - began < 1.0


def test_time_grows_with_the_nodes_and_hardly_faster() -> None:
    def spent_s(count: int) -> float:
        edges = [(node, node + 1) for node in range(count - 1)]
        edges += [(node, node + 3) for node in range(0, count - 3, 3)]
        edges += [(node, node + 40) for node in range(0, count - 40, 97)]
        begun_s = time.process_time()
        lay_out([BOX] * count, edges)
        return time.process_time() - begun_s

    few_s = min(spent_s(1_000) for _ in range(3))
    assert min(spent_s(10_000) for _ in range(2)) < 40 * few_s
