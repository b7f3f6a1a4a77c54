"""What loops stay responsive beside, and a heartbeat on them.

Models and inputs are those that hold a loop longest; models are made anew, so that
nothing is known of them. What an activity returns is kept for as long as the heart
beats, since dropping it is an activity of its own.

Beats are due on a grid of 1 ms, so that being late once delays none of those after it.
A late beat stands for all that were due meanwhile, each of which is a sample: whatever
is called at any of these moments waits as long.
"""

import asyncio
import contextlib
import gc
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

import asyncnn
from asyncnn import hal
from asyncnn.devices.device_settings import options_for, with_options
from asyncnn.hal.operations.bound import Array
from asyncnn.service.driver.server import Server
from asyncnn.tools.bench.made_models import long_model, long_models_input, wide_model
from asyncnn.tools.bench.processes import READY, Pipe, process, until_closed
from asyncnn.tools.bench.rounds import percentile

Watched: TypeAlias = Callable[[], Awaitable[object]]
"""What is done while the heart beats; its result is kept until it stops."""

IDLE = "idle"
PREPARE = "prepare"
RELEASE = "release"

_COLUMNS = 4096
_RUNS = 2
_SETTLING_S = 0.25
_saved = count(1 << 32)


class Sizes(msgspec.Struct, frozen=True):
    """How large models and inputs are."""

    operations: int = 20_000
    input_bytes: int = 64 * 2**20

    @property
    def input_shape(self) -> tuple[int, int]:
        """Shape of the large inputs, of float32."""
        return self.input_bytes // (4 * _COLUMNS), _COLUMNS


class Scene(msgspec.Struct, frozen=True):
    """Where activities take place: a device without a cache and one with.

    Both are one device of this process, or one driver; ``folder`` is the cache's.
    """

    plain: asyncnn.Device
    cached: asyncnn.Device
    folder: Path
    sizes: Sizes

    def model(self, number: int | None = None) -> asyncnn.NamedModel:
        """Return a long model that is like no other, or the one of a ``number``."""
        return long_model(self.sizes.operations, number)

    async def loaded(self, model: asyncnn.NamedModel) -> asyncnn.PreparedModel:
        """Load what was saved.

        :raises GeneralFailureError: if it was prepared anew instead.
        """
        before = self._files()
        prepared = await self.cached.prepare(model)
        if not before or self._files() != before:
            raise hal.GeneralFailureError("a saved model was not loaded from the cache")
        return prepared

    async def saved(self) -> asyncnn.NamedModel:
        """Leave a model in the cache and return one that equals it."""
        number = next(_saved)
        await self.cached.prepare(self.model(number))
        return self.model(number)

    async def settle(self) -> None:
        """Wait until what was dropped so far, models above all, has been released."""
        gc.collect()
        for device in (self.plain, self.cached):
            # What a driver was sent before, it has done when it answers.
            await device.statistics()
        await asyncio.sleep(_SETTLING_S)

    def _files(self) -> set[int]:
        return {path.stat().st_ino for path in self.folder.iterdir()}


async def _querying(scene: Scene) -> Watched:
    model = scene.model().model

    async def act() -> tuple[bool, ...]:
        query = scene.plain.hal.get_supported_operations_1_3(model)
        status, supported = await query
        if status is not hal.ErrorStatus.NONE or not all(supported):
            raise hal.GeneralFailureError(
                f"operations are not supported: {status.name}"
            )
        return supported

    return act


async def _idling(scene: Scene) -> Watched:
    return partial(asyncio.sleep, 0)


async def _preparing(scene: Scene) -> Watched:
    return partial(scene.plain.prepare, scene.model())


async def _explaining(scene: Scene) -> Watched:
    return partial(asyncnn.explain, scene.plain, scene.model())


async def _saving(scene: Scene) -> Watched:
    return partial(scene.cached.prepare, scene.model())


async def _loading(scene: Scene) -> Watched:
    return partial(scene.loaded, await scene.saved())


async def _running_first(scene: Scene) -> Watched:
    prepared = await scene.plain.prepare(scene.model())
    return partial(prepared.run, [long_models_input()])


async def _running_loaded_first(scene: Scene) -> Watched:
    prepared = await scene.loaded(await scene.saved())
    return partial(prepared.run, [long_models_input()])


