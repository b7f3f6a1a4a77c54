"""The report of ``asyncnn bench burst`` as a table for the terminal."""

from collections.abc import Iterator

from rich.table import Table

from asyncnn.tools.bench.burst.goals import DESCRIPTIONS, GOALS
from asyncnn.tools.bench.burst.report import BurstPlacement, BurstReport
from asyncnn.tools.bench.placed import placed_table, refusal_notes
from asyncnn.tools.bench.ratios import verdict_cell


def burst_table(report: BurstReport) -> Table:
    """Return a row for each contender and each goal, a column for each placement."""
    title = "microseconds: median over the rounds of medians, p99"
    table = placed_table(title, report.placements, DESCRIPTIONS, GOALS, _times)
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
    yield from refusal_notes(report.placements)


def _times(placed: BurstPlacement, name: str) -> str:
    if name not in placed.us:
        return "-"
    return f"{placed.us[name]:.3g} {placed.p99_us[name]:8.4g}"
