"""Shows reports: as tables for a terminal, and as a page.

On a page each section of a table is one of its own, as sorting would mix them: times
stand above, and what became of goals below.
"""

import re
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from asyncnn.tools.bench.report import Cell, Outcome, Report, Row, Table
from asyncnn.tools.pages import (
    Bars,
    Column,
    Judged,
    Page,
    Part,
    SortableTable,
    Text,
    Value,
)

_MARKUP = {True: " [green]met   [/]", False: " [bold red]MISSED[/]", None: " " * 7}
"""As wide as one another, so that figures line up."""

_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?(?![\w.])", re.IGNORECASE)


_WIDEST = 10_000
"""Columns that no table needs."""

_SHORT_NAME = 20
"""Columns of a name that is folded rather than a table divided."""


def draw_table(table: Table, out: Console) -> Iterator[RichTable]:
    """Yield a table for the terminal, in parts that have its first column each.

    A part has as many columns as fit where names are folded; one that is alone may be
    narrowed.
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
    sections = [
        [(str(row[0])[:_SHORT_NAME], *row[1:]) for row in section]
        for section in table.sections
    ]
    drawn = _drawn(table._replace(sections=sections), columns)
    return out.measure(drawn, options=widest).maximum <= out.width


def _drawn(table: Table, columns: Sequence[int]) -> RichTable:
    part = "" if columns[0] == 1 else ", continued"
    drawn = RichTable(title=f"{table.title}{part}")
    drawn.add_column(escape(table.headings[0]), overflow="fold")
    for column in columns:
        heading = escape(table.headings[column])
        drawn.add_column(heading, justify="right", no_wrap=len(columns) > 1)
    for section in table.sections:
        for row in section:
            cells = [row[column] for column in columns if column < len(row)]
            drawn.add_row(*map(_markup, (row[0], *cells)))
        drawn.add_section()
    return drawn


def _markup(cell: Cell) -> str:
    if isinstance(cell, Outcome):
        return escape(cell.text) + _MARKUP[cell.met]
    return escape(cell)


def page_of(name: str, report: Report) -> Page:
    """Return the page of a benchmark: a chart, the tables, the circumstances."""
    return Page(
        title=f"asyncnn bench {name}",
        parts=[*_parts(report)],
        circumstances=[
            f"{report.rounds} rounds, {report.where}.",
            str(report.environment),
        ],
    )


def _parts(report: Report) -> Iterator[Part]:
    bars = {label: group for label, group in report.bars().items() if group}
    if bars:
        note = "Shorter is better; the scale is logarithmic."
        yield Bars(title="Times", unit="us", groups=bars, note=note)
    for table in report.tables():
        times, *others = table.sections
        goals = [row for section in others for row in section]
        for title, rows in ((table.title, times), (f"{table.title}: goals", goals)):
            if rows:
                yield _section(title, table.headings, rows)
    yield from map(Text, report.notes())


def _section(title: str, headings: Sequence[str], rows: Sequence[Row]) -> SortableTable:
    """Return a table of the columns that say something in these rows."""
    kept = [n for n in range(len(headings)) if n == 0 or any(row[n] for row in rows)]
    return SortableTable(
        title=title,
        columns=[Column(headings[n] or "name") for n in kept],
        rows=[[_value(row[n], is_name=n == 0) for n in kept] for row in rows],
    )


def _value(cell: Cell, *, is_name: bool) -> Value:
    """Return a cell that looks as on the terminal and is sorted by its number."""
    if isinstance(cell, Outcome):
        return Judged(cell.text, cell.met, _number(cell.text))
    number = None if is_name else _number(cell)
    if number is None:
        return None if cell == "-" else cell
    return Judged(cell, None, number)


def _number(text: str) -> float | None:
    found = _NUMBER.match(text)
    return float(found[0]) if found else None
