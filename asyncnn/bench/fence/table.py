"""The report of ``asyncnn bench fence`` as a table for the terminal."""

from rich.markup import escape
from rich.table import Table

from asyncnn.bench.fence.report import DESCRIPTIONS, GOALS, FenceReport
from asyncnn.bench.ratios import goal_cell


def fence_table(report: FenceReport) -> Table:
    """Return a row for each contender and each goal, a column for each placement."""
    table = Table(title="microseconds, median over the rounds of medians")
    table.add_column("")
    for placed in report.placements:
        table.add_column(placed.placement, justify="right")
    for name, description in DESCRIPTIONS.items():
        cells = (f"{placed.us[name]:.1f}" for placed in report.placements)
        table.add_row(escape(description), *cells)
    table.add_section()
    for goal in GOALS:
        verdicts = (
            goal_cell(p.verdicts, goal.figure, goal.peer) for p in report.placements
        )
        table.add_row(f"{goal.figure} / {goal.peer}", *verdicts)
    return table
