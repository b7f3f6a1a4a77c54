"""Addresses of drivers, and a driver in its own process for as long as a context lasts.

The process holds one end of a pipe to ours and ends when that breaks, so that it does
not outlive us even if we are killed. It serves a name of the kernel's, so that neither
end leaves a file behind, whatever both die of. What it logs goes where our standard
error goes, with what native code says before it crashes; why it did not start is given
as an error here, too.
"""

import asyncio
import contextlib
import os
import secrets
import socket
import struct
import subprocess
import sys
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from os import PathLike
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from asyncnn import hal
from asyncnn.devices import DeviceSettings
from asyncnn.devices.device_settings import options_for, read_settings
from asyncnn.hal.errors import shortage_of
from asyncnn.input_files import call_abandonable, offload_abandonable
from asyncnn.interpreter_hooks import disown_in_children
from asyncnn.memory.pages import os_errors
from asyncnn.pacing import Steps, completed
from asyncnn.service.limits import RecordingSettings

MAX_PATH_BYTES = 107
"""What ``sun_path`` of a Unix-domain address holds, less the zero at its end."""

_ABSTRACT = "@"
_CREDENTIALS = struct.Struct("iII")


def default_socket_path() -> Path:
    """Return the path of this user's socket: in the run-time folder if there is one."""
    folder = os.environ.get("XDG_RUNTIME_DIR")
    if folder and Path(folder).is_dir():
        return Path(folder) / "asyncnn.sock"
    import tempfile  # a driver has no use for it

    return Path(tempfile.gettempdir()) / f"asyncnn-{os.getuid()}.sock"


def private_address() -> str:
    """Return an abstract address that nobody else has."""
    return f"{_ABSTRACT}asyncnn-{os.getpid()}-{secrets.token_hex(8)}"


def is_abstract(path: str | os.PathLike[str]) -> bool:
    """Return whether ``path`` is a name that no file system knows."""
    return os.fspath(path).startswith(_ABSTRACT)


def socket_address(path: str | os.PathLike[str]) -> str:
    """Return the address of ``path``, as the kernel takes it.

    :raises InvalidArgumentError: if it is empty, too long, or contains a zero byte.
    """
    address = os.fspath(path)
    size = len(os.fsencode(address))
    if size > MAX_PATH_BYTES:
        raise hal.InvalidArgumentError(
            f"the path of a socket has at most {MAX_PATH_BYTES} bytes, this one {size}",
            hint=f"take a shorter one than {address}",
        )
    if not address or "\0" in address:
        raise hal.InvalidArgumentError(f"{address!r} is no path of a socket")
    return f"\0{address[1:]}" if is_abstract(address) else address


def can_connect(path: str | os.PathLike[str]) -> bool:
    """Return whether a driver listens at ``path``. Does not block."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        try:
            probe.connect(socket_address(path))
        except BlockingIOError:
            return True  # its backlog is full
        except (OSError, hal.InvalidArgumentError):
            return False
    return True


class Peer(NamedTuple):
    """The process that listened, or connected, at the other end of a socket."""

    pid: int
    uid: int


def peer_of(connection: socket.socket) -> Peer:
    """Return whom the kernel says that a connection is to."""
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
    )
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    return Peer(pid, uid)


def process_status(pid: int) -> list[bytes]:
    """Return what the kernel says of a process, after its name; nothing if it does not.

    Source: ``/proc/PID/stat``.
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return []
    # The name, in brackets, may contain anything.
    return status[status.rindex(b")") + 1 :].split()


_BACKLOG = 128
_PAUSE_S = 0.1
"""Time until the next attempt to accept somebody after one failed."""


@contextlib.contextmanager
def new_socket(what: str) -> Iterator[socket.socket]:
    """Yield a socket to bind, which then listens; it is closed if that fails.

    :raises AsyncnnError: if it does, saying ``what`` was meant.
    """
    with os_errors(what):
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            yield listening
            listening.listen(_BACKLOG)
            listening.setblocking(False)
        except BaseException:
            listening.close()
            raise


