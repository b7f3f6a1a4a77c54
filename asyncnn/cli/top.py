"""``asyncnn top``: what a running driver does."""

import asyncio
import errno
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.console import Console
from rich.live import Live

from asyncnn.cli.console import console, print_json
from asyncnn.cli.metrics import openmetrics
from asyncnn.cli.top_changes import Changes
from asyncnn.cli.top_report import TopReport
from asyncnn.cli.top_view import WIDE, picture
from asyncnn.devices import DeviceStatistics
from asyncnn.hal.errors import DeviceUnavailableError, InvalidArgumentError
from asyncnn.runtime.device import Device, connect
from asyncnn.service.process import default_socket_path

_ANSWER_TIMEOUT_S = 5.0
_ENDS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
_TERMINAL_IS_GONE = {errno.EIO, errno.EPIPE, errno.ENXIO}


def top(
    socket: Annotated[
        Path | None,
        typer.Option(help="Where the driver is; by default a path of this user."),
    ] = None,
    interval: Annotated[
        float, typer.Option(min=0.1, help="Seconds between two looks.")
    ] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Look once, as is done in a pipe.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, once.")] = False,
    as_openmetrics: Annotated[
        bool, typer.Option("--openmetrics", help="Print OpenMetrics text, once.")
    ] = False,
) -> None:
    """Show what a running driver does: work, latencies, clients and models."""
    if json and as_openmetrics:
        raise InvalidArgumentError("--json and --openmetrics are two formats")
    path = socket or default_socket_path()
    if json:
        print_json(TopReport.of(anyio.run(_statistics, path)))
    elif as_openmetrics:
        typer.echo(openmetrics(anyio.run(_statistics, path)), nl=False)
    elif once or not console().is_terminal:
        _print_once(anyio.run(_statistics, path))
    else:
        anyio.run(_watch, path, interval)


def _print_once(statistics: DeviceStatistics) -> None:
    changes = Changes()
    changes.look(time.monotonic())
    out = console() if console().is_terminal else Console(width=WIDE)
    out.print(picture(statistics, changes, out.width))


async def _statistics(path: Path) -> DeviceStatistics:
    async with connect(path) as device:
        return await _look(device)


async def _watch(path: Path, interval: float) -> None:
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
