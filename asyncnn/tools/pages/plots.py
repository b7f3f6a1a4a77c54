"""Draws distributions, bars and histories.

Curves are SVG that is stretched to the width there is; labels are text beside it, of
one size on a desk and on a phone. What hovering over a plot reads is in its *stops*:
texts for places along one axis, so that the script of the page formats nothing.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import pairwise

import msgspec
import numpy as np

from asyncnn.tools.pages import Bars, Distributions, History
from asyncnn.tools.pages.scales import (
    Scale,
    decades_of,
    figure,
    finite,
    measure,
    scale_of,
)

COLOURS = 8
"""As many are in the style sheet; further series have them again, dashed."""

_SIDE = 1000
"""Of the square that curves are drawn in before it is stretched."""

_QUANTILES = (*(n / 100 for n in range(101)), 0.995, 0.999)
_QUARTERS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
_MOST_POINTS = 400
_MOST_LABELS = 7

_AXIS = 110
"""Characters that an axis has room for on a wide page."""

_LONG = 10
"""Characters of labels of which only the outer ones fit on a narrow page."""

_EDGE = 0.03
"""Labels closer to an end of an axis do not reach over it."""


class Stop(msgspec.Struct, frozen=True):
    """What is read at one place of a plot."""

    at: float
    """Percent along the axis, from the left or the top."""
    label: str
    texts: Sequence[str]
    """Of each series."""
    marks: Sequence[float | None]
    """Percent along the other axis, of each series."""


def script_data(value: object) -> str:
    """Return JSON that can stand in a script element, whatever strings are in it."""
    text = msgspec.json.encode(value).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def colour_of(place: int) -> str:
    """Return the classes of the series at a place."""
    return f"c{place % COLOURS}{' again' if place >= COLOURS else ''}"


def broken(name: str) -> str:
    """Return a name as markup that may go on in a new line between its parts."""
    return re.sub(r"(?<=\w)([_/:.])(?=\w)", r"\1<wbr>", escape(name))


def _quantile(ordered: Sequence[float], share: float) -> float:
    return float(np.quantile(ordered, share))


def distributions(part: Distributions) -> Iterator[str]:
    """Yield curves of the share of values at most as large, and a table of them."""
    series = {name: sorted(finite(values)) for name, values in part.series.items()}
    values = [value for each in series.values() for value in each]
    if not values:
        yield _nothing()
        return
    scale = scale_of(values)
    curves = [
        [(scale.at(_quantile(each, share)), 1 - share) for share in _shares(len(each))]
        for each in series.values()
        if each
    ]
    stops = [
        Stop(
            round(100 * (1 - share), 3),
            _quantile_name(share),
            [_at_most(each, share, part.unit) for each in series.values()],
            [
                round(100 * scale.at(_quantile(each, share)), 2) if each else None
                for each in series.values()
            ],
        )
        for share in sorted(_QUANTILES, reverse=True)
    ]
    places = [place for place, each in enumerate(series.values()) if each]
    yield '<div class="plot" data-along="y">'
    yield from _area(
        part.title,
        list(zip(places, curves, strict=True)),
        [(scale.at(tick), measure(tick, part.unit)) for tick in scale.ticks()],
        [(1 - share, _quantile_name(share)) for share in _QUARTERS],
        stops,
        list(series),
    )
    yield "</div>"
    yield from _quantiles(series, part.unit)


def _shares(count: int) -> list[float]:
    """Return the shares of the points of a curve, close together at both ends."""
    if count <= _MOST_POINTS:
        return [n / max(1, count - 1) for n in range(count)]
    even = (n / _MOST_POINTS for n in range(_MOST_POINTS + 1))
    ends = [n / count for n in range(1, 10)]
    return sorted({*even, *ends, *(1 - share for share in ends)})


def _quantile_name(share: float) -> str:
    if share in (0.0, 1.0):
        return "max" if share else "min"
    return f"p{100 * share:g}"


def _at_most(ordered: Sequence[float], share: float, unit: str) -> str:
    return measure(_quantile(ordered, share) if ordered else None, unit)


def _quantiles(series: dict[str, list[float]], unit: str) -> Iterator[str]:
    """Yield the legend: a table of what the curves say."""
    shares = 0.0, 0.5, 0.9, 0.99, 1.0
    yield '<div class="scroll"><table class="legend"><thead><tr><th scope="col">series'
    yield '</th><th scope="col">count</th>'
    yield from (f'<th scope="col">{_quantile_name(share)}</th>' for share in shares)
    yield "</tr></thead><tbody>"
    for place, (name, ordered) in enumerate(series.items()):
        yield f'<tr data-series="{place}"><th scope="row">{_key(place, name)}</th>'
        yield f"<td>{figure(len(ordered))}</td>"
        texts = (_at_most(ordered, share, unit) for share in shares)
        yield from (f"<td>{escape(text)}</td>" for text in texts)
        yield "</tr>"
    yield "</tbody></table></div>"


def bars(part: Bars) -> Iterator[str]:
    """Yield a legend and bars, with a line at each decade."""
    names = dict.fromkeys(name for group in part.groups.values() for name in group)
    places = {name: place for place, name in enumerate(names)}
    values = finite(value for group in part.groups.values() for value in group.values())
    above = [value for value in values if value > 0]
    if not above:
        yield _nothing()
        return
    scale = decades_of(above)
    if len(names) > 1:
        yield from _legend(names)
    ticks = [(scale.at(tick), measure(tick, part.unit)) for tick in _decades(scale)]
    yield f'<div class="bars" style="--decades:{len(ticks) - 1}">'
    for label, group in part.groups.items():
        yield f'<div class="group"><div class="name">{broken(label)}</div>'
        yield '<div class="track">'
        for name, value in group.items():
            text = escape(measure(value, part.unit))
            width = 100 * scale.at(value) if value in above else 0.0
            kind = f"bar {colour_of(places[name])}"
            yield (
                f'<div class="row" title="{escape(name)}: {text}">'
                f'<span class="{kind}" style="width:{width:.2f}%"></span>'
                f'<span class="value">{text}</span></div>'
            )
        yield "</div></div>"
    step = -(-len(ticks) // _MOST_LABELS)
    yield '<div class="group axis" aria-hidden="true"><div></div><div class="track">'
    yield from _tick_labels(ticks[::step], "left")
    yield "</div></div></div>"


def _decades(scale: Scale) -> list[float]:
    values = [scale.low]
    while values[-1] < scale.high / 2:
        values.append(values[-1] * 10)
    return values


def history(part: History) -> Iterator[str]:
    """Yield a line for each series, with a gap where it was not measured."""
    values = [value for each in part.series.values() for value in finite(each)]
    if not values or not part.runs:
        yield _nothing()
        return
    scale = scale_of(values)
    last = len(part.runs) - 1
    xs = [0.02 + 0.96 * n / last if last else 0.5 for n in range(last + 1)]
    curves = []
    for place, each in enumerate(part.series.values()):
        known = (value if finite([value]) else None for value in each)
        points = [
            None if value is None else (x, 1 - scale.at(value))
            for x, value in zip(xs, known, strict=False)
        ]
        curves += [(place, run) for run in _unbroken(points)]
    stops = [
        Stop(
            round(100 * x, 3),
            run,
            [measure(_value_at(each, n), part.unit) for each in part.series.values()],
            [
                None if value is None else round(100 * (1 - scale.at(value)), 2)
                for value in (_value_at(each, n) for each in part.series.values())
            ],
        )
        for n, (x, run) in enumerate(zip(xs, part.runs, strict=True))
    ]
    yield from _legend(part.series)
    yield '<div class="plot" data-along="x">'
    yield from _area(
        part.title,
        curves,
        [(xs[place], part.runs[place]) for place in _labelled(part.runs)],
        [(1 - scale.at(tick), measure(tick, part.unit)) for tick in scale.ticks()],
        stops,
        list(part.series),
    )
    yield "</div>"


def _labelled(runs: Sequence[str]) -> list[int]:
    """Return the places of runs that are labelled: the ends, and some between."""
    room = _AXIS // (max(map(len, runs)) + _LONG)
    parts = min(len(runs), max(2, min(room, _MOST_LABELS))) - 1
    last = len(runs) - 1
    return [round(n * last / parts) for n in range(parts + 1)] if parts else [0]


def _value_at(values: Sequence[float | None], place: int) -> float | None:
    known = finite(values[place : place + 1])
    return known[0] if known else None


def _unbroken(
    points: Iterable[tuple[float, float] | None],
) -> Iterator[list[tuple[float, float]]]:
    run: list[tuple[float, float]] = []
    for point in (*points, None):
        if point is not None:
            run.append(point)
        elif run:
            yield run
            run = []


def _area(
    title: str,
    curves: Sequence[tuple[int, Sequence[tuple[float, float]]]],
    across: Sequence[tuple[float, str]],
    down: Sequence[tuple[float, str]],
    stops: Sequence[Stop],
    names: Sequence[str],
) -> Iterator[str]:
    """Yield a plot: ``curves`` by place of their series, labels of both axes."""
    yield '<div class="labels">'
    yield from _tick_labels(down, "top")
    yield '</div><div class="area" tabindex="0" role="group" '
    yield f'aria-label="{escape(title)}: arrow keys read values">'
    yield f'<svg viewBox="0 0 {_SIDE} {_SIDE}" preserveAspectRatio="none" '
    yield 'role="presentation">'
    lines = [f"M{_SIDE * at:.0f} 0V{_SIDE}" for at, _ in across]
    lines += [f"M0 {_SIDE * at:.0f}H{_SIDE}" for at, _ in down]
    yield f'<path class="grid" d="{"".join(lines)}"/>'
    for place, points in curves:
        yield f'<path class="line {colour_of(place)}" data-series="{place}" '
        yield f'd="{_path(points)}"/>'
    yield "</svg>"
    # Dots are text beside the stretched square, which would make them ovals.
    if len(stops) <= _MOST_POINTS // 4:
        for place, points in curves:
            for x, y in points if len(points) < 30 else ():
                yield (
                    f'<i class="dot {colour_of(place)}" '
                    f'style="left:{100 * x:.2f}%;top:{100 * y:.2f}%"></i>'
                )
    yield '<div class="guide" hidden></div>'
    yield '<div class="tip" role="status" hidden></div></div>'
    yield '<div class="feet">'
    yield from _tick_labels(across, "left")
    yield "</div>"
    data = {"stops": stops, "series": names}
    yield f'<script type="application/json" class="stops">{script_data(data)}</script>'


def _path(points: Sequence[tuple[float, float]]) -> str:
    first, *others = ((_SIDE * x, _SIDE * y) for x, y in points)
    text = f"M{first[0]:.1f} {first[1]:.1f}"
    for (_, before), (x, y) in pairwise([first, *others]):
        text += f"L{x:.1f} {y:.1f}" if y != before else f"H{x:.1f}"
    return text + ("h0" if not others else "")


def _tick_labels(ticks: Sequence[tuple[float, str]], side: str) -> Iterator[str]:
    """Yield labels at percentages; a narrow page leaves some of them out."""
    last = len(ticks) - 1
    step = last if any(len(text) > _LONG for _, text in ticks) else 2
    for number, (at, text) in enumerate(ticks):
        kind = "tick minor" if last > 1 and number % step else "tick"
        if side == "left":
            kind += " early" if at < _EDGE else " late" if at > 1 - _EDGE else ""
        yield (
            f'<span class="{kind}" style="{side}:{100 * at:.2f}%" '
            f'title="{escape(text)}">{escape(text)}</span>'
        )


def _legend(names: Iterable[str]) -> Iterator[str]:
    yield '<ul class="legend">'
    for place, name in enumerate(names):
        yield f'<li data-series="{place}">{_key(place, name)}</li>'
    yield "</ul>"


def _key(place: int, name: str) -> str:
    return f'<span class="key {colour_of(place)}"></span>{escape(name)}'


def _nothing() -> str:
    return '<p class="note">Nothing was measured.</p>'
