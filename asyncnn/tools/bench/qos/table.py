"""The report of ``asyncnn bench qos`` as tables for the terminal."""

from collections.abc import Iterator

from rich.table import Table

from asyncnn.tools.bench.qos.report import DESCRIPTIONS, QosReport


def qos_tables(report: QosReport) -> Iterator[Table]:
    """Yield a table of latencies, one of missed deadlines, and one of the goals."""
    latencies = Table(title="microseconds of an urgent execution")
    _columns(latencies, "", "p50", "p99")
    for name, description in DESCRIPTIONS.items():
        each = report.latencies[name]
        latencies.add_row(description, f"{each.p50_us:.0f}", f"{each.p99_us:.0f}")
    yield latencies
    misses = Table(title="share of deadlines missed")
    _columns(misses, "offered load", "by deadline", "thread pool, by arrival")
    for miss in report.misses:
        shares = f"{miss.by_deadline:.1%}", f"{miss.by_arrival:.1%}"
        misses.add_row(f"{miss.load:.0%}", *shares)
    yield misses
    goals = Table(title="goals")
    _columns(goals, "", "measured", "at most", "")
    for verdict in report.verdicts:
        outcome = "[green]met[/]" if verdict.met else "[bold red]MISSED[/]"
        figures = f"{verdict.value:.4g}", f"{verdict.limit:.4g}"
        goals.add_row(verdict.goal, *figures, outcome)
    yield goals


def _columns(table: Table, first: str, *others: str) -> None:
    table.add_column(first)
    for heading in others:
        table.add_column(heading, justify="right", no_wrap=True)
