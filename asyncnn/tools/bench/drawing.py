"""Draws reports: as tables for a terminal, and as one self-contained HTML page."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import cycle
from string import Template

from rich.console import Console
from rich.markup import escape as escape_markup
from rich.table import Table as RichTable

from asyncnn.tools.bench.report import Bars, Cell, Outcome, Report, Table

_MARKUP = {True: " [green]met   [/]", False: " [bold red]MISSED[/]", None: " " * 7}
"""As wide as one another, so that figures line up."""

_HTML = {True: " met", False: ' <span class="missed">missed</span>', None: ""}

_WIDEST = 10_000
"""Columns that no table needs."""

_PLOT = 620
"""Pixels of all decades."""

_COLOURS = ("#2a6fdb", "#8db7f5", "#e08a1e", "#8a8f98", "#2e9e6b")

_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>asyncnn bench $name</title>
<style>
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto;
  padding: 0 1rem; }
.chart td + td { padding: 6px 5rem 6px 0; text-align: left; font-size: 10px;
  line-height: 11px; background: repeating-linear-gradient(to right,
  color-mix(in srgb, currentColor 20%, transparent) 0 1px, transparent 1px
  var(--decade)); }
.legend i { display: inline-block; width: 0.9em; height: 0.9em; margin: 0 0.4em 0 1em; }
table { border-collapse: collapse; margin: 1.5rem 0; }
caption { text-align: left; }
th, td { padding: 0.15rem 0.7rem; text-align: right; }
th:first-child, td:first-child { text-align: left; }
tr + tr { border-top: 1px solid color-mix(in srgb, currentColor 20%, transparent); }
.missed { font-weight: bold; color: #d33; }
</style>
</head>
<body>
<h1>asyncnn bench $name</h1>
$chart
$tables
$notes
<p>$rounds rounds, $where.<br>$environment</p>
</body>
</html>
""")


def draw_table(table: Table, out: Console) -> Iterator[RichTable]:
    """Yield a table for the terminal, in parts that have its first column each.

    A part has as many columns as fit; one that is alone may be narrowed.
    """
    left = range(1, len(table.headings))
    while left:
        count = 1
        while count < len(left) and _fits(table, left[: count + 1], out):
            count += 1
        yield _drawn(table, left[:count])
        left = left[count:]


def _fits(table: Table, columns: Sequence[int], out: Console) -> bool:
    widest = out.options.update(max_width=_WIDEST)
    return out.measure(_drawn(table, columns), options=widest).maximum <= out.width


def _drawn(table: Table, columns: Sequence[int]) -> RichTable:
    part = "" if columns[0] == 1 else ", continued"
    drawn = RichTable(title=f"{table.title}{part}")
    names = [str(row[0]) for section in table.sections for row in section]
    first = escape_markup(table.headings[0])
    drawn.add_column(first, no_wrap=not any(" " in name for name in names))
    for column in columns:
        drawn.add_column(escape_markup(table.headings[column]), justify="right")
    for section in table.sections:
        for row in section:
            cells = [row[column] for column in columns if column < len(row)]
            drawn.add_row(*map(_markup, (row[0], *cells)))
        drawn.add_section()
    return drawn


def _markup(cell: Cell) -> str:
    if isinstance(cell, Outcome):
        return escape_markup(cell.text) + _MARKUP[cell.met]
    return escape_markup(cell)


def draw_page(name: str, report: Report) -> str:
    """Return the page of a benchmark: a chart, the tables, the circumstances."""
    return _PAGE.substitute(
        name=name,
        rounds=report.rounds,
        chart="\n".join(_chart(report.bars())),
        tables="\n".join(map(_table, report.tables())),
        notes="\n".join(f"<p>{escape(note)}</p>" for note in report.notes()),
        where=escape(report.where),
        environment=escape(str(report.environment)),
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in table.headings)
    rows = "\n".join(
        f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>"
        for section in table.sections
        for row in section
    )
    caption = f"<caption>{escape(table.title)}</caption>"
    return f"<table>\n{caption}\n<tr>{head}</tr>\n{rows}\n</table>"


def _cell(cell: Cell) -> str:
    if isinstance(cell, Outcome):
        return escape(cell.text) + _HTML[cell.met]
    return escape(cell)


def _chart(bars: Bars) -> Iterator[str]:
    """Yield a legend and horizontal bars of microseconds, with a line each decade."""
    times = [us for group in bars.values() for us in group.values() if us > 0]
    if not times:
        return
    first, last = (math.floor(math.log10(us)) for us in (min(times), max(times)))
    decade = _PLOT / (last + 1 - first)
    series = dict.fromkeys(name for group in bars.values() for name in group)
    colours = dict(zip(series, cycle(_COLOURS)))
    yield "<p>Shorter is better; the scale is logarithmic: lines are at "
    yield f"{', '.join(_readable(10.0**n) for n in range(first, last + 1))}.</p>"
    yield '<p class="legend">'
    for name, colour in colours.items():
        yield f'<i style="background: {colour}"></i>{escape(name)}'
    yield f'</p><table class="chart" style="--decade: {decade:.1f}px">'
    for label, group in bars.items():
        yield f"<tr><td>{escape(label)}</td><td>"
        for name, us in group.items():
            width = max(1.0, decade * (math.log10(max(us, 10.0**first)) - first))
            yield (
                f'<div><svg width="{width:.1f}" height="10">'
                f'<rect fill="{colours[name]}" width="{width:.1f}" height="10">'
                f"<title>{escape(name)}: {us:.1f} us</title></rect></svg> "
                f"{_readable(us)}</div>"
            )
        yield "</td></tr>"
    yield "</table>"


def _readable(us: float) -> str:
    for limit, unit, name in ((1e3, 1.0, "us"), (1e6, 1e3, "ms")):
        if us < limit:
            return f"{us / unit:.3g} {name}"
    return f"{us / 1e6:.3g} s"
