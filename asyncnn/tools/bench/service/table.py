"""The report of ``asyncnn bench service`` as a table for the terminal."""

from collections.abc import Iterator

from rich.table import Table

from asyncnn.tools.bench.placed import placed_table, refusal_notes
from asyncnn.tools.bench.service.report import (
    DESCRIPTIONS,
    GOALS,
    ServicePlacement,
    ServiceReport,
)


def service_table(report: ServiceReport) -> Table:
    """Return a row for each contender and each goal, a column for each placement."""
    title = "microseconds, median over the rounds of medians"
    return placed_table(title, report.placements, DESCRIPTIONS, GOALS, _microseconds)


def service_notes(report: ServiceReport) -> Iterator[str]:
    """Yield what the table does not say: sizes, and who could not be measured."""
    exchange = report.exchange
    yield f"{exchange.request} bytes to the driver and {exchange.response} back"
    yield from refusal_notes(report.placements)


def _microseconds(placed: ServicePlacement, name: str) -> str:
    us = placed.us.get(name)
    return "-" if us is None else f"{us:.1f}"