class Listener:
    """Gives ``accepted`` who connects to a socket, on the running loop.

    A connection that cannot be accepted waits a while, unless ``failed`` has dealt with
    it.
    """

    def __init__(
        self,
        listening: socket.socket,
        accepted: Callable[[socket.socket], None],
        failed: Callable[[OSError], bool] = lambda _: False,
    ) -> None:
        self.socket = listening
        self._accepted = accepted
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._resume()
        disown_in_children(self)

    def close(self) -> None:
        """Listen no more."""
        if self._pause is not None:
            self._pause.cancel()
        if self.socket.fileno() >= 0:
            self._loop.remove_reader(self.socket.fileno())
            self.socket.close()

    def disown(self) -> None:
        """Leave all to the parent of a forked child: with it the address ends."""
        self.socket.close()

    def _resume(self) -> None:
        self._loop.add_reader(self.socket.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self.socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            if not self._failed(error):  # it would be tried again at once, for ever
                self._loop.remove_reader(self.socket.fileno())
                self._pause = self._loop.call_later(_PAUSE_S, self._resume)
            return
        self._accepted(connection)


_START_TIMEOUT_S = 10.0
"""For which a driver that starts may do nothing; a busy machine lets it do little."""

_LONGEST_START_S = 180.0
_STOP_TIMEOUT_S = 5.0
_LOOK_S = 0.01
_LOOK_FOR_DRIVER_S = 0.002
_MOST_WORDS_BYTES = 2**14
_NO_START = "the driver does not start"

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
    device: str | None = None,
    recording: RecordingSettings | None = None,
) -> Iterator[DriverProcess]:
    """Run a driver until the block is left; it is ready when that begins.

    Blocks while the driver starts and ends. Without a path, a name is made up that no
    file system knows. ``extensions`` are those that the driver is to have, like
    ``package.module:name``, ``settings`` its ``device``'s, which is
    ``accelerated`` or ``reference``, by default what ``ASYNCNN_DEVICE`` names, or
    else the first of them that works. It notes its calls as ``recording`` says.

    :raises InvalidArgumentError: if ``path`` cannot be a socket's, the file of
        the settings cannot be read, or they hold extensions.
    :raises NoDriverError: if the driver does not start.
    :raises ResourceExhaustedTransientError: if this process has no memory or
        descriptors left for it, or can start no other.
    :raises DeviceUnavailableError: if another driver serves ``path`` already.
    """
    given = _given(path, extensions, settings, device, recording)
    launched = _Launched(*call_abandonable("starting a driver", given))
    try:
        with contextlib.closing(launched.until_ready()) as pauses:
            for delay in pauses:
                time.sleep(delay)
        yield launched.driver
    finally:
        launched.close()


@contextlib.asynccontextmanager
async def running_driver(
    path: str | PathLike[str] | None = None,
    extensions: Iterable[str] = (),
    settings: Settings = None,
    device: str | None = None,
    meanwhile: Callable[[], object] = lambda: None,
    recording: RecordingSettings | None = None,
) -> AsyncIterator[DriverProcess]:
    """Do what `driver_process` does without blocking the event loop.

    ``meanwhile`` is called once while the driver starts. Cancelling the exit leaves it
    to go on by itself.

    :raises AsyncnnError: as `driver_process`.
    """
    asking = _given(path, extensions, settings, device, recording)
    if path is None and not isinstance(settings, str | PathLike):
        given = completed(asking)  # of no file system
    else:
        given = await offload_abandonable("starting a driver", asking)
    launched = _Launched(*given)
    try:
        meanwhile()
        with contextlib.closing(launched.until_ready()) as pauses:
            for delay in pauses:
                await asyncio.sleep(delay)
        yield launched.driver
    finally:
        await launched.aclose()


class _Launched:
    """A process that ends when this is closed; a forked child leaves it alone."""

    def __init__(self, socket: Path, arguments: Sequence[str]) -> None:
        self._is_inherited = False
        self._closing: asyncio.Task[None] | None = None
        with os_errors(_NO_START):
            # A file, which the driver cannot be kept waiting by, as by a pipe.
            self._reason = os.memfd_create("asyncnn-reason", os.MFD_CLOEXEC)
        try:
            process = _start(socket, arguments, self._reason)
        except BaseException:
            os.close(self._reason)
            raise
        self.driver = DriverProcess(socket, process)
        disown_in_children(self)

    def until_ready(self) -> Generator[float, None, None]:
        """Yield pauses in seconds until the driver serves its socket."""
        try:
            yield from _until_ready(self.driver, self._reason)
        finally:
            os.close(self._reason)

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


