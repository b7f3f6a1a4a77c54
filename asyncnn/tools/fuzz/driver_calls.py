"""Calls to a driver by a grammar: bytes are a script of legal and illegal ones.

A script is what a client sends over one connection. Each step takes a byte for its kind
and some for its arguments, among which are handles of what earlier steps have made, and
of nothing. Numbers of new objects are new, and descriptors are as many as was said: who
breaks that is hung up on. All else must be answered, with a status of the HAL.
"""

import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from typing import Any

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
_MOST_BOUND = 8
_POOL_BYTES = 4096
_EDGES = (0, 1, 4, 16, 255, 4096, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**64 - 1, -1)


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

    def usual(self, count: int) -> int:
        """Return a number that is less than a count, as a rule."""
        return self.byte() % count if self.byte() < 220 else self.number()

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
    """Plays a script: what it has made, and the steps that it may take.

    Most steps are a message of a kind, with each field drawn by its name.
    """

    def __init__(
        self, peer: BarePeer, script: CallScript, models: Sequence[Model]
    ) -> None:
        self._peer = peer
        self._script = script
        self._last = 0
        self._known: defaultdict[str, list[int]] = defaultdict(list)
        self._bursts: dict[int, tuple[MessageQueue, MessageQueue]] = {}
        self._fds: list[int] = []
        self._files = ExitStack()
        self._steps: tuple[Callable[[], None], ...] = (
            *(partial(self._send, *each) for each in _MESSAGES),
            *(self._announce, self._forget, self._save, self._release, self._bind),
            *(self._fence, self._export, self._configure, self._write_packet),
            *(self._of_burst, peer.await_all),
        )
        some, handle = script.some, self._handle
        self._fields: dict[str, Callable[[], Any]] = {
            **{name: partial(handle, name) for name in ("prepared", "bound", "buffer")},
            **dict.fromkeys(("call", "status", "slot", "request"), script.number),
            **dict.fromkeys(("preference", "priority"), partial(script.usual, 3)),
            **dict.fromkeys(("input_roles", "output_roles"), partial(some, self._role)),
            "execution": partial(handle, "execution", "fenced"),
            "pool": partial(handle, "pools"),
            "pools": partial(some, partial(handle, "pools", "buffer"), 3),
            "model": partial(script.one, models),
            "models": partial(some, partial(handle, "prepared"), 2),
            "inputs": partial(some, self._argument, 2),
            "outputs": partial(some, self._argument, 1),
            "dimensions": partial(some, script.number),
            "measure": partial(script.usual, 2),
            "deadline": self._deadline,
            "loop_timeout": lambda: None,
            "cache": self._cache,
        }

    def play(self) -> None:
        """Take the steps, and wait for all answers."""
        with self._files:
            with suppress(EndError):
                for _ in range(_MOST_STEPS):
                    self._script.one(self._steps)()
                    self._peer.take()
            self._peer.await_all()

    def _new(self, kind: str) -> int:
        self._last += 1
        self._known[kind].append(self._last)
        return self._last

    def _handle(self, *kinds: str) -> int:
        return self._script.handle([n for kind in kinds for n in self._known[kind]])

    def _drawn(self, kind: type[Any], **given: Any) -> Any:
        """Return a message of a kind, with what is not given drawn."""
        names = [name for name in kind.__struct_fields__ if name not in given]
        return kind(**given, **{name: self._fields[name]() for name in names})

    def _send(self, kind: type[Any], answer: type[Any] | None) -> None:
        """Send a message, whose first field is a new number if it has an answer."""
        self._fds = []
        if answer is None:
            self._peer.send(self._drawn(kind))
            return
        first = kind.__struct_fields__[0]
        number = self._new(first)
        message = self._drawn(kind, **{first: number})
        self._peer.ask(message, (answer, number), self._fds)

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

    def _cache(self) -> wire.CacheInfo:
        """Return what is said of the files of a cache, which go with the message."""
        if self._script.byte() < 128:
            return wire.NO_CACHE
        counts = self._script.byte() % 3, self._script.byte() % 3
        token = bytes(32 if self._script.byte() < 200 else 5)
        self._fds += [self._file() for _ in range(sum(counts))]
        return wire.CacheInfo(*counts, token)

    def _deadline(self) -> int | None:
        choice = self._script.byte()
        if choice < 200:
            return None
        now = time.monotonic_ns()
        return (0, now - 1, now + 10**6, now + 10**10, 2**63, 2**64 - 1)[choice % 6]

    def _argument(self) -> RequestArgument:
        script = self._script
        if script.byte() > 240:
            return RequestArgument(True, DataLocation(), ())
        length = 16 if script.byte() < 200 else script.number()
        place = DataLocation(script.byte() % 3, script.byte() % 2 * 64, length)
        dimensions = script.some(script.number) if script.byte() > 200 else ()
        return RequestArgument(False, place, dimensions)

    def _role(self) -> BufferRole:
        return BufferRole(self._script.byte() % 2, self._script.number(), 1.0)

    def _announce(self) -> None:
        script = self._script
        name, ints = script.one(_POOLS)
        size = _POOL_BYTES if script.byte() < 200 else script.number()
        info = wire.PoolInfo(self._new("pools"), name, size, ints, 1)
        self._peer.send(wire.AnnouncePools((info,)), [self._file()])

    def _forget(self) -> None:
        kinds = "pools", "buffer", "bound"
        numbers = self._script.some(partial(self._handle, *kinds))
        self._peer.send(wire.ForgetPools(numbers))
        for kind in kinds:
            self._known[kind] = [n for n in self._known[kind] if n not in numbers]

    def _save(self) -> None:
        call, cache = self._new("call"), wire.CacheInfo(1, 1, bytes(32))
        message = self._drawn(wire.SaveModel, call=call, cache=cache)
        fds = [self._file(), self._file()]
        self._peer.ask(message, (wire.ModelSaved, call), fds)

    def _release(self) -> None:
        number = self._handle("prepared")
        if (wire.Prepared, number) not in self._peer.awaited:
            self._peer.send(wire.ReleasePreparedModel(number))

    def _bind(self) -> None:
        if len(self._known["bound"]) < _MOST_BOUND:
            bound = self._new("bound")
            self._peer.send(self._drawn(wire.BindRequest, bound=bound))

    def _fence(self) -> None:
        script, number = self._script, self._new("fenced")
        order = self._drawn(wire.Execute, execution=number)
        known = self._known["fenced"][:-1]
        waits = script.some(lambda: max(script.handle(known), 1), 2)
        duration = None if script.byte() < 200 else script.number() % 2**63
        message = wire.ExecuteFenced(order, waits, duration, 0)
        self._peer.ask(message, (wire.FencedDone, number))

    def _export(self) -> None:
        if self._known["fenced"]:
            read, write = os.pipe()
            self._files.callback(os.close, read)
            self._files.callback(os.close, write)
            fence = self._known["fenced"].pop()
            self._peer.send(wire.ExportFence(fence), [write])

    def _configure(self) -> None:
        number, prepared = self._new("call"), self._handle("prepared")
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
            self._bursts[number] = (queues[0], queues[1])
        carries = self._script.byte() % 2 > 0
        message = wire.ConfigureBurst(number, prepared, ints[0], ints[1], 3, carries)
        self._peer.ask(message, (wire.BurstConfigured, number), fds)

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


_MESSAGES: tuple[tuple[type[Any], type[Any] | None], ...] = (
    (wire.PrepareModel, wire.Prepared),
    (wire.PrepareModelFromCache, wire.Prepared),
    (wire.GetSupportedOperations, wire.SupportedOperations),
    (wire.GetStatistics, wire.Statistics),
    (wire.Allocate, wire.Allocated),
    (wire.CopyBufferTo, wire.BufferCopied),
    (wire.CopyBufferFrom, wire.BufferCopied),
    *[(wire.Execute, wire.Executed)] * 2,
    (wire.ExecuteBound, wire.Executed),
    (wire.CancelExecution, None),
    (wire.Memories, None),
)

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
    announce, prepare, wait = bytes((12, 0, 0, 5)), bytes((0, *[0] * 8)), bytes((22,))
    execute = bytes((7, 0, 2, *[0] * 5, *[0, 0, 0, 1, 0], 1, *[0] * 5, 1, 0, 0, 0, 0))
    begin = announce + prepare + wait
    yield begin + execute * 3
    for number in range(23):
        each = bytes((number, *range(9)))
        yield begin + each + execute + each
