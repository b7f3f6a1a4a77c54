"""The picture of a running driver that ``asyncnn top`` draws on a terminal.

A narrow terminal has the columns that matter most, and a last line with the names of
those that were left out; a low one has fewer clients and models.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from asyncnn.cli.options import console, counted, printable
from asyncnn.cli.top_changes import Changes, LiveDevice, LiveWork
from asyncnn.deadlines import format_duration
from asyncnn.devices import DeviceStatistics

MAX_ROWS = 15
"""Clients, and models, that are shown: those that were the busiest lately."""

_MIN_ROWS = 2
_OTHER_LINES = 7
"""Lines besides rows and texts: the device, and for each table its head and its end."""

WIDE = 120
"""Columns of a terminal from which on everything is shown."""

_NAME_COLUMNS = 16


class _Figure(NamedTuple):
    """A column: its name and width, and its rank when there is no room for all."""

    name: str
    columns: int
    rank: int


_FIGURES = (
    _Figure("queue", 5, 0),
    _Figure("run", 4, 1),
    _Figure("per s", 5, 2),
    _Figure("p50", 5, 4),
    _Figure("p90", 5, 8),
    _Figure("p99", 5, 3),
    _Figure("done", 6, 6),
    _Figure("failed", 6, 5),
    _Figure("missed", 6, 7),
    _Figure("preempt", 7, 9),
)
_CLIENT_FACTS = ("weight", "buffers")
_MODEL_FACTS = ("client", "priority", "idle")

_Row: TypeAlias = tuple[str, LiveWork, Sequence[str]]
"""What a client or a model is called, what it does, and its facts."""


def print_once(statistics: DeviceStatistics) -> None:
    """Print the picture of one look."""
    changes = Changes()
    changes.look(time.monotonic())
    out = console()
    out.print(picture(LiveDevice.of(statistics, changes), out.width))


def picture(
    device: LiveDevice, width: int = WIDE, height: int | None = None, hint: str = ""
) -> RenderableType:
    """Return the picture of a look.

    Without ``height`` in lines, there are as many rows as there may be. ``hint`` is the
    end of the last line.
    """
    clients = [
        (
            f"{each.number}: {each.name}",
            each.executions,
            (f"{each.weight:g}", decimal(each.buffer_bytes)),
        )
        for each in device.clients
    ]
    models = [
        (
            f"{each.number}: {each.operations} ops",
            each.executions,
            (str(each.client), each.priority, decimal(each.idle_bytes)),
        )
        for each in device.models
    ]
    shown = _fitting(width)
    facts = width >= WIDE
    heading, failures = _heading(device), _failures(device.executions)
    last = _last_line(shown, hint, facts=facts)
    lines = sum(-(-len(text) // width) for text in (heading, failures, last))
    room = None if height is None else height - _OTHER_LINES - lines
    totals = len(clients) + device.clients_left, len(models) + device.models_left
    most_clients, most_models = _rows_shown(*totals, room)
    table = _table("device", shown)
    table.add_row("executions", *_cells(device.executions, shown))
    table.add_row("preparations", *_cells(device.preparations, shown))
    client_facts, model_facts = (_CLIENT_FACTS, _MODEL_FACTS) if facts else ((), ())
    return Group(
        heading,
        table,
        *filter(None, [failures]),
        _busiest("client", client_facts, clients[:most_clients], shown),
        *_left("client", totals[0] - most_clients),
        _busiest("model", model_facts, models[:most_models], shown),
        *_left("model", totals[1] - most_models),
        *filter(None, [last]),
    )


def _fitting(width: int) -> list[int]:
    """Return the places in `_FIGURES` of those that fit, the first ranks first."""
    room = width - _NAME_COLUMNS - 1
    shown = []
    for place in sorted(range(len(_FIGURES)), key=lambda place: _FIGURES[place].rank):
        room -= _FIGURES[place].columns + 1
        if room < -1:  # no blank follows the last column
            break
        shown.append(place)
    return sorted(shown)


def _rows_shown(clients: int, models: int, room: int | None) -> tuple[int, int]:
    """Return how many clients and models to show; what one leaves, the other has."""
    if room is None:
        return MAX_ROWS, MAX_ROWS
    room = max(room, 2 * _MIN_ROWS)
    of_clients = max(room - min(models, room // 2), _MIN_ROWS)
    of_models = max(room - min(clients, of_clients), _MIN_ROWS)
    return min(of_clients, MAX_ROWS), min(of_models, MAX_ROWS)


def _heading(device: LiveDevice) -> Text:
    return Text(
        f"{printable(device.name)}: {counted(device.threads, 'thread')}, "
        f"{decimal(device.resident_bytes)} resident, "
        f"{decimal(device.buffer_bytes)} in buffers",
        style="bold",
    )


def _failures(executions: LiveWork) -> Text:
    """Return a line with the statuses of executions that failed, empty if none did."""
    counts = [f"{status} {count}" for status, count in executions.failures.items()]
    return Text(f"failed: {', '.join(counts)}" if counts else "")


def _busiest(
    what: str, facts: Sequence[str], rows: Sequence[_Row], shown: Sequence[int]
) -> Table:
    table = _table(what, shown, facts)
    for name, work, known in rows:
        table.add_row(name, *_cells(work, shown), *(known if facts else ()))
    return table


def _left(what: str, count: int) -> list[RenderableType]:
    return [Text(f"and {counted(count, f'more {what}')}")] if count > 0 else []


def _last_line(shown: Sequence[int], hint: str, *, facts: bool) -> Text:
    """Return a line with ``hint`` and what the width has left out, empty if neither."""
    left = [each.name for n, each in enumerate(_FIGURES) if n not in shown]
    if not facts:
        left += [*_CLIENT_FACTS, *_MODEL_FACTS]
    omitted = f"left out below {WIDE} columns: {', '.join(left)}" if left else ""
    return Text("; ".join(filter(None, (hint, omitted))), style="dim")


def _table(what: str, shown: Sequence[int], facts: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(what, no_wrap=True, width=_NAME_COLUMNS)
    for place in shown:
        name, columns, _ = _FIGURES[place]
        table.add_column(name, justify="right", no_wrap=True, min_width=columns)
    for name in facts:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _cells(work: LiveWork, shown: Sequence[int]) -> list[str]:
    all_ = (
        _count(work.queued),
        _count(work.running),
        "" if work.per_s is None else _rate(work.per_s),
        *map(_duration, (work.p50_us, work.p90_us, work.p99_us)),
        _count(work.succeeded),
        _count(work.failed),
        _count(work.deadline_misses),
        _count(work.preemptions),
    )
    return [all_[place] for place in shown]


def _rate(per_s: float) -> str:
    return f"{per_s:.1f}" if per_s < 1000 else _count(round(per_s))


def _count(count: int) -> str:
    """Return a number of at most five characters."""
    for limit, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**5, "k")):
        if count >= limit:
            value = count / (1000 if unit == "k" else limit)
            return f"{value:.0f}{unit}" if value >= 100 else f"{value:.1f}{unit}"
    return str(count)


def _duration(us: float | None) -> str:
    """Return a duration of at most five characters; nothing for none."""
    return format_duration(us, 2).replace(" ", "") if us else ""
