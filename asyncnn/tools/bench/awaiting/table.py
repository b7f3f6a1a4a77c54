"""The report of ``asyncnn bench awaiting`` as a table for the terminal."""

from rich.markup import escape
from rich.table import Table

from asyncnn.tools.bench.awaiting.report import (
    DESCRIPTIONS,
    RUN,
    TO_THREAD,
    AwaitingReport,
    PlacementReport,
)


def awaiting_table(report: AwaitingReport) -> Table:
    """Return a row for each contender and one for the goal, a column each placement."""
    table = Table(title="microseconds, median over the rounds of medians")
    table.add_column("", no_wrap=True)
    for placed in report.placements:
        table.add_column(placed.placement, justify="right")
    for name, description in DESCRIPTIONS.items():
        cells = (f"{placed.us[name]:.1f}" for placed in report.placements)
        table.add_row(escape(description), *cells)
    table.add_section()
    table.add_row(f"{RUN} / {TO_THREAD}", *map(_verdict, report.placements))
    return table


def _verdict(placed: PlacementReport) -> str:
    outcome = "[green]met[/]" if placed.met else "[bold red]MISSED[/]"
    return f"{placed.ratio:.3f} <= {placed.limit:g} {outcome}"
