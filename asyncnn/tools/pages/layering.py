"""Lays directed graphs out from top to bottom, in layers and lanes.

Each node lies below all from which edges come to it, as high as that allows, or just
above the first that it goes to if none comes to it. Edges pass the layers between
their ends at bends, which all edges from one node share. A node stands in the lane of
the first that it reads, and an edge goes on in the lane that it has: what is taken in a
layer is left for the nearest lane that is free. So chains and long edges are straight.
"""

from collections.abc import Sequence
from itertools import count
from typing import TypeAlias

import msgspec

Point: TypeAlias = tuple[float, float]

_BESIDE = 22.0
"""Pixels between lanes."""

_BELOW = 40.0, 90.0
"""Least and most pixels between layers; the more edges, the more there are."""

_MOST_BENDS = 20_000
"""With more, edges take the straight way."""


class LayeredGraph(msgspec.Struct, frozen=True):
    """Where the centres of nodes are, and by which points edges lead, in pixels."""

    width: float
    height: float
    centres: Sequence[Point]
    routes: Sequence[Sequence[Point]]
    """From below a node to above another; between layers an edge may bend."""
    layers: Sequence[Sequence[int]]
    """Nodes from top to bottom, and from left to right."""


def lay_out(boxes: Sequence[Point], edges: Sequence[tuple[int, int]]) -> LayeredGraph:
    """Return a layout of nodes, whose widths and heights are ``boxes``.

    :raises ValueError: if edges lead in a circle.
    """
    ranks = ranks_of(len(boxes), edges)
    layers: list[list[int]] = [[] for _ in range(max(ranks, default=-1) + 1)]
    for node, rank in enumerate(ranks):
        layers[rank].append(node)
    lanes = _lanes(layers, ranks, edges)
    widths: dict[int, float] = {}
    for (node, rank), lane in lanes.items():
        width = boxes[node][0] if rank == ranks[node] else 0.0
        widths[lane] = max(widths.get(lane, 0.0), width)
    xs: dict[int, float] = {}
    right = 0.0
    for lane in sorted(widths):
        xs[lane] = right + widths[lane] / 2
        right += widths[lane] + _BESIDE
    heights = [max(boxes[node][1] for node in layer) for layer in layers]
    passing = [0] * len(layers)
    for source, target in edges:
        for rank in range(ranks[source], ranks[target]):
            passing[rank] += 1
    tops = [0.0]
    least, most = _BELOW
    for height, number in zip(heights, passing, strict=True):
        tops.append(tops[-1] + height + min(most, least + 2 * number))
    centres = [
        (xs[lanes[node, rank]], tops[rank] + heights[rank] / 2)
        for node, rank in enumerate(ranks)
    ]
    routes = []
    for source, target in edges:
        (x, y), (right_x, below) = centres[source], centres[target]
        route = [(x, y + boxes[source][1] / 2)]
        for rank in range(ranks[source] + 1, ranks[target]):
            if (source, rank) in lanes:
                at = xs[lanes[source, rank]]
                route += [(at, tops[rank]), (at, tops[rank] + heights[rank])]
        routes.append([*route, (right_x, below - boxes[target][1] / 2)])
    return LayeredGraph(
        width=max(right - _BESIDE, 0.0),
        height=tops[len(heights) - 1] + heights[-1] if heights else 0.0,
        centres=centres,
        routes=routes,
        layers=[sorted(layer, key=lambda node: centres[node]) for layer in layers],
    )


def _lanes(
    layers: Sequence[Sequence[int]],
    ranks: Sequence[int],
    edges: Sequence[tuple[int, int]],
) -> dict[tuple[int, int], int]:
    """Return lanes by node and layer: its own, or one that edges from it pass."""
    firsts: dict[int, int] = {}
    last = list(ranks)
    for source, target in edges:
        firsts.setdefault(target, source)
        last[source] = max(last[source], ranks[target] - 1)
    bends = sum(end - rank for end, rank in zip(last, ranks, strict=True))
    lanes: dict[tuple[int, int], int] = {}
    passing: list[int] = []
    for rank, layer in enumerate(layers):
        taken: set[int] = set()
        for node in (*layer, *passing):
            before = firsts.get(node, node) if rank == ranks[node] else node
            wish = lanes.get((before, rank - 1), lanes.get((before, ranks[before]), 0))
            near = (lane for n in count() for lane in (wish + n, wish - n))
            lane = next(each for each in near if each >= 0 and each not in taken)
            lanes[node, rank] = lane
            taken.add(lane)
        if bends <= _MOST_BENDS:
            passing = [node for node in (*passing, *layer) if last[node] > rank]
    return lanes


def ranks_of(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the layer of each node.

    :raises ValueError: if edges lead in a circle.
    """
    after: list[list[int]] = [[] for _ in range(count)]
    missing = [0] * count
    for source, target in edges:
        after[source].append(target)
        missing[target] += 1
    is_source = [not number for number in missing]
    ready = [node for node in range(count) if is_source[node]]
    ranks = [0] * count
    for node in ready:
        for target in after[node]:
            ranks[target] = max(ranks[target], ranks[node] + 1)
            missing[target] -= 1
            if not missing[target]:
                ready.append(target)
    if len(ready) < count:
        raise ValueError("edges of the graph lead in a circle")
    for node in range(count):
        if is_source[node] and after[node]:
            ranks[node] = min(ranks[target] for target in after[node]) - 1
    return ranks
