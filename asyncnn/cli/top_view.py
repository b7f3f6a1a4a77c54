"""What ``asyncnn top`` shows of a driver."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from asyncnn.cli.top_changes import Changes, Recent
from asyncnn.devices import ClientStatistics, DeviceStatistics, ModelStatistics
from asyncnn.hal.types import ErrorStatus

MAX_ROWS = 15
"""Clients, and models, that are shown: those that were the busiest lately."""

WIDE = 120
"""Columns of a terminal from which on facts are shown beside the figures."""

_FIGURES = (
    *("queue", "run", "per s", "p50", "p90", "p99"),
    *("done", "failed", "missed", "preempt"),
)
_NAME_COLUMNS = 16


def picture(
    statistics: DeviceStatistics, changes: Changes, width: int = WIDE
) -> RenderableType:
    """Return the picture of the look that ``changes`` has begun.

    Rates and latencies are those since the look before it, all others totals.
    """
    is_wide = width >= WIDE
    executions = changes.of("executions", statistics.executions)
    preparations = changes.of("preparations", statistics.preparations)
    device = _table("device")
    device.add_row("executions", *_figures(executions))
    device.add_row("preparations", *_figures(preparations))
    return Group(
        _heading(statistics),
        device,
        *_failures(executions),
        *_clients(statistics.clients, changes, is_wide),
        *_models(statistics.models, changes, is_wide),
    )


def _heading(statistics: DeviceStatistics) -> Text:
    return Text(
        f"{statistics.device}: {statistics.threads} threads, "
        f"{decimal(statistics.resident_bytes)} resident, "
        f"{decimal(statistics.buffer_bytes)} in buffers",
        style="bold",
    )


def _failures(executions: Recent) -> list[RenderableType]:
    """Return a line with the statuses of executions that failed, if any did."""
    counts = [
        f"{status.name} {count}"
        for status, count in executions.work.done.items()
        if count and status is not ErrorStatus.NONE
    ]
    return [Text(f"failed: {', '.join(counts)}")] if counts else []


def _clients(
    clients: Sequence[ClientStatistics], changes: Changes, is_wide: bool
) -> list[RenderableType]:
    rows = [
        (
            changes.of(("client", each.number), each.executions),
            f"{each.number}: {each.name}",
            (f"{each.weight:g}", decimal(each.buffer_bytes)) if is_wide else (),
        )
        for each in clients
    ]
    return _busiest("client", ("weight", "buffers") if is_wide else (), rows)


def _models(
    models: Sequence[ModelStatistics], changes: Changes, is_wide: bool
) -> list[RenderableType]:
    rows = [
        (
            changes.of(("model", each.number), each.executions),
            f"{each.number}: {each.operations} ops",
            (str(each.client), each.priority.name, decimal(each.idle_bytes))
            if is_wide
            else (),
        )
        for each in models
    ]
    facts = ("client", "priority", "idle") if is_wide else ()
    return _busiest("model", facts, rows)


def _busiest(
    what: str,
    more: tuple[str, ...],
    rows: Sequence[tuple[Recent, str, tuple[str, ...]]],
) -> list[RenderableType]:
    """Return a table of the busiest rows and, if there are others, how many."""
    table = _table(what, *more)
    ordered = sorted(rows, key=lambda row: (-row[0].ended, -row[0].work.ended))
    for recent, name, facts in ordered[:MAX_ROWS]:
        table.add_row(name, *_figures(recent), *facts)
    left = len(rows) - MAX_ROWS
    return [table, Text(f"and {left} more {what}s")] if left > 0 else [table]


def _table(what: str, *more: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(what, no_wrap=True, width=_NAME_COLUMNS)
    for name in (*_FIGURES, *more):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _figures(recent: Recent) -> tuple[str, ...]:
    work, latency = recent.work, recent.latency
    succeeded = work.done.get(ErrorStatus.NONE, 0)
    return (
        str(work.queued),
        str(work.running),
        "" if recent.per_s is None else f"{recent.per_s:.1f}",
        *(_duration(latency.quantile_ns(share)) for share in (0.5, 0.9, 0.99)),
        str(succeeded),
        str(work.ended - succeeded),
        str(work.deadline_misses),
        str(work.preemptions),
    )


def _duration(ns: int) -> str:
    for limit, unit in ((10**9, "s"), (10**6, "ms"), (10**3, "us")):
        if ns >= limit:
            value = ns / limit
            return f"{value:.0f}{unit}" if value >= 10 else f"{value:.1f}{unit}"
    return ""
