"""Starts a driver in a process of its own, for as long as a context lasts.

The process holds one end of a pipe to ours and ends when that breaks, so that it does
not outlive us even if we are killed.
"""

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from os import PathLike
from pathlib import Path

import msgspec

from asyncnn.errors import DeviceUnavailableError
from asyncnn.service.paths import can_connect, socket_address

_START_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 5.0
_LOOK_S = 0.01


class DriverProcess(msgspec.Struct, frozen=True, eq=False):
    """A driver process and the socket that it serves."""

    path: Path
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """Process id of the driver."""
        return self.process.pid

    def kill(self) -> None:
        """End the driver at once, as a crash would."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def driver_process(
    path: str | PathLike[str] | None = None, extensions: Iterable[str] = ()
) -> Iterator[DriverProcess]:
    """Run ``asyncnn serve`` until the block is left; it is ready when that begins.

    Blocks while the driver starts and ends. Without a path, a new folder's is taken.
    ``extensions`` are those that the driver is to have, like ``package.module:name``.

    :raises InvalidArgumentError: if ``path`` cannot be that of a socket.
    :raises DeviceUnavailableError: if the driver does not start, or there is one.
    """
    with _launched(path, extensions) as driver:
        for delay in _until_ready(driver):
            time.sleep(delay)
        try:
            yield driver
        finally:
            for delay in _until_ended(driver):
                time.sleep(delay)


@contextlib.asynccontextmanager
async def running_driver(
    path: str | PathLike[str] | None = None, extensions: Iterable[str] = ()
) -> AsyncIterator[DriverProcess]:
    """Do what `driver_process` does without blocking the event loop.

    :raises InvalidArgumentError: if ``path`` cannot be that of a socket.
    :raises DeviceUnavailableError: if the driver does not start, or there is one.
    """
    with _launched(path, extensions) as driver:
        for delay in _until_ready(driver):
            await asyncio.sleep(delay)
        try:
            yield driver
        finally:
            for delay in _until_ended(driver):
                await asyncio.sleep(delay)


@contextlib.contextmanager
def _launched(
    path: str | PathLike[str] | None, extensions: Iterable[str]
) -> Iterator[DriverProcess]:
    """Start a process; at the end there is none, whatever it was doing."""
    with tempfile.TemporaryDirectory(prefix="asyncnn-") as folder:
        socket = Path(path or Path(folder) / "driver.sock")
        socket_address(socket)
        if can_connect(socket):
            raise DeviceUnavailableError(f"a driver serves {socket} already")
        process = _start(socket, extensions)
        assert process.stdin is not None
        try:
            yield DriverProcess(socket, process)
        finally:
            process.kill()
            process.wait()
            process.stdin.close()


def _start(path: Path, extensions: Iterable[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "asyncnn", "serve", "--until-eof"]
    command += [f"--extension={extension}" for extension in extensions]
    try:
        return subprocess.Popen(
            [*command, "--socket", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            process_group=0,  # an interrupt at the terminal is ours to handle
        )
    except OSError as error:
        raise DeviceUnavailableError(
            f"the driver does not start: {error.strerror}"
        ) from error


def _until_ready(driver: DriverProcess) -> Iterator[float]:
    """Yield pauses in seconds until the driver serves its socket.

    :raises DeviceUnavailableError: if it ends or takes too long.
    """
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not can_connect(driver.path):
        status = driver.process.poll()
        if status is not None:
            raise DeviceUnavailableError(f"the driver ended with status {status}")
        if time.monotonic() > deadline:
            raise DeviceUnavailableError("the driver does not start")
        yield _LOOK_S


def _until_ended(driver: DriverProcess) -> Iterator[float]:
    """Ask the driver to end; yield pauses in seconds until it has, or time is up."""
    driver.process.terminate()
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while driver.process.poll() is None and time.monotonic() < deadline:
        yield _LOOK_S
