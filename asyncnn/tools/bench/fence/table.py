"""The report of ``asyncnn bench fence`` as a table for the terminal."""

from rich.table import Table

from asyncnn.tools.bench.fence.report import (
    DESCRIPTIONS,
    GOALS,
    FencePlacement,
    FenceReport,
)
from asyncnn.tools.bench.placed import placed_table


def fence_table(report: FenceReport) -> Table:
    """Return a row for each contender and each goal, a column for each placement."""
    title = "microseconds, median over the rounds of medians"
    return placed_table(title, report.placements, DESCRIPTIONS, GOALS, _microseconds)


def _microseconds(placed: FencePlacement, name: str) -> str:
    return f"{placed.us[name]:.1f}"
