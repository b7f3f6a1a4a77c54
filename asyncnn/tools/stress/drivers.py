"""Processes that stress starts: drivers of any device, and clients with a log each."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from asyncnn.devices.own_devices import own_device
from asyncnn.hal.errors import NoDriverError
from asyncnn.service.process import can_connect, private_address
from asyncnn.tools.stress.place import StressOrder

_STRESSED = "asyncnn.tools.stress.stressed"
_LOOK_S = 0.02
_STACKS_S = 3.0
"""Seconds in which a process that hangs writes its stacks."""

Process = subprocess.Popen[bytes]


def start_driver(name: str, path: str, log: IO[bytes] | None = None) -> Process:
    """Start the driver of a device; one of this package is served as by `connect`."""
    if own_device(name) is None:
        return start(["-m", _STRESSED, "--serve", name, path], log)
    arguments = [f"--socket={path}", f"--device={name}"]
    return start(["-m", "asyncnn.service.start", *arguments], log)


def start_client(order: StressOrder, log: IO[bytes]) -> Process:
    """Start a process that does what an order says, and tells on its output."""
    text = msgspec.json.encode(order).decode()
    process = start(["-m", _STRESSED, text], log, stdout=subprocess.PIPE)
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    return process


def start(
    arguments: list[str], log: IO[bytes] | None, stdout: int = subprocess.DEVNULL
) -> Process:
    """Start Python so that it ends with us, and writes stacks when it crashes."""
    environment: Mapping[str, Any] = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=log,
        env=environment,
        process_group=0,  # an interrupt at the terminal is ours to handle
    )


@asynccontextmanager
async def serving(name: str) -> AsyncIterator[tuple[Process, str]]:
    """Have a driver process of a device inside the block.

    :raises NoDriverError: if it does not start.
    """
    path = private_address()
    process = start_driver(name, path)
    try:
        while not is_served(process, path):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        yield process, path
    finally:
        end(process)


def end(process: Process) -> None:
    """Kill a process, unless it has ended, and leave nothing of it."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def is_served(process: Process, path: str) -> bool:
    """Tell whether a driver that was started serves its socket by now.

    :raises NoDriverError: if it has ended.
    """
    if process.poll() is not None:
        raise NoDriverError(f"a driver ended with status {process.returncode}")
    return can_connect(path)


def take_stacks(process: Process, *asking: signal.Signals) -> None:
    """Have a process that hangs write its stacks to its log, which ends it.

    Signals are tried until one has ended it.
    """
    for each in (*asking, signal.SIGABRT, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(each)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STACKS_S)


def facts_of(process: Process) -> str:
    """Return what the kernel says of a process: where it is, what it holds."""
    lines = [f"process {process.pid}: {process.args!r}"]
    for name in ("wchan", "stack", "status", "limits"):
        try:
            text = Path(f"/proc/{process.pid}/{name}").read_text()
        except OSError as error:
            text = error.strerror or ""
        lines.append(f"--- {name}\n{text}")
    return "\n".join(lines)
