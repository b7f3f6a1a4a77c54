"""Serves a device until it is stopped; a driver process begins here.

`driver_process` starts ``python -m asyncnn.service.start``, which imports what a driver
needs and nothing else: no command line, no model files, no client. ``asyncnn serve``
has more options and serves in the same way.
"""

import asyncio
import gc
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from getopt import getopt
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from asyncnn.devices.device_settings import (
    DeviceSettings,
    options_for,
    read_settings,
    with_options,
)
from asyncnn.devices.own_devices import default_device, default_device_name
from asyncnn.devices.process_wide import bound_heaps
from asyncnn.extensions import load_extension
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.interfaces import IDevice
from asyncnn.input_files import in_one, offload_abandonable
from asyncnn.kernels.registry import load_kernels
from asyncnn.logs import Level, errors_as_lines, one_line
from asyncnn.offload import abandon_cancelled
from asyncnn.service.driver.quotas import require_descriptors
from asyncnn.service.driver.reporting import level_from_environment, logging_to_stderr
from asyncnn.service.driver.server import Server
from asyncnn.service.limits import RecordingSettings, ServiceLimits
from asyncnn.tracing import join_recording

if TYPE_CHECKING:
    from asyncnn.service.driver.recorder import CallRecorder

_OF_THE_LOOP = 4
"""Descriptors that an event loop has, and waiting for threads takes."""

_OPTIONS = (
    "socket=",
    "device=",
    "extension=",
    "settings=",
    "setting=",
    "record=",
    "reason-fd=",
)


def serve_until_stopped(
    published: AbstractAsyncContextManager[object],
    level: Level,
    *,
    as_json: bool = False,
    until_eof: bool = False,
) -> None:
    """Stay in ``published`` until SIGINT or SIGTERM, logging to standard error.

    With ``until_eof``, the end of standard input stops it, too: a pipe whose other end
    the process has that started this one, so that it does not outlive that.

    :raises InvalidArgumentError: if standard input is no pipe then.
    :raises ResourceExhaustedPersistentError: if the process may have too few
        descriptors for a driver.
    :raises AsyncnnError: what entering ``published`` raises.
    """
    if until_eof and not stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode):
        raise InvalidArgumentError("--until-eof needs a pipe as standard input")
    # Now, as what is opened before the server would fail with less to say.
    require_descriptors(ServiceLimits(), _OF_THE_LOOP)
    bound_heaps()
    with logging_to_stderr(level, as_json=as_json):
        load_kernels()
        asyncio.run(_serve(published, until_eof=until_eof))


async def _serve(
    published: AbstractAsyncContextManager[object], *, until_eof: bool
) -> None:
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    opening = asyncio.timeout(None)

    def stop() -> None:
        stopped.set()
        with suppress(RuntimeError):  # it is open already
            opening.reschedule(loop.time())

    async with AsyncExitStack() as stack:
        stack.callback(abandon_cancelled)  # a client may send files that never answer
        try:
            async with opening:
                # Before anything is opened: what comes early must not skip the cleanup.
                for number in (signal.SIGINT, signal.SIGTERM):
                    loop.add_signal_handler(number, stop)
                await stack.enter_async_context(published)
        except TimeoutError:
            if opening.expired():
                return
            raise
        # A client that has many objects made is not to have all these looked at.
        gc.freeze()
        if until_eof:
            stdin = sys.stdin.fileno()
            loop.add_reader(stdin, _read_to_end, stdin, stopped)
        await stopped.wait()
        if until_eof:
            loop.remove_reader(stdin)


def _read_to_end(descriptor: int, stopped: asyncio.Event) -> None:
    if not os.read(descriptor, 4096):
        asyncio.get_running_loop().remove_reader(descriptor)
        stopped.set()


def main(arguments: Sequence[str]) -> None:
    """Serve a device of this process to this user until standard input ends.

    Arguments are ``--socket``, and ``--device``, ``--extension``, ``--settings`` and
    ``--setting`` as for ``asyncnn serve``; logging is what the environment says.
    If it does not come to that, the reason is written to the descriptor that
    ``--reason-fd`` gives, a file, for the process that has started this one.
    """
    join_recording("asyncnn serve")
    options = getopt(arguments, "", _OPTIONS)[0]
    fds = _values("--reason-fd", options)
    with errors_as_lines(), _reasons_passed_on(fds):
        level, as_json = level_from_environment()
        published = _published(options, fds)
        serve_until_stopped(published, level, as_json=as_json, until_eof=True)


@contextmanager
def _reasons_passed_on(fds: list[str]) -> Iterator[None]:
    try:
        yield
    except (AsyncnnError, OSError) as error:
        for fd in fds:
            with suppress(OSError):  # there is no room
                os.write(int(fd), one_line(error).encode())
        raise


@asynccontextmanager
async def _published(
    options: Sequence[tuple[str, str]], fds: list[str]
) -> AsyncIterator[None]:
    """Publish a device; each option is a name and a value.

    Then ``fds`` are closed and taken away, as other files may have their numbers next.
    """
    settings = DeviceSettings()
    for path in _values("--settings", options):
        reading = in_one(read_settings, path)
        settings = await offload_abandonable(f"reading {path}", reading)
    settings = with_options(settings, _values("--setting", options)).for_own_process()
    more = tuple(map(load_extension, _values("--extension", options)))
    settings = replace(settings, extensions=(*settings.extensions, *more))
    (path,) = _values("--socket", options)
    name = next(iter(_values("--device", options)), default_device_name())
    async with AsyncExitStack() as stack:
        device = await stack.enter_async_context(default_device(settings, name))
        recorder = None
        for given in _values("--record", options):
            asked = msgspec.json.decode(given, type=RecordingSettings)
            names = tuple(_values("--extension", options))
            recorder = recorder_of(asked, settings, names, name, device)
        await stack.enter_async_context(Server(device, path, recorder=recorder))
        while fds:
            os.close(int(fds.pop()))
        yield


def recorder_of(
    asked: RecordingSettings,
    settings: DeviceSettings,
    extensions: tuple[str, ...],
    name: str | None,
    device: IDevice,
) -> "CallRecorder | None":
    """Return what notes the calls of a driver; None if it is to keep none.

    :raises AsyncnnError: if there is no memory for them.
    """
    if not asked.calls:
        return None
    # Most drivers have no use for it.
    from asyncnn.service.driver.recorder import CallRecorder
    from asyncnn.service.recording import RecordedDriver

    version = device.get_version_string()[1]
    named = name or str(getattr(device, "name", "")).partition("-")[2]
    given = tuple(options_for(replace(settings, extensions=())))
    driver = RecordedDriver(named, version, given, extensions, os.getpid())
    return CallRecorder(asked, driver)


def _values(name: str, options: Sequence[tuple[str, str]]) -> list[str]:
    return [value for each, value in options if each == name]


if __name__ == "__main__":
    main(sys.argv[1:])
