"""Lays directed graphs out from top to bottom, in layers.

Each node lies below all from which edges come to it, as high as that allows, or just
above the first that it goes to if none comes to it. Edges pass the layers between
their ends at bends, which all edges from one node share. Nodes and bends of a layer
are ordered by the mean place of their neighbours, again and again downwards and
upwards, as long as fewer edges cross. They are then moved towards those neighbours
as far as their order and widths admit, by the least sum of squares.

Source: Sugiyama, Tagawa and Toda, "Methods for Visual Understanding of Hierarchical
System Structures" (1981); pool-adjacent-violators for the places.
"""

from bisect import bisect_right, insort
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import msgspec

Point: TypeAlias = tuple[float, float]

_BESIDE = 22.0
"""Pixels between nodes of a layer."""

_BELOW = 40.0, 90.0
"""Least and most pixels between layers; the more edges, the more there are."""

_MOST_BENDS = 20_000
"""With more, edges take the straight way."""

_ORDERINGS, _SHIFTS = 16, 16


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
    if not boxes:
        return LayeredGraph(0.0, 0.0, (), (), ())
    net = _Net(boxes, edges)
    net.order()
    net.place()
    return net.layout()


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


class _Net:
    """Nodes, and after them bends, with what leads to them and from them."""

    def __init__(
        self, boxes: Sequence[Point], edges: Sequence[tuple[int, int]]
    ) -> None:
        self.boxes, self.edges = boxes, edges
        self.ranks = ranks_of(len(boxes), edges)
        self.paths: list[list[int]] = []
        self._bend()
        count = len(self.ranks)
        self.above: list[list[int]] = [[] for _ in range(count)]
        self.below: list[list[int]] = [[] for _ in range(count)]
        joined = {pair for path in self.paths for pair in pairwise(path)}
        for upper, lower in sorted(joined):
            if self.ranks[lower] - self.ranks[upper] == 1:
                self.below[upper].append(lower)
                self.above[lower].append(upper)
        self.layers: list[list[int]] = [[] for _ in range(max(self.ranks) + 1)]
        for node in self._in_depth():
            self.layers[self.ranks[node]].append(node)
        self.xs = [0.0] * count

    def _bend(self) -> None:
        """Give each edge that spans layers a bend in each of them."""
        last = list(self.ranks)
        for source, target in self.edges:
            last[source] = max(last[source], self.ranks[target] - 1)
        spans = sum(end - rank for end, rank in zip(last, self.ranks, strict=True))
        bends: dict[tuple[int, int], int] = {}
        for source, target in self.edges:
            path = [source]
            between = range(self.ranks[source] + 1, self.ranks[target])
            for rank in between if spans <= _MOST_BENDS else ():
                if (source, rank) not in bends:
                    bends[source, rank] = len(self.ranks)
                    self.ranks.append(rank)
                path.append(bends[source, rank])
            self.paths.append([*path, target])

    def _in_depth(self) -> list[int]:
        """Return all in the order in which they are met from above."""
        met: dict[int, None] = {}
        for first in sorted(range(len(self.ranks)), key=self.ranks.__getitem__):
            waiting = [first]
            while waiting:
                node = waiting.pop()
                if node not in met:
                    met[node] = None
                    waiting += reversed(self.below[node])
        return list(met)

    def order(self) -> None:
        """Order the layers so that few edges cross."""
        best = self._crossings()
        kept = [list(layer) for layer in self.layers]
        for sweep in range(_ORDERINGS):
            if not best:
                break
            down = sweep % 2 == 0
            near = self.above if down else self.below
            for layer in self.layers if down else reversed(self.layers):
                self._sort(layer, near)
            crossings = self._crossings()
            if crossings < best:
                best, kept = crossings, [list(layer) for layer in self.layers]
        self.layers = kept

    def _sort(self, layer: list[int], near: Sequence[Sequence[int]]) -> None:
        places = {
            other: place
            for rank in {self.ranks[other] for node in layer for other in near[node]}
            for place, other in enumerate(self.layers[rank])
        }
        means = {
            node: sum(places[other] for other in near[node]) / len(near[node])
            if near[node]
            else float(place)
            for place, node in enumerate(layer)
        }
        layer.sort(key=means.__getitem__)

    def _crossings(self) -> int:
        count = 0
        for upper, lower in pairwise(self.layers):
            places = {node: place for place, node in enumerate(lower)}
            seen: list[int] = []
            for node in upper:
                ends = sorted(places[other] for other in self.below[node])
                count += sum(len(seen) - bisect_right(seen, end) for end in ends)
                for end in ends:
                    insort(seen, end)
        return count

    def place(self) -> None:
        """Move all sideways, near to their neighbours."""
        for layer in self.layers:
            for node, x in zip(layer, self._apart(layer), strict=True):
                self.xs[node] = x
        for shift in range(_SHIFTS):
            down = shift % 2 == 0
            for layer in self.layers if down else reversed(self.layers):
                self._shift(layer, self.above if down else self.below)
        for layer in self.layers:
            self._shift(layer, self.above, self.below)
        left = min(x - self._width(n) / 2 for n, x in enumerate(self.xs))
        self.xs = [x - left for x in self.xs]

    def _apart(self, layer: Sequence[int]) -> list[float]:
        """Return the places of a layer when all stand as close as they may."""
        xs = [0.0]
        for one, other in pairwise(layer):
            room = (self._width(one) + self._width(other)) / 2 + _BESIDE
            xs.append(xs[-1] + room)
        return [x - xs[-1] / 2 for x in xs]

    def _shift(self, layer: Sequence[int], *near: Sequence[Sequence[int]]) -> None:
        least = self._apart(layer)
        blocks: list[tuple[float, float, int]] = []
        for node, closest in zip(layer, least, strict=True):
            pulls = [
                (self._pull(node, other), self.xs[other])
                for side in near
                for other in side[node]
            ] or [(0.01, self.xs[node])]
            weight = sum(pull for pull, _ in pulls)
            wish = sum(pull * x for pull, x in pulls) / weight - closest
            block = (wish, weight, 1)
            while blocks and blocks[-1][0] > block[0]:
                before, heavy, length = blocks.pop()
                total = heavy + block[1]
                mean = (before * heavy + block[0] * block[1]) / total
                block = (mean, total, length + block[2])
            blocks.append(block)
        wishes = [wish for wish, _, length in blocks for _ in range(length)]
        for node, closest, wish in zip(layer, least, wishes, strict=True):
            self.xs[node] = wish + closest

    def _pull(self, *ends: int) -> float:
        """Return how much an edge counts: those between bends become straight."""
        return (1.0, 2.0, 8.0)[sum(end >= len(self.boxes) for end in ends)]

    def _width(self, node: int) -> float:
        return self.boxes[node][0] if node < len(self.boxes) else 0.0

    def layout(self) -> LayeredGraph:
        """Return the layout, with the layers one below the other."""
        count = len(self.boxes)
        heights = [
            max((self.boxes[node][1] for node in layer if node < count), default=0.0)
            for layer in self.layers
        ]
        tops = [0.0]
        least, most = _BELOW
        for height, layer in zip(heights, self.layers, strict=True):
            edges = sum(len(self.below[node]) for node in layer)
            tops.append(tops[-1] + height + min(most, least + 2 * edges))
        middles = [tops[rank] + heights[rank] / 2 for rank in range(len(self.layers))]
        centres = [(self.xs[n], middles[self.ranks[n]]) for n in range(count)]
        return LayeredGraph(
            width=max(x + self._width(n) / 2 for n, x in enumerate(self.xs)),
            height=tops[len(heights) - 1] + heights[-1],
            centres=centres,
            routes=self._routes(centres, tops, heights),
            layers=[[n for n in layer if n < count] for layer in self.layers],
        )

    def _routes(
        self, centres: Sequence[Point], tops: Sequence[float], heights: Sequence[float]
    ) -> list[list[Point]]:
        entries = self._entries()
        routes = []
        for edge, path in enumerate(self.paths):
            source, *bends, target = path
            x, y = centres[source]
            route = [(x, y + self.boxes[source][1] / 2)]
            for bend in bends:
                top = tops[self.ranks[bend]]
                route += [
                    (self.xs[bend], top),
                    (self.xs[bend], top + heights[self.ranks[bend]]),
                ]
            _, y = centres[target]
            routes.append([*route, (entries[edge], y - self.boxes[target][1] / 2)])
        return routes

    def _entries(self) -> dict[int, float]:
        """Return where edges reach their nodes: side by side, in their order."""
        coming: dict[int, list[int]] = {}
        for edge, path in enumerate(self.paths):
            coming.setdefault(path[-1], []).append(edge)
        entries = {}
        for node, edges in coming.items():
            edges.sort(key=lambda edge: self.xs[self.paths[edge][-2]])
            room = self._width(node) * 0.6
            for place, edge in enumerate(edges, 1):
                offset = place / (len(edges) + 1) - 0.5
                entries[edge] = self.xs[node] + room * offset
        return entries
