"""What ``asyncnn top`` shows of a driver, and what changed between two snapshots."""

import asyncio
import errno
import os
import signal
import sys
import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import msgspec
from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.table import Table
from rich.text import Text

from asyncnn.cli.options import console
from asyncnn.devices import DeviceStatistics
from asyncnn.hal.errors import DeviceUnavailableError
from asyncnn.hal.types import ErrorStatus
from asyncnn.qos import LatencyHistogram, WorkStatistics
from asyncnn.runtime.device import Device
from asyncnn.runtime.opening_devices import connect

MAX_ROWS = 15
"""Clients, and models, that are shown: those that were the busiest lately."""

WIDE = 120
"""Columns of a terminal from which on facts are shown beside the figures."""

_FIGURES = (
    *("queue", "run", "per s", "p50", "p90", "p99"),
    *("done", "failed", "missed", "preempt"),
)
_NAME_COLUMNS = 16

_ANSWER_TIMEOUT_S = 5.0
_ENDS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
_TERMINAL_IS_GONE = {errno.EIO, errno.EPIPE, errno.ENXIO}


class Recent(msgspec.Struct, frozen=True):
    """Some work, and what of it ended lately: since the look before, or ever.

    ``per_s`` is None at the first look, as nobody knows how long that was.
    """

    work: WorkStatistics
    ended: int
    per_s: float | None
    latency: LatencyHistogram


class Changes:
    """Compares each look with the one before.

    A look begins with `look`; then `of` is asked once for everything that is seen.
    """

    def __init__(self) -> None:
        self._before: dict[Hashable, WorkStatistics] = {}
        self._now: dict[Hashable, WorkStatistics] = {}
        self._looked_at: float | None = None
        self._elapsed_s: float | None = None

    def look(self, now_s: float) -> None:
        """Begin the look of time ``now_s``."""
        self._before, self._now = self._now, {}
        if self._looked_at is not None:
            self._elapsed_s = now_s - self._looked_at
        self._looked_at = now_s

    def of(self, key: Hashable, work: WorkStatistics) -> Recent:
        """Return what became of ``work``, which has the name ``key`` in every look."""
        self._now[key] = work
        before = self._before.get(key)
        ended = work.ended - (before.ended if before else 0)
        latency = work.latency.since(before.latency) if before else work.latency
        per_s = ended / self._elapsed_s if self._elapsed_s else None
        return Recent(work, ended, per_s, latency)


def print_once(statistics: DeviceStatistics) -> None:
    """Print the picture of one look, wide enough for all facts in a pipe."""
    changes = Changes()
    changes.look(time.monotonic())
    out = console() if console().is_terminal else Console(width=WIDE)
    out.print(picture(statistics, changes, out.width))


async def statistics_of(path: Path) -> DeviceStatistics:
    """Return the statistics of the driver at ``path``.

    :raises AsyncnnError: if there is none, or it does not answer in time.
    """
    async with connect(path) as device:
        return await _look(device)


async def watch(path: Path, interval: float) -> None:
    """Show one picture after the other until interrupted, or the terminal is gone."""
    changes = Changes()
    with _ended_by_signals(), _ended_with_terminal():
        async with connect(path) as device:
            with Live(console=console(), screen=True, auto_refresh=False) as live:
                while sys.stdout.isatty():  # nothing is written to one that is gone
                    statistics = await _look(device)
                    changes.look(time.monotonic())
                    shown = picture(statistics, changes, live.console.width)
                    live.update(shown, refresh=True)
                    await anyio.sleep(interval)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Leave the block at a signal, whatever it waits for."""
    loop = asyncio.get_running_loop()
    with anyio.CancelScope() as scope:
        for number in _ENDS:
            loop.add_signal_handler(number, scope.cancel)
        try:
            yield
        finally:
            for number in _ENDS:
                loop.remove_signal_handler(number)


@contextmanager
def _ended_with_terminal() -> Iterator[None]:
    """Leave the block when standard output cannot be written any more."""
    try:
        yield
    except OSError as error:
        if error.errno not in _TERMINAL_IS_GONE:
            raise
        # What is still buffered is going to be written when the process ends.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


async def _look(device: Device) -> DeviceStatistics:
    try:
        with anyio.fail_after(_ANSWER_TIMEOUT_S):
            return await device.statistics()
    except TimeoutError:
        raise DeviceUnavailableError("the driver does not answer") from None


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
    clients = [
        (
            changes.of(("client", each.number), each.executions),
            f"{each.number}: {each.name}",
            (f"{each.weight:g}", decimal(each.buffer_bytes)),
        )
        for each in statistics.clients
    ]
    models = [
        (
            changes.of(("model", each.number), each.executions),
            f"{each.number}: {each.operations} ops",
            (str(each.client), each.priority.name, decimal(each.idle_bytes)),
        )
        for each in statistics.models
    ]
    return Group(
        _heading(statistics),
        device,
        *_failures(executions),
        *_busiest("client", ("weight", "buffers"), clients, is_wide=is_wide),
        *_busiest("model", ("client", "priority", "idle"), models, is_wide=is_wide),
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


def _busiest(
    what: str,
    facts: Sequence[str],
    rows: Sequence[tuple[Recent, str, Sequence[str]]],
    *,
    is_wide: bool,
) -> list[RenderableType]:
    """Return a table of the busiest rows and, if there are others, how many."""
    table = _table(what, *(facts if is_wide else ()))
    ordered = sorted(rows, key=lambda row: (-row[0].ended, -row[0].work.ended))
    for recent, name, known in ordered[:MAX_ROWS]:
        table.add_row(name, *_figures(recent), *(known if is_wide else ()))
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
