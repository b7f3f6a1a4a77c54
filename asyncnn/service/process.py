"""Starts a driver in a process of its own, for as long as a context lasts."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from asyncnn.errors import DeviceUnavailableError
from asyncnn.service.paths import can_connect

_START_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 5.0


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
    path: str | os.PathLike[str] | None = None,
) -> Iterator[DriverProcess]:
    """Run ``asyncnn serve`` until the block is left; it is ready when that begins.

    Blocks while the driver starts. Without a path, a new folder's is taken.

    :raises DeviceUnavailableError: if the driver does not start.
    """
    with tempfile.TemporaryDirectory(prefix="asyncnn-") as folder:
        socket = Path(path or Path(folder) / "driver.sock")
        process = subprocess.Popen(
            [sys.executable, "-m", "asyncnn", "serve", "--socket", str(socket)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        try:
            _wait_until_ready(socket, process)
            yield DriverProcess(socket, process)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not can_connect(path):
        status = process.poll()
        if status is not None:
            raise DeviceUnavailableError(f"the driver ended with status {status}")
        if time.monotonic() > deadline:
            raise DeviceUnavailableError("the driver does not start")
        time.sleep(0.01)
