"""Draws graphs of operations as SVG, with a panel for what a click shows."""

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise

from asyncnn.tools.pages import DrawnGraph, DrawnNode
from asyncnn.tools.pages.layering import LayeredGraph, Point, lay_out
from asyncnn.tools.pages.plots import COLOURS

_CHARACTER, _LINE = 6.7, 15.0
"""Pixels of a character of the monospaced type, and from one line to the next."""

_PADDING = 10.0, 7.0
_NARROWEST = 64.0
_MOST_CHARACTERS, _MOST_LINES = 30, 3
_MARGIN = 24.0


def graph(part: DrawnGraph) -> Iterator[str]:
    """Yield a legend, the graph in a box that scrolls, and a panel beside it.

    :raises ValueError: if two nodes have one name, an edge names a node that is not
        there, or edges lead in a circle.
    """
    numbers = {node.name: number for number, node in enumerate(part.nodes)}
    if len(numbers) < len(part.nodes):
        raise ValueError("two nodes of the graph have one name")
    try:
        edges = [(numbers[source], numbers[target]) for source, target, _ in part.edges]
    except KeyError as missing:
        raise ValueError(f"the graph has no node {missing}") from None
    if not part.nodes:
        yield '<p class="note">The graph is empty.</p>'
        return
    lines = [_lines(node.label or node.name) for node in part.nodes]
    layout = lay_out([_box(each) for each in lines], edges)
    most = max(node.share for node in part.nodes)
    groups = dict.fromkeys(node.group for node in part.nodes if node.group)
    colours = {name: f"c{place % COLOURS}" for place, name in enumerate(groups)}
    yield '<div class="graph">'
    yield from _head(most, colours)
    yield '<div class="canvas" tabindex="0" role="region" '
    yield f'aria-label="{escape(part.title)}, scrolls">'
    width, height = layout.width + 2 * _MARGIN, layout.height + 2 * _MARGIN
    yield f'<svg width="{width:.0f}" height="{height:.0f}" '
    yield f'viewBox="{-_MARGIN:.0f} {-_MARGIN:.0f} {width:.0f} {height:.0f}">'
    yield from _edges(part, edges, layout)
    for layer in layout.layers:
        for number in sorted(layer, key=lambda each: layout.centres[each]):
            node = part.nodes[number]
            strength = node.share / most if most > 0 else 0.0
            colour = colours.get(node.group, "")
            centre = layout.centres[number]
            yield from _node(number, node, lines[number], centre, strength, colour)
    yield "</svg></div>"
    yield '<aside aria-live="polite"><p class="note">Click a node for its details.'
    yield "</p></aside></div>"


def _head(most: float, colours: Mapping[str, str]) -> Iterator[str]:
    yield '<div class="tools">'
    if most > 0:
        yield f'<span class="heat">share 0 %<i></i>{100 * most:.3g} %</span>'
    if colours:
        yield '<ul class="legend">'
        for name, colour in colours.items():
            yield f'<li><span class="key ring {colour}"></span>{escape(name)}</li>'
        yield "</ul>"
    yield (
        '<span class="controls" hidden><input type="search" placeholder="Find a node" '
        'aria-label="Find a node"><output></output>'
        '<button type="button" data-zoom="out" aria-label="Smaller">&minus;</button>'
        '<button type="button" data-zoom="in" aria-label="Larger">+</button>'
        '<button type="button" data-zoom="fit">Fit</button></span></div>'
    )


def _lines(label: str) -> list[str]:
    lines = [line for line in label.splitlines() if line.strip()] or [label]
    return [_cut(line) for line in lines[:_MOST_LINES]]


def _cut(line: str) -> str:
    if len(line) <= _MOST_CHARACTERS:
        return line
    return line[: _MOST_CHARACTERS - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _columns(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)


def _box(lines: Sequence[str]) -> Point:
    width = _CHARACTER * max(map(_columns, lines)) + 2 * _PADDING[0]
    return max(_NARROWEST, width), _LINE * len(lines) + 2 * _PADDING[1]


def _node(
    number: int,
    node: DrawnNode,
    lines: Sequence[str],
    centre: Point,
    strength: float,
    colour: str,
) -> Iterator[str]:
    width, height = _box(lines)
    x, y = centre
    yield (
        f'<g class="node {colour}" data-node="{number}" tabindex="-1" role="button" '
        f'style="--strength:{100 * strength:.1f}%">'
        f"<title>{escape(node.label)}</title>"
        f'<rect x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" '
        f'width="{width:.1f}" height="{height:.1f}" rx="6"/>'
    )
    top = y - _LINE * (len(lines) - 1) / 2
    for place, line in enumerate(lines):
        yield (
            f'<text class="{"more" if place else "first"}" x="{x:.1f}" '
            f'y="{top + _LINE * place:.1f}">{escape(line)}</text>'
        )
    yield "</g>"


def _edges(
    part: DrawnGraph, edges: Sequence[tuple[int, int]], layout: LayeredGraph
) -> Iterator[str]:
    """Yield the edges, then their labels, each once for a node."""
    yield '<g class="edges">'
    for number, route in enumerate(layout.routes):
        source, target = edges[number]
        yield (
            f'<path class="edge" data-edge="{number}" data-from="{source}" '
            f'data-to="{target}" d="{_curve(route)}"/>'
        )
    yield "</g>"
    labelled: set[tuple[int, str]] = set()
    for (source, _), (_, _, label), route in zip(
        edges, part.edges, layout.routes, strict=True
    ):
        if label and (source, label) not in labelled:
            labelled.add((source, label))
            (x, y), (right, below), *_ = route
            yield (
                f'<text class="label" x="{(x + right) / 2 + 5:.1f}" '
                f'y="{(y + below) / 2 + 3.5:.1f}">{escape(_cut(label))}</text>'
            )


def _curve(route: Sequence[Point]) -> str:
    """Return a path that leaves and enters layers vertically, with an arrowhead."""
    text = f"M{route[0][0]:.1f} {route[0][1]:.1f}"
    for (x, y), (right, below) in pairwise(route):
        if abs(x - right) < 0.5:
            text += f"L{right:.1f} {below:.1f}"
        else:
            half = (y + below) / 2
            text += (
                f"C{x:.1f} {half:.1f} {right:.1f} {half:.1f} {right:.1f} {below:.1f}"
            )
    return text + "m-3.5 -7l3.5 7l3.5 -7"
