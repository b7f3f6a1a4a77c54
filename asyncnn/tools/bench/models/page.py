"""Draws the report of ``asyncnn bench models`` as one self-contained HTML page."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from string import Template

from asyncnn.tools.bench.goals import LITERT, LITERT_REF, Verdict
from asyncnn.tools.bench.models.report import AWAITED, DEVICE, ModelReport, ModelsReport

_SERIES = {
    DEVICE: "asyncnn, on the device",
    AWAITED: "asyncnn, awaited",
    LITERT: "LiteRT (XNNPACK)",
    LITERT_REF: "LiteRT, reference kernels",
}

_LABELS = 190
_PLOT = 620
_VALUES = 70
_BAR = 11
_GROUP = len(_SERIES) * _BAR + 16
_AXIS = 24

_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>asyncnn bench models</title>
<style>
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto;
  padding: 0 1rem; }
svg { width: 100%; height: auto; }
svg text { font-size: 12px; fill: currentColor; }
svg .value { font-size: 10px; }
line { stroke: currentColor; stroke-opacity: 0.2; }
.device { fill: #2a6fdb; background: #2a6fdb; }
.awaited { fill: #8db7f5; background: #8db7f5; }
.litert { fill: #e08a1e; background: #e08a1e; }
.litert_ref { fill: #8a8f98; background: #8a8f98; }
.legend i { display: inline-block; width: 0.9em; height: 0.9em; margin: 0 0.4em 0 1em; }
table { border-collapse: collapse; margin: 1.5rem 0; }
th, td { padding: 0.15rem 0.7rem; text-align: right; }
th:first-child, td:first-child, td:last-child { text-align: left; }
tr + tr { border-top: 1px solid color-mix(in srgb, currentColor 20%, transparent); }
.missed { font-weight: bold; color: #d33; }
</style>
</head>
<body>
<h1>asyncnn beside LiteRT</h1>
<p>Microseconds of one inference with one thread: the median over $rounds interleaved
rounds of each round's median. Shorter is better; the scale is logarithmic.</p>
<p class="legend">$legend</p>
$chart
$table
$refusals
<p>$placement.<br>$environment</p>
</body>
</html>
""")


def draw_page(report: ModelsReport) -> str:
    """Return the page: a bar chart, the figures with their goals, the circumstances."""
    return _PAGE.substitute(
        rounds=report.rounds,
        legend="".join(
            f'<i class="{name}"></i>{escape(title)}' for name, title in _SERIES.items()
        ),
        chart=_chart(report.models),
        table=_table(report.models),
        refusals=_refusals(report.models),
        placement=escape(report.placement),
        environment=escape(str(report.environment)),
    )


def _chart(models: Sequence[ModelReport]) -> str:
    times = [us for model in models for us in model.us.values() if us > 0]
    if not times:
        return ""
    decades = range(
        math.floor(math.log10(min(times))), math.floor(math.log10(max(times))) + 2
    )
    height = _AXIS + _GROUP * len(models)
    parts = [
        f'<svg viewBox="0 0 {_LABELS + _PLOT + _VALUES} {height}" role="img">',
        *(_grid_line(decade, decades, height) for decade in decades),
    ]
    for number, model in enumerate(models):
        parts.extend(_bars(model, _AXIS + number * _GROUP, decades))
    return "\n".join([*parts, "</svg>"])


def _x(us: float, decades: range) -> float:
    """Return how far from the left of the plot ``us`` lies."""
    exponent = math.log10(max(us, 10.0 ** decades[0]))
    return _PLOT * (exponent - decades[0]) / (decades[-1] - decades[0])


def _grid_line(decade: int, decades: range, height: int) -> str:
    us = 10.0**decade
    x = _LABELS + _x(us, decades)
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_AXIS - 6}" y2="{height}"/>'
        f'<text x="{x:.1f}" y="12" text-anchor="middle">{_readable(us)}</text>'
    )


def _bars(model: ModelReport, top: int, decades: range) -> Iterable[str]:
    middle = top + len(_SERIES) * _BAR / 2
    yield (
        f'<text x="{_LABELS - 8}" y="{middle + 4:.1f}" text-anchor="end">'
        f"{escape(model.model)}</text>"
    )
    for row, name in enumerate(_SERIES):
        if name not in model.us:
            continue
        us, y = model.us[name], top + row * _BAR
        width = max(1.0, _x(us, decades))
        yield (
            f'<rect class="{name}" x="{_LABELS}" y="{y}" width="{width:.1f}" '
            f'height="{_BAR - 1}"><title>{escape(_SERIES[name])}: {us:.1f} us</title>'
            f"</rect>"
            f'<text class="value" x="{_LABELS + width + 4:.1f}" y="{y + _BAR - 2}">'
            f"{_readable(us)}</text>"
        )


def _readable(us: float) -> str:
    for limit, unit, name in ((1e3, 1.0, "us"), (1e6, 1e3, "ms")):
        if us < limit:
            return f"{us / unit:.3g} {name}"
    return f"{us / 1e6:.3g} s"


def _table(models: Sequence[ModelReport]) -> str:
    headings = ("model", *_SERIES.values(), "/ LiteRT", "/ reference", "goals")
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    rows = "\n".join(f"<tr>{_cells(model)}</tr>" for model in models)
    return f"<table>\n<tr>{head}</tr>\n{rows}\n</table>"


def _cells(model: ModelReport) -> str:
    times = (f"{model.us[n]:.1f}" if n in model.us else "-" for n in _SERIES)
    ratios = (
        f"{model.ratios[peer]:.3g}" if peer in model.ratios else "-"
        for peer in (LITERT, LITERT_REF)
    )
    goals = "<br>".join(_verdict(verdict) for verdict in model.verdicts)
    cells = (escape(model.model), *times, *ratios, goals)
    return "".join(f"<td>{cell}</td>" for cell in cells)


def _verdict(verdict: Verdict) -> str:
    peer = "reference" if verdict.peer == LITERT_REF else "LiteRT"
    outcome = "met" if verdict.met else '<span class="missed">missed</span>'
    return f"{peer} &le; {verdict.limit:g} {outcome}"


def _refusals(models: Sequence[ModelReport]) -> str:
    return "\n".join(
        f"<p>{escape(model.model)}, {escape(_SERIES[name])}: {escape(reason)}</p>"
        for model in models
        for name, reason in model.refusals.items()
    )
