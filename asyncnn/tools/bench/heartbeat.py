"""A heartbeat on an event loop, here or in a driver process: how late its beats are.

Beats are due on a grid of 1 ms, so that being late once delays none of those after it.
A late beat stands for all that were due meanwhile, each of which is a sample: whatever
is called at any of these moments waits as long.
"""

import asyncio
import contextlib
import gc
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncnn.devices import DeviceSettings
from asyncnn.devices.device_settings import options_for, with_options
from asyncnn.runtime.opening_devices import open_device
from asyncnn.service.driver.server import Server
from asyncnn.tools.bench.processes import READY, Pipe, process

TICK_S = 0.001

_ROOM = 1 << 17
_SCHEDULING = "/proc/thread-self/schedstat"
_US = 1e-6
_START, _STOP = b"start", b"stop"


class Pulse(msgspec.Struct, frozen=True):
    """Milliseconds that the beats of a while were late.

    ``waited_ms`` is the longest that the loop's thread was ready between two beats and
    had no CPU: other threads and processes had them. 0 where the system does not tell.
    """

    beats: int
    p50_ms: float
    p99_ms: float
    longest_ms: float
    waited_ms: float


class Heartbeat:
    """Beats on the running event loop from `start` to `stop`.

    A beat reads the clock and the counter of waits for a CPU: a few microseconds.
    """

    def __init__(self) -> None:
        self._late_s = np.zeros(_ROOM)
        self._waited_ns = np.zeros(_ROOM, np.int64)
        self._loop = asyncio.get_running_loop()
        self._scheduling = _open_scheduling()
        self._handle: asyncio.TimerHandle | None = None
        self._beats = 0
        self._due = 0.0

    def start(self) -> None:
        """Beat from now on; forget earlier beats."""
        self._beats = 0
        self._due = self._loop.time()
        self._beat()

    def stop(self) -> Pulse:
        """Beat no more; tell of the beats since the start."""
        assert self._handle is not None
        self._handle.cancel()
        if self._loop.time() > self._due:
            self._record()
        beats = self._beats
        return pulse_of(self._late_s[:beats], self._waited_ns[:beats])

    def close(self) -> None:
        """Close what tells of the waits for a CPU."""
        if self._handle is not None:
            self._handle.cancel()
        if self._scheduling is not None:
            os.close(self._scheduling)
            self._scheduling = None

    def _beat(self) -> None:
        self._record()
        self._handle = self._loop.call_at(self._due, self._beat)

    def _record(self) -> None:
        late = self._loop.time() - self._due
        if self._beats < _ROOM:
            self._late_s[self._beats] = late
            self._waited_ns[self._beats] = self._waited()
            self._beats += 1
        self._due += (int(late / TICK_S) + 1) * TICK_S

    def _waited(self) -> int:
        if self._scheduling is None:
            return 0
        return int(os.pread(self._scheduling, 64, 0).split()[1])


def pulse_of(late_s: NDArray[np.float64], waited_ns: NDArray[np.int64]) -> Pulse:
    """Summarise beats: how late each was, and the waits for a CPU up to it."""
    samples_ms = every_due_tick(late_s) * 1000
    waits_ns = np.diff(waited_ns)
    return Pulse(
        beats=len(late_s),
        p50_ms=_percentile(samples_ms, 50),
        p99_ms=_percentile(samples_ms, 99),
        longest_ms=float(samples_ms.max()),
        waited_ms=float(waits_ns.max()) * _US if waits_ns.size else 0.0,
    )


def every_due_tick(late_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how late each tick was that was due, beaten or missed."""
    late_s = np.maximum(late_s, 0.0)
    due = (late_s / TICK_S).astype(np.int64) + 1
    firsts = np.cumsum(due) - due
    missed = np.arange(due.sum()) - np.repeat(firsts, due)
    return np.repeat(late_s, due) - TICK_S * missed


def _percentile(samples: NDArray[np.float64], share: float) -> float:
    value: Any = np.percentile(samples, share, method="higher")
    return float(value)


def _open_scheduling() -> int | None:
    """Open the scheduler's statistics of this thread, where there are any."""
    with contextlib.suppress(OSError):
        return os.open(_SCHEDULING, os.O_RDONLY)
    return None


class DriverHeartbeat:
    """The heartbeat of a driver process, by the application's end of a pipe.

    While it beats nothing travels there, so that the loop sees only what clients of the
    driver have it do.
    """

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
def beating_driver(
    path: Path, settings: DeviceSettings, device: str = "reference"
) -> Iterator[DriverHeartbeat]:
    """Run a driver process that serves a device at ``path``; yield its heartbeat."""
    with process(None, _serve, path, options_for(settings), device) as pipe:
        yield DriverHeartbeat(pipe)


async def _serve(pipe: Pipe, path: Path, options: Sequence[str], name: str) -> None:
    """Be such a driver process until the other end of ``pipe`` goes."""
    settings = with_options(DeviceSettings(), options)
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
        async with (
            open_device(name, settings=settings) as device,
            Server(device.hal, path),
        ):
            loop.add_reader(pipe.fileno(), obey)
            pipe.send_bytes(READY)
            await ended.wait()
            loop.remove_reader(pipe.fileno())
