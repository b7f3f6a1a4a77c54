"""The report of ``asyncnn bench service`` as a table for the terminal."""

from collections.abc import Iterator

from rich.markup import escape
from rich.table import Table

from asyncnn.bench.ratios import goal_cell
from asyncnn.bench.service.report import DESCRIPTIONS, GOALS, ServiceReport


def service_table(report: ServiceReport) -> Table:
    """Return a row for each contender and each goal, a column for each placement."""
    table = Table(title="microseconds, median over the rounds of medians")
    table.add_column("")
    for placed in report.placements:
        table.add_column(placed.placement, justify="right")
    for name, description in DESCRIPTIONS.items():
        cells = (_microseconds(placed.us.get(name)) for placed in report.placements)
        table.add_row(escape(description), *cells)
    table.add_section()
    for goal in GOALS:
        verdicts = (
            goal_cell(p.verdicts, goal.figure, goal.peer) for p in report.placements
        )
        table.add_row(f"{goal.figure} / {goal.peer}", *verdicts)
    return table


def service_notes(report: ServiceReport) -> Iterator[str]:
    """Yield what the table does not say: sizes, and who could not be measured."""
    exchange = report.exchange
    yield f"{exchange.request} bytes to the driver and {exchange.response} back"
    reasons = {name: why for p in report.placements for name, why in p.refusals.items()}
    for name, why in reasons.items():
        yield f"{name} was not measured: {why}"


def _microseconds(us: float | None) -> str:
    return "-" if us is None else f"{us:.1f}"