def _given(
    path: str | PathLike[str] | None,
    extensions: Iterable[str],
    settings: Settings,
    device: str | None,
    recording: RecordingSettings | None,
) -> Steps[tuple[Path, list[str]]]:
    socket = Path(path or private_address())
    socket_address(socket)
    yield
    # For a clearer error only: the driver looks again, and refuses by itself.
    if can_connect(socket):
        raise hal.DeviceUnavailableError(f"a driver serves {socket} already")
    arguments = _arguments(extensions, settings, device)
    if recording is not None:
        arguments.append(f"--record={msgspec.json.encode(recording).decode()}")
    return socket, arguments


def _arguments(
    extensions: Iterable[str], settings: Settings, device: str | None
) -> list[str]:
    """Return the arguments of `asyncnn.service.start` besides the path."""
    arguments = [f"--extension={extension}" for extension in extensions]
    if device is not None:
        arguments.append(f"--device={device}")
    if isinstance(settings, DeviceSettings):
        return arguments + [f"--setting={each}" for each in options_for(settings)]
    if settings is not None:
        read_settings(settings)  # what is wrong with it is ours to say
        arguments.append(f"--settings={Path(settings).absolute()}")
    return arguments


def _start(
    path: Path, arguments: Sequence[str], reason: int
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "asyncnn.service.start", f"--socket={path}"]
    command.append(f"--reason-fd={reason}")
    try:
        return subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(reason,),
            process_group=0,  # an interrupt at the terminal is ours to handle
        )
    except BlockingIOError as error:
        raise hal.ResourceExhaustedTransientError(
            f"{_NO_START}: {error.strerror}",
            hint="raise the limit of processes (ulimit -u, cgroups)",
        ) from error
    except OSError as error:
        if shortage_of(error) is not None:
            raise hal.failure_of(error, _NO_START) from error
        raise hal.NoDriverError(f"{_NO_START}: {error.strerror}") from error


def _until_ready(driver: DriverProcess, reason: int) -> Iterator[float]:
    latest = time.monotonic() + _LONGEST_START_S
    deadline = time.monotonic() + _START_TIMEOUT_S
    used = _used_ticks(driver.pid)
    while not can_connect(driver.path):
        status = driver.process.poll()
        if status is not None:
            words = os.pread(reason, _MOST_WORDS_BYTES, 0).decode(errors="replace")
            if words:
                raise hal.NoDriverError(f"{_NO_START}: {words}")
            raise hal.NoDriverError(
                f"the driver ended with status {status}",
                hint="the reason is on standard error",
            )
        if time.monotonic() > deadline:
            before, used = used, _used_ticks(driver.pid)
            deadline = time.monotonic() + _START_TIMEOUT_S
            is_idle = used == before and not _has_children(driver.pid)
            if is_idle or time.monotonic() > latest:
                raise hal.NoDriverError(
                    f"{_NO_START}, though its process runs",
                    hint="see what keeps the machine busy, or start one with asyncnn "
                    "serve and connect to its socket",
                )
        yield _LOOK_FOR_DRIVER_S


def _used_ticks(pid: int) -> int:
    """Return the processor time that a process has used; 0 if that cannot be read."""
    return sum(map(int, process_status(pid)[11:13]))


def _has_children(pid: int) -> bool:
    """Return whether a process waits for others, as for the trial of an engine."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    try:
        return any(each.read_text() for each in lists)
    except OSError:
        return False


def _until_ended(driver: DriverProcess) -> Iterator[float]:
    """Ask the driver to end; yield pauses in seconds until it has, or time is up."""
    driver.process.terminate()
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while driver.process.poll() is None and time.monotonic() < deadline:
        yield _LOOK_S
