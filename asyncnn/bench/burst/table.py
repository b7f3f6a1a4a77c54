"""The report of ``asyncnn bench burst`` as a table for the terminal."""

from collections.abc import Iterator

from rich.markup import escape
from rich.table import Table

from asyncnn.bench.burst.goals import DESCRIPTIONS, GOALS
from asyncnn.bench.burst.report import BurstPlacement, BurstReport
from asyncnn.bench.ratios import goal_cell, verdict_cell


def burst_table(report: BurstReport) -> Table:
    """Return a row for each contender and each goal, a column for each placement."""
    table = Table(title="microseconds: median over the rounds of medians, p99")
    table.add_column("")
    for placed in report.placements:
        table.add_column(placed.placement, justify="right")
    for name, description in DESCRIPTIONS.items():
        cells = (_times(placed, name) for placed in report.placements)
        table.add_row(escape(description), *cells)
    table.add_section()
    for goal in GOALS:
        cells = (
            goal_cell(p.verdicts, goal.figure, goal.peer) for p in report.placements
        )
        table.add_row(f"{goal.figure} / {goal.peer}", *cells)
    headline = report.headline
    if headline is not None:
        row = f"{headline.figure} / {headline.peer} of all placements"
        table.add_row(row, verdict_cell(headline))
    return table


def burst_notes(report: BurstReport) -> Iterator[str]:
    """Yield what the table does not say, like who could not be measured."""
    ring = "the compiled ring" if report.is_ring_compiled else "the ring in Python"
    yield f"queues and bursts have {ring}"
    exchange = report.exchange
    yield f"{exchange.request} bytes to the other process and {exchange.response} back"
    reasons = {name: why for p in report.placements for name, why in p.refusals.items()}
    for name, why in reasons.items():
        yield f"{name} was not measured: {why}"


def _times(placed: BurstPlacement, name: str) -> str:
    if name not in placed.us:
        return "-"
    return f"{placed.us[name]:.3g} {placed.p99_us[name]:8.4g}"
