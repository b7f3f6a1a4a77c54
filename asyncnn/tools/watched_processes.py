"""Processes that stress and fuzzing start and watch: drivers of any device, and others.

A driver keeps its last calls, with models and tensors, so that what fails leaves a
recording, which ``asyncnn replay`` repeats.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from asyncnn.hal.errors import AsyncnnError, NoDriverError
from asyncnn.service.process import can_connect, private_address
from asyncnn.service.recorded_memory import open_memory
from asyncnn.service.recording import save_memory

LONGEST_START_S = 120.0
LOOK_S = 0.02
"""Between two looks at a process."""

_STACKS_S = 3.0
"""Seconds in which a process that hangs writes its stacks."""

_RECORDED = ("--record-models", "--record-tensors", f"--record-bytes={2**25}")

Process = subprocess.Popen[bytes]


class GoneError(Exception):
    """A process that was to stay has ended."""


class ServedDriver(NamedTuple):
    """A driver process, its address, and the descriptor of its last calls, if any."""

    process: Process
    path: str
    calls: int | None


@contextmanager
def served_driver(
    device: str,
    log: IO[bytes] | None = None,
    *,
    records: bool = True,
    extensions: Sequence[str] = (),
) -> Iterator[ServedDriver]:
    """Have a driver process of a device, by any name, inside the block.

    :raises NoDriverError: if it does not serve in time.
    """
    path = private_address()
    words = ["serve", "--until-eof", "--no-measure", f"--device={device}"]
    words += [f"--socket={path}", *(_RECORDED if records else ["--record=0"])]
    words += [f"--extension={each}" for each in extensions]
    process = start(["-m", "asyncnn", *words], log)
    with ExitStack() as stack:
        stack.callback(end, process)
        latest = time.monotonic() + LONGEST_START_S
        while not can_connect(path):
            if process.poll() is not None:
                cause = cause_of(process.returncode)
                raise NoDriverError(f"the driver of {device} ended by {cause}")
            if time.monotonic() > latest:
                raise NoDriverError(f"the driver of {device} does not start")
            time.sleep(LOOK_S)
        calls = open_memory(process.pid) if records else None
        if calls is not None:
            stack.callback(os.close, calls)
        yield ServedDriver(process, path, calls)


def keep_calls(calls: int, path: Path) -> None:
    """Write the last calls of a driver to a file, if there is room."""
    with suppress(AsyncnnError, OSError):
        save_memory(calls, path)


def keep_calls_of(pid: int, path: Path) -> None:
    """Do so with those that a process has open, if it has any."""
    with suppress(AsyncnnError, OSError):
        calls = open_memory(pid)
        try:
            save_memory(calls, path)
        finally:
            os.close(calls)


def start(
    arguments: list[str], log: IO[bytes] | None, stdout: int = subprocess.DEVNULL
) -> Process:
    """Start Python so that it ends with us, and writes stacks when it crashes."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=log,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        process_group=0,  # an interrupt at the terminal is ours to handle
    )


def end(process: Process) -> None:
    """Kill a process, unless it has ended, and leave nothing of it."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


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


def starved_s_of(pid: int) -> float:
    """Return for how many seconds a process was ready and had no processor."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):  # it is gone, or the kernel does not count
        return 0.0


def descriptors_of(pid: int) -> list[str]:
    """Return what each descriptor of a process is of; nothing if it is gone."""
    found = []
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # it was closed meanwhile
                found.append(os.readlink(entry))
    return found


def cause_of(status: int) -> str:
    """Return the signal that a process ended by, or its exit status, in words."""
    if status >= 0:
        return f"status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
