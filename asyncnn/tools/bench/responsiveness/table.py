"""The report of ``asyncnn bench responsiveness`` as a table for the terminal."""

from collections.abc import Iterator

from rich.table import Table

from asyncnn.tools.bench.responsiveness.report import (
    DESCRIPTIONS,
    IDLE,
    LONGEST_MS,
    P99_BELOW_MS,
    SIDES,
    Heard,
    ResponsivenessReport,
)


def responsiveness_table(report: ResponsivenessReport) -> Table:
    """Return a row for each activity, with the figures of each side's loop."""
    table = Table(title="milliseconds that a loop is late: p50, p99, longest")
    table.add_column("beside")
    for side in SIDES.values():
        table.add_column(side, justify="right", no_wrap=True)
    by_place = {(each.activity, each.side): each for each in report.heard}
    for activity, description in DESCRIPTIONS.items():
        if any(each.activity == activity for each in report.heard):
            cells = (_cell(by_place.get((activity, side))) for side in SIDES)
            table.add_row(description, *cells)
    return table


def _cell(heard: Heard | None) -> str:
    if heard is None:
        return "-"
    figures = f"{heard.p50_ms:.2f} {heard.p99_ms:6.2f} {heard.longest_ms:7.2f}"
    if heard.activity == IDLE:
        return f"{figures}       "
    return figures + (" [green]met   [/]" if heard.met else " [bold red]MISSED[/]")


def responsiveness_notes(report: ResponsivenessReport) -> Iterator[str]:
    """Yield the goals, the sizes, and what the machine disturbed."""
    yield (
        f"goals: p99 below {P99_BELOW_MS:g} ms, none over {LONGEST_MS:g} ms; "
        f"models of {report.operations:,} operations, "
        f"inputs of {report.input_bytes / 2**20:g} MiB"
    )
    for activity, count in report.repeated.items():
        if count:
            yield f"{activity}: repeated {count} times, as the machine disturbed it"
    if not all(each.met for each in report.heard if each.activity == IDLE):
        yield "the machine is too busy to tell: idle loops miss the goals as well"
