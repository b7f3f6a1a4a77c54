"""Calls to a driver by a grammar: bytes are a script of legal and illegal ones.

A script is what a client sends over one connection. Each step takes a byte for its kind
and some for its arguments, among which are handles of what earlier steps have made, and
of nothing. Numbers of new objects are new, and descriptors are as many as was said: who
breaks that is hung up on. All else must be answered, with a status of the HAL.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any, TypeAlias

from msgspec.structs import replace

from asyncnn.burst.packets import DATUM_BYTES
from asyncnn.fmq import MessageQueue
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.types import BufferRole, DataLocation, Model, RequestArgument
from asyncnn.memory.handles import FIXED_SIZE, seal
from asyncnn.service import wire
from asyncnn.tools.bench.made_models import tiny_addition
from asyncnn.tools.fuzz import corpora
from asyncnn.tools.fuzz.driver_peer import (
    BarePeer,
    DriverError,
    Neighbour,
    check_held,
    held_by,
)
from asyncnn.tools.watched_processes import GoneError, cause_of, served_driver

_LOOK_EVERY = 64
_ENDING_S = 1.0
_MOST_STEPS = 60
_POOL_BYTES = 4096
_EDGES = (0, 1, 4, 16, 255, 4096, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**64 - 1, -1)

_Arguments: TypeAlias = tuple[RequestArgument, ...]


class EndError(Exception):
    """There are no more bytes."""


class CallScript:
    """The bytes of a script, taken one by one."""

    def __init__(self, data: bytes) -> None:
        self._left = iter(data)

    def byte(self) -> int:
        """Take a byte.

        :raises EndError: if there is none.
        """
        try:
            return next(self._left)
        except StopIteration:
            raise EndError from None

    def one(self, choices: Sequence[Any]) -> Any:
        """Choose one of several."""
        return choices[self.byte() % len(choices)]

    def number(self) -> int:
        """Return a number that is usual, or one at which arithmetic goes wrong."""
        first = self.byte()
        return first % 32 if first < 128 else int(_EDGES[first % len(_EDGES)])

    def handle(self, known: Sequence[int]) -> int:
        """Return the number of an object that was made, as a rule."""
        choice = self.byte()
        if known and choice < 240:
            return known[choice % len(known)]
        return int(_EDGES[choice % len(_EDGES)])

    def some(self, make: Callable[[], Any], most: int = 4) -> tuple[Any, ...]:
        """Make none to ``most`` of something."""
        return tuple(make() for _ in range(self.byte() % (most + 1)))


class _DriverClient:
    """Plays a script: what it has made, and the steps that it may take."""

    def __init__(
        self, peer: BarePeer, script: CallScript, models: Sequence[Model]
    ) -> None:
        self._peer = peer
        self._script = script
        self._models = models
        self._last = 0
        self._prepared: list[int] = []
        self._pools: list[int] = []
        self._bound: list[int] = []
        self._buffers: list[int] = []
        self._executions: list[int] = []
        self._fenced: list[int] = []
        self._bursts: dict[int, tuple[MessageQueue, MessageQueue]] = {}
        self._files = ExitStack()
        self._steps: tuple[Callable[[], None], ...] = (
            *(self._announce, self._prepare, self._execute, self._execute),
            *(self._forget, self._release, self._bind, self._execute_bound),
            *(self._cancel, self._fence, self._export, self._allocate),
            *(self._copy, self._configure, self._write_packet, self._of_burst),
            *(self._supported, self._statistics, self._save, self._load),
            *(self._wait, self._memories),
        )

    def play(self) -> None:
        """Take the steps, and wait for all answers."""
        with self._files:
            with suppress(EndError):
                for _ in range(_MOST_STEPS):
                    self._script.one(self._steps)()
                    self._peer.take()
            self._peer.await_all()

    def _new(self, known: list[int]) -> int:
        self._last += 1
        known.append(self._last)
        return self._last

    def _file(self) -> int:
        """Return a descriptor of one of several kinds of file."""
        kind = self._script.byte() % 8
        if kind == 0:
            fd = os.open(os.devnull, os.O_RDWR)
        elif kind == 1:
            fd, other = os.pipe()
            os.close(other)
        else:
            fd = os.memfd_create("fuzz", os.MFD_ALLOW_SEALING)
            os.truncate(fd, 0 if kind == 2 else _POOL_BYTES)
            if kind != 3:
                seal(fd, FIXED_SIZE)
        self._files.callback(os.close, fd)
        return fd

    def _announce(self) -> None:
        script = self._script
        name, ints = script.one(_POOLS)
        size = _POOL_BYTES if script.byte() < 200 else script.number()
        info = wire.PoolInfo(self._new(self._pools), name, size, ints, 1)
        self._peer.send(wire.AnnouncePools((info,)), [self._file()])

    def _forget(self) -> None:
        known = [*self._pools, *self._buffers, *self._bound]
        numbers = self._script.some(lambda: self._script.handle(known))
        self._peer.send(wire.ForgetPools(numbers))
        for each in (self._pools, self._buffers, self._bound):
            each[:] = [number for number in each if number not in numbers]

    def _prepare(self) -> None:
        script, number = self._script, self._new(self._prepared)
        preference = script.byte() % 3 if script.byte() < 220 else script.number()
        priority = script.byte() % 3 if script.byte() < 220 else script.number()
        cache, fds = self._cache()
        message = wire.PrepareModel(
            *(number, script.one(self._models), self._some_pools(), preference),
            *(priority, self._deadline(), cache),
        )
        self._peer.ask(message, (wire.Prepared, number), fds)

    def _cache(self) -> tuple[wire.CacheInfo, list[int]]:
        if self._script.byte() < 200:
            return wire.NO_CACHE, []
        counts = self._script.byte() % 3, self._script.byte() % 3
        token = bytes(32 if self._script.byte() < 200 else 5)
        return wire.CacheInfo(*counts, token), [
            self._file() for _ in range(sum(counts))
        ]

    def _deadline(self) -> int | None:
        choice = self._script.byte()
        if choice < 200:
            return None
        now = time.monotonic_ns()
        return (0, now - 1, now + 10**6, now + 10**10, 2**63, 2**64 - 1)[choice % 6]

    def _release(self) -> None:
        number = self._script.handle(self._prepared)
        if (wire.Prepared, number) not in self._peer.awaited:
            self._peer.send(wire.ReleasePreparedModel(number))

    def _some_pools(self) -> tuple[int, ...]:
        return self._script.some(lambda: self._script.handle(self._pools), 3)

    def _argument(self) -> RequestArgument:
        script = self._script
        if script.byte() > 240:
            return RequestArgument(True, DataLocation(), ())
        length = 16 if script.byte() < 200 else script.number()
        place = DataLocation(script.byte() % 3, script.byte() % 2 * 64, length)
        dimensions = script.some(script.number) if script.byte() > 200 else ()
        return RequestArgument(False, place, dimensions)

    def _request(self) -> tuple[int, _Arguments, _Arguments, tuple[int, ...]]:
        known = [*self._pools, *self._buffers]
        return (
            self._script.handle(self._prepared),
            self._script.some(self._argument, 2),
            self._script.some(self._argument, 1),
            self._script.some(lambda: self._script.handle(known), 3),
        )

    def _execute(self) -> None:
        number = self._new(self._executions)
        order = self._order(number)
        self._peer.ask(order, (wire.Executed, number))

    def _order(self, number: int) -> wire.Execute:
        prepared, inputs, outputs, pools = self._request()
        options = self._options()
        return wire.Execute(number, prepared, inputs, outputs, pools, *options)

    def _options(self) -> tuple[int, int | None, int | None]:
        measure = self._script.byte() % 2 if self._script.byte() < 220 else 7
        return measure, self._deadline(), None

    def _bind(self) -> None:
        if len(self._bound) < 8:
            number = self._new(self._bound)
            self._peer.send(wire.BindRequest(number, *self._request()))

    def _execute_bound(self) -> None:
        number = self._new(self._executions)
        bound = self._script.handle(self._bound)
        order = wire.ExecuteBound(number, bound, *self._options())
        self._peer.ask(order, (wire.Executed, number))

    def _cancel(self) -> None:
        known = [*self._executions, *self._fenced]
        self._peer.send(wire.CancelExecution(self._script.handle(known)))

    def _fence(self) -> None:
        number = self._new(self._fenced)
        order = self._order(number)
        known = self._fenced[:-1]
        waits = self._script.some(lambda: self._script.handle(known), 2)
        waits = tuple(max(each, 1) for each in waits)
        duration = None if self._script.byte() < 200 else self._script.number() % 2**63
        message = wire.ExecuteFenced(order, waits, duration, 0)
        self._peer.ask(message, (wire.FencedDone, number))

    def _export(self) -> None:
        if self._fenced:
            read, write = os.pipe()
            self._files.callback(os.close, read)
            self._files.callback(os.close, write)
            self._peer.send(wire.ExportFence(self._fenced.pop()), [write])

    def _allocate(self) -> None:
        script, number = self._script, self._new(self._buffers)
        roles = (
            script.some(lambda: BufferRole(script.byte() % 2, script.number(), 1.0), 2)
            for _ in range(2)
        )
        dimensions = script.some(script.number)
        models = script.some(lambda: script.handle(self._prepared), 2)
        message = wire.Allocate(number, dimensions, models, *roles)
        self._peer.ask(message, (wire.Allocated, number))

    def _copy(self) -> None:
        self._last += 1
        script, call = self._script, self._last
        buffer, pool = script.handle(self._buffers), script.handle(self._pools)
        message: wire.ToDriver = wire.CopyBufferTo(call, buffer, pool)
        if script.byte() % 2:
            dimensions = script.some(script.number)
            message = wire.CopyBufferFrom(call, buffer, pool, dimensions)
        self._peer.ask(message, (wire.BufferCopied, call))

    def _configure(self) -> None:
        self._last += 1
        prepared = self._script.handle(self._prepared)
        queues = [MessageQueue.create(DATUM_BYTES, 64) for _ in range(2)]
        for queue in queues:
            self._files.callback(queue.close)
        ints = [queue.descriptor.ints for queue in queues]
        if self._script.byte() > 220:
            ints[0] = self._script.some(self._script.number)
        fds = [fd for queue in queues for fd in queue.descriptor.fds]
        if self._script.byte() > 220:
            fds[self._script.byte() % len(fds)] = self._file()
        else:
            self._bursts[self._last] = (queues[0], queues[1])
        carries = self._script.byte() % 2 > 0
        message = wire.ConfigureBurst(
            self._last, prepared, ints[0], ints[1], 3, carries
        )
        self._peer.ask(message, (wire.BurstConfigured, self._last), fds)

    def _write_packet(self) -> None:
        for requests, results in self._bursts.values():
            datums = b"".join(
                bytes(
                    (self._script.byte() % 9, *[0] * 3, self._script.byte() % 8)
                ).ljust(8, b"\0")
                + self._script.byte().to_bytes(8, "little")
                + bytes(8)
                for _ in range(1 + self._script.byte() % 6)
            )
            with suppress(AsyncnnError):
                requests.write_nowait(datums)
                results.read_nowait()

    def _of_burst(self) -> None:
        script, burst = self._script, self._script.handle([*self._bursts])
        kinds = (wire.FreeMemory, wire.CancelBurstRequest)
        if script.byte() > 200:
            self._bursts.pop(burst, None)
            self._peer.send(wire.ReleaseBurst(burst))
        else:
            self._peer.send(script.one(kinds)(burst, script.number()))

    def _supported(self) -> None:
        self._last += 1
        model = self._script.one(self._models)
        message = wire.GetSupportedOperations(self._last, model, self._some_pools())
        self._peer.ask(message, (wire.SupportedOperations, self._last))

    def _statistics(self) -> None:
        self._last += 1
        self._peer.ask(wire.GetStatistics(self._last), (wire.Statistics, self._last))

    def _save(self) -> None:
        self._last += 1
        cache = wire.CacheInfo(1, 1, bytes(32))
        prepared = self._script.handle(self._prepared)
        message = wire.SaveModel(self._last, prepared, cache)
        fds = [self._file(), self._file()]
        self._peer.ask(message, (wire.ModelSaved, self._last), fds)

    def _load(self) -> None:
        number = self._new(self._prepared)
        counts = self._script.byte() % 3, self._script.byte() % 3
        cache = wire.CacheInfo(*counts, bytes(32))
        message = wire.PrepareModelFromCache(number, cache, self._deadline())
        fds = [self._file() for _ in range(sum(counts))]
        self._peer.ask(message, (wire.Prepared, number), fds)

    def _memories(self) -> None:
        status = self._script.byte() % 8
        self._peer.send(wire.Memories(self._script.number(), status, ()))

    def _wait(self) -> None:
        self._peer.await_all()


_POOLS = (
    *[("ashmem", ())] * 3,
    ("mmap_fd", (3, 0, 0)),
    ("mmap_fd", (1, 0, 0)),
    ("hardware_buffer_blob", (_POOL_BYTES, 1, 1, 0x21, 0x33, 0)),
    ("hardware_buffer", ()),
    ("x" * 99, (1, 2)),
)


@contextmanager
def driven(device: str) -> Iterator[Callable[[bytes], None]]:
    """Yield what plays scripts to a driver of a device, which is a process of its own.

    :raises DriverError: by what is yielded, if the driver does not do as it should.
    """
    models = [*[tiny_addition().model] * 2, *list(corpora.models())[:8]]
    # A few that are illegal: an operand less, and one that nobody writes.
    models += [_without_operand(each) for each in models[1:4]]
    with (
        served_driver(device or "reference") as driver,
        closing(Neighbour(driver.path)) as neighbour,
    ):
        path, pid = driver.path, driver.process.pid
        play(path, b"", models)
        base = held_by(pid)
        count = 0

        def run(data: bytes) -> None:
            nonlocal count
            try:
                play(path, data, models)
                neighbour.check()
            except (DriverError, OSError):
                with suppress(subprocess.TimeoutExpired):
                    cause = cause_of(driver.process.wait(_ENDING_S))
                    raise GoneError(f"the driver ended by {cause}") from None
                raise
            count += 1
            if not count % _LOOK_EVERY:
                check_held(pid, base)

        yield run


def play(path: str, data: bytes, models: Sequence[Model]) -> None:
    """Play a script on a connection of its own.

    :raises DriverError: if the driver does not do as it should.
    """
    try:
        peer = BarePeer(path)
    except OSError as error:
        raise DriverError(f"a driver that cannot be reached: {error}") from error
    with closing(peer):
        _DriverClient(peer, CallScript(data), models).play()


def _without_operand(model: Model) -> Model:
    main = replace(model.main, operands=model.main.operands[:-1])
    return replace(model, main=main)


def scripts() -> Iterator[bytes]:
    """Yield scripts of usual sessions."""
    announce, prepare = bytes((0, 0, 0, 5)), bytes((1, *[0] * 9))
    execute = bytes((2, 0, 2, *[0] * 5, *[0, 0, 0, 1, 0], 1, *[0] * 5, 1, 0, 0, 0, 0))
    rest = [bytes((number, *range(9))) for number in range(22)]
    yield announce + prepare + bytes((20,)) + execute * 3
    for each in rest:
        yield announce + prepare + bytes((20,)) + each + execute + each
