"""A driver process with a heartbeat on its loop.

A pipe starts and stops it; in between nothing travels there, so that the loop sees only
what its clients have it do.
"""

import asyncio
import contextlib
import gc
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from asyncnn.devices import DeviceSettings
from asyncnn.devices.device_settings import options_for, with_options
from asyncnn.runtime.device import open_device
from asyncnn.service.driver.server import Server
from asyncnn.tools.bench.processes import READY, Pipe, process
from asyncnn.tools.bench.responsiveness.heartbeat import Heartbeat, Pulse

_START, _STOP = b"start", b"stop"


class DriverHeartbeat:
    """The heartbeat of a driver process, by the application's end of the pipe."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def start(self) -> None:
        """Have it beat from now on."""
        self._pipe.send_bytes(_START)
        self._pipe.recv_bytes()

    def stop(self) -> Pulse:
        """Have it stop and tell of its beats."""
        self._pipe.send_bytes(_STOP)
        return msgspec.json.decode(self._pipe.recv_bytes(), type=Pulse)


@contextlib.contextmanager
def beating_driver(path: Path, settings: DeviceSettings) -> Iterator[DriverHeartbeat]:
    """Run a driver process that serves ``path``; yield its heartbeat."""
    with process(None, serve_beating, path, options_for(settings)) as pipe:
        yield DriverHeartbeat(pipe)


def serve_beating(pipe: Pipe, path: Path, options: Sequence[str]) -> None:
    """Be such a driver process until the other end of ``pipe`` goes."""
    asyncio.run(_serve(pipe, path, with_options(DeviceSettings(), options)))


async def _serve(pipe: Pipe, path: Path, settings: DeviceSettings) -> None:
    ended = asyncio.Event()
    heartbeat = Heartbeat()

    def obey() -> None:
        try:
            order = pipe.recv_bytes()
        except EOFError:
            ended.set()
            return
        if order == _START:
            gc.collect()
            heartbeat.start()
            pipe.send_bytes(READY)
        else:
            pipe.send_bytes(msgspec.json.encode(heartbeat.stop()))

    loop = asyncio.get_running_loop()
    with contextlib.closing(heartbeat):
        async with open_device(settings=settings) as device, Server(device.hal, path):
            loop.add_reader(pipe.fileno(), obey)
            pipe.send_bytes(READY)
            await ended.wait()
            loop.remove_reader(pipe.fileno())
