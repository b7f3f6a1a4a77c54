"""Starts a driver in a process of its own, for as long as a context lasts.

The process holds one end of a pipe to ours and ends when that breaks, so that it does
not outlive us even if we are killed. It serves a name of the kernel's, so that neither
end leaves a file behind, whatever both die of. What it logs goes where our standard
error goes, with what native code says before it crashes.
"""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import TypeAlias

import msgspec

from asyncnn.devices import DeviceSettings
from asyncnn.devices.configuration import options_for, read_settings
from asyncnn.errors import DeviceUnavailableError, NoDriverError
from asyncnn.forking import own
from asyncnn.service.paths import can_connect, private_address, socket_address

_START_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 5.0
_LOOK_S = 0.01

Settings: TypeAlias = DeviceSettings | str | PathLike[str] | None
"""Device settings, or the path of a TOML file with some; None: the usual ones."""


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
    path: str | PathLike[str] | None = None,
    extensions: Iterable[str] = (),
    settings: Settings = None,
) -> Iterator[DriverProcess]:
    """Run ``asyncnn serve`` until the block is left; it is ready when that begins.

    Blocks while the driver starts and ends. Without a path, a name is made up that no
    file system knows. ``extensions`` are those that the driver is to have, like
    ``package.module:name``, ``settings`` those of its device.

    :raises InvalidArgumentError: if ``path`` cannot be that of a socket, the file of
        the settings cannot be read, or they hold extensions.
    :raises NoDriverError: if the driver does not start.
    :raises DeviceUnavailableError: if another driver serves ``path`` already.
    """
    launched = _Launched(path, _arguments(extensions, settings))
    try:
        for delay in _until_ready(launched.driver):
            time.sleep(delay)
        yield launched.driver
    finally:
        launched.close()


@contextlib.asynccontextmanager
async def running_driver(
    path: str | PathLike[str] | None = None,
    extensions: Iterable[str] = (),
    settings: Settings = None,
) -> AsyncIterator[DriverProcess]:
    """Do what `driver_process` does without blocking the event loop.

    Cancelling the exit leaves it to go on by itself.

    :raises InvalidArgumentError: as `driver_process`.
    :raises NoDriverError: if the driver does not start.
    :raises DeviceUnavailableError: if another driver serves ``path`` already.
    """
    launched = _Launched(path, _arguments(extensions, settings))
    try:
        for delay in _until_ready(launched.driver):
            await asyncio.sleep(delay)
        yield launched.driver
    finally:
        await launched.aclose()


class _Launched:
    """A process that ends when this is closed; a forked child leaves it alone."""

    def __init__(
        self, path: str | PathLike[str] | None, arguments: Sequence[str]
    ) -> None:
        self._is_inherited = False
        self._closing: asyncio.Task[None] | None = None
        socket = Path(path or private_address())
        socket_address(socket)
        if can_connect(socket):
            raise DeviceUnavailableError(f"a driver serves {socket} already")
        self.driver = DriverProcess(socket, _start(socket, arguments))
        own(self)

    def close(self) -> None:
        """Ask the driver to end, wait for that, and kill it if need be. Blocks."""
        if not self._is_inherited:
            try:
                for delay in _until_ended(self.driver):
                    time.sleep(delay)
            finally:
                self._remove()

    async def aclose(self) -> None:
        """Do the same without blocking the loop, in a task that cannot be cancelled."""
        if not self._is_inherited:
            if self._closing is None:
                self._closing = asyncio.create_task(self._aclose())
            await asyncio.shield(self._closing)

    async def _aclose(self) -> None:
        try:
            for delay in _until_ended(self.driver):
                await asyncio.sleep(delay)
            self.driver.process.kill()
            while self.driver.process.poll() is None:  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_S)
        finally:
            self._remove()

    def disown(self) -> None:
        """Leave all to the parent, whose death the driver is to notice."""
        self._is_inherited = True
        process = self.driver.process
        process.poll()  # there is none of this process's
        assert process.stdin is not None
        process.stdin.close()

    def _remove(self) -> None:
        """Leave nothing, whatever the driver is doing."""
        process = self.driver.process
        assert process.stdin is not None
        with contextlib.ExitStack() as parts:
            parts.callback(process.stdin.close)
            parts.callback(self.driver.kill)


def _arguments(extensions: Iterable[str], settings: Settings) -> list[str]:
    """Return the arguments of ``asyncnn serve``.

    :raises InvalidArgumentError: if the settings cannot travel so.
    """
    arguments = [f"--extension={extension}" for extension in extensions]
    if isinstance(settings, DeviceSettings):
        return arguments + [f"--setting={each}" for each in options_for(settings)]
    if settings is not None:
        read_settings(settings)  # what is wrong with it is ours to tell
        arguments.append(f"--settings={Path(settings).absolute()}")
    return arguments


def _start(path: Path, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "asyncnn", "serve", "--until-eof", *arguments]
    try:
        return subprocess.Popen(
            [*command, "--socket", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            process_group=0,  # an interrupt at the terminal is ours to handle
        )
    except OSError as error:
        raise NoDriverError(f"the driver does not start: {error.strerror}") from error


def _until_ready(driver: DriverProcess) -> Iterator[float]:
    """Yield pauses in seconds until the driver serves its socket.

    :raises NoDriverError: if it ends or takes too long.
    """
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not can_connect(driver.path):
        status = driver.process.poll()
        if status is not None:
            raise NoDriverError(f"the driver ended with status {status}")
        if time.monotonic() > deadline:
            raise NoDriverError("the driver does not start")
        yield _LOOK_S


def _until_ended(driver: DriverProcess) -> Iterator[float]:
    """Ask the driver to end; yield pauses in seconds until it has, or time is up."""
    driver.process.terminate()
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while driver.process.poll() is None and time.monotonic() < deadline:
        yield _LOOK_S