async def _releasing(scene: Scene) -> Watched:
    held = [await scene.plain.prepare(scene.model())]
    await held[0].run([long_models_input()])

    async def act() -> None:
        held.clear()

    return act


async def _running_large(layout: str, scene: Scene) -> Watched:
    """Run large inputs of a layout through one operation, one after the other."""
    shape = scene.sizes.input_shape
    x = large_input(layout, shape)
    prepared = await scene.plain.prepare(wide_model(shape))

    async def act() -> list[object]:
        return [await prepared.run([x]) for _ in range(_RUNS)]

    return act


LAYOUTS = ("contiguous", "fortran", "strided", "unaligned", "shared")


def large_input(layout: str, shape: tuple[int, int]) -> Array:
    """Return an array of ones in one of the `LAYOUTS`.

    As NumPy makes it; with contiguous columns; every second column of an array; at an
    odd address; and where a driver process can use it.
    """
    array: Array
    rows, columns = shape
    match layout:
        case "strided":
            return np.ones((rows, 2 * columns), np.float32)[:, ::2]
        case "unaligned":
            data = np.zeros(4 * rows * columns + 1, np.uint8)
            array = data[1:].view(np.float32).reshape(shape)
        case "shared":
            array = asyncnn.shared_array(shape, np.float32)
        case _:
            array = np.empty(shape, np.float32, "F" if layout == "fortran" else "C")
    array[:] = 1
    return array


class Activity(NamedTuple):
    """What is done, in words; ``prepare`` makes what is needed, and what is watched."""

    description: str
    prepare: Callable[[Scene], Awaitable[Watched]]


ACTIVITIES = {
    IDLE: Activity("nothing", _idling),
    PREPARE: Activity("a long model: prepared", _preparing),
    "query": Activity("which operations are supported", _querying),
    "explain": Activity("explained, operation by operation", _explaining),
    "save": Activity("prepared and saved in a cache", _saving),
    "load": Activity("loaded from the cache", _loading),
    "first_run": Activity("first run", _running_first),
    "first_run_loaded": Activity("first run after loading", _running_loaded_first),
    RELEASE: Activity("released", _releasing),
    **{
        f"input_{each}": Activity(
            f"a large input: {each}", partial(_running_large, each)
        )
        for each in LAYOUTS
    },
}
"""Activities by name, in the order in which they are reported."""


TICK_S = 0.001

_ROOM = 1 << 17
_SCHEDULING = "/proc/thread-self/schedstat"
_US = 1e-6
_START, _STOP = b"start", b"stop"


class Pulse(msgspec.Struct, frozen=True):
    """Milliseconds that the beats of a while were late.

    ``waited_ms`` is the longest that the loop's thread was ready between two beats and
    had no CPU: other threads and processes had them. 0 where the system does not say.
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
        """Beat no more; return the beats since the start."""
        assert self._handle is not None
        self._handle.cancel()
        if self._loop.time() > self._due:
            self._record()
        beats = self._beats
        return pulse_of(self._late_s[:beats], self._waited_ns[:beats])

    def close(self) -> None:
        """Close what reports the waits for a CPU."""
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
        p50_ms=percentile(samples_ms, 0.5),
        p99_ms=percentile(samples_ms, 0.99),
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
        """Have it stop and return its beats."""
        self._pipe.send_bytes(_STOP)
        return msgspec.json.decode(self._pipe.recv_bytes(), type=Pulse)


@contextlib.contextmanager
def beating_driver(
    path: Path, settings: asyncnn.DeviceSettings, device: str = "reference"
) -> Iterator[DriverHeartbeat]:
    """Run a driver process that serves a device at ``path``; yield its heartbeat."""
    with process(None, _serve, path, options_for(settings), device) as pipe:
        yield DriverHeartbeat(pipe)


async def _serve(pipe: Pipe, path: Path, options: Sequence[str], name: str) -> None:
    """Be such a driver process until the other end of ``pipe`` goes."""
    settings = with_options(asyncnn.DeviceSettings(), options)
    heartbeat = Heartbeat()

    def obey(order: bytes) -> None:
        if order == _START:
            gc.collect()
            heartbeat.start()
            pipe.send_bytes(READY)
        else:
            pipe.send_bytes(msgspec.json.encode(heartbeat.stop()))

    opened = asyncnn.open_device(name, settings=settings)
    with contextlib.closing(heartbeat):
        async with opened as device, Server(device.hal, path):
            await until_closed(pipe, obey)
