"""The ring between one writer and one reader: everything that never waits.

Each end keeps its own position to itself and publishes it; what it loads from shared
memory is the other end's position, which may be anything and is checked before use.
Stores and loads that belong together carry the same mark: [packet] bytes are there,
[space] bytes are free again, [sleep] an end is about to sleep.

`Ring` is the class in ``_ring.c`` where that was built, else `PythonRing`. Both work on
the same memory, so each end may have either. ``ASYNCNN_PURE_RING=1`` asks for Python.

**Why two processes need no locks.** A queue makes two demands on the order in which
memory changes become visible.

*Publishing.* An end that sees a counter must see what was done before it was stored:
the bytes of a packet before ``WRITTEN`` covers them, and the last load of a packet
before ``READ`` gives its bytes back to the writer.

*Waking.* An end that goes to sleep stores its announcement, then loads the counter; its
peer stores the counter and then loads the announcement. At least one of them must see
the other's store, or a packet lies there while its reader sleeps.

*Compiled.* ``_ring.c`` asks for both by name. Counters and announcements are atomic,
stored with release and loaded with acquire semantics, which is publishing; a
sequentially consistent fence stands between the store and the load of waking. By C11's
rules one of the two fences comes first, and the end whose fence is second sees what was
stored before the first. On aarch64 that makes ``stlr``, ``ldar`` or ``ldapr``, and
``dmb ish``; on x86-64 plain moves and a locked instruction or ``mfence``.

*In Python* there is no asking, so `PythonRing` needs a processor that does it unasked.
x86-64 has total store order: loads are not reordered with loads, stores not with
stores, and no store moves before an older load. That is all that publishing needs. An
item of an aligned ``memoryview`` of format ``Q`` is loaded and stored by a single
``mov``, so a counter is never torn. Bytes are copied by the C library, which ends
non-temporal stores with a fence of its own; string instructions may store out of order
among themselves, but never after a later store to another place.

The one thing this order leaves open is a load that overtakes an older store to another
address, which waits in the processor's store buffer: just what waking forbids. A locked
instruction in between drains the buffer. Taking an uncontended ``threading.Lock`` runs
one, and it is what pure Python has to offer; every lock here belongs to one end, so it
is uncontended but for threads that share that end. Without it about one sleep in two
thousand was seen to miss its packet. ``tests/fmq/test_protocol.py`` explores all
interleavings under this model, with the fence and without.

That argument rests on the interpreter storing an item at once and in program order. As
a second line of defence every sleeper looks again a few milliseconds after it went to
sleep, which bounds the cost of a wake-up that is lost for a reason not foreseen here.
Once is enough: a store leaves the buffer within microseconds, so whatever is written
later meets the announcement.

On aarch64 plain stores may become visible in any order: a reader could see the counter
before the bytes. There, and wherever nothing is known, a queue without the compiled
ring refuses to open (`check_platform`) rather than be right most of the time.
"""

import platform
import sys
import threading
from collections.abc import Callable
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, NoReturn, Self, TypeAlias

from asyncnn.fmq.layout import (
    READ,
    READER_SLEEPS,
    WRITER_SLEEPS,
    WRITTEN,
    Geometry,
    MemoryOrderError,
    Pages,
    QueueBrokenError,
    QueueClosedError,
)
from asyncnn.fmq.spin import AdaptiveSpinner, spin
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.lazy import compiled_module

Bytes: TypeAlias = bytes | bytearray | memoryview
"""Whatever is written; a ``memoryview`` has to be one of contiguous bytes."""

_TOTAL_STORE_ORDER = frozenset({"x86_64", "AMD64"})
"""Machines on which `PythonRing` is right."""


class PythonRing:
    """One end of a queue, which either writes or reads, one thread at a time.

    ``wake_peer`` is called when the peer has announced that it sleeps.
    """

    def __init__(
        self, geometry: Geometry, pages: Pages, wake_peer: Callable[[], None]
    ) -> None:
        self.quantum = geometry.quantum
        self.count = geometry.count
        self.is_closed = False
        self._capacity = geometry.capacity
        self._words: memoryview | _ClosedMemory = pages.words
        self._data = pages.ring
        self._read = pages.read
        self._written = pages.written
        self._limit = pages.written  # what `_written` may grow to, as far as is known
        self._wake_peer = wake_peer
        # Taken and released for its locked instruction, never for exclusion.
        self._fence = threading.Lock()

    def available_to_read(self) -> int:
        """Return how many elements wait to be read.

        :raises QueueBrokenError: if the writer's counter is impossible.
        :raises QueueClosedError: if this end is closed.
        """
        unread = self._words[WRITTEN] - self._read  # [packet]
        self._check_unread(unread)
        return unread // self.quantum

    def available_to_write(self) -> int:
        """Return how many elements there is room for.

        :raises QueueBrokenError: if the reader's counter is impossible.
        :raises QueueClosedError: if this end is closed.
        """
        return self._room() // self.quantum

    def is_readable(self, looks: int = 1) -> bool:
        """Return whether a packet waits, looking ``looks`` times at most.

        :raises QueueClosedError: if this end is closed.
        """
        return self._has_moved(WRITTEN, self._read, looks)

    def write_nowait(self, data: Bytes, /) -> bool:
        """Write whole elements as one packet; return False if there is no room now.

        The reader sees all of them or none.

        :raises InvalidArgumentError: if these are no whole elements or more than fit.
        :raises QueueBrokenError: if the reader's counter is needed and impossible.
        :raises QueueClosedError: if this end is closed.
        """
        size = len(data)
        written, capacity = self._written, self._capacity
        if size > self._limit - written or size % self.quantum:
            room = self._room()
            if size % self.quantum or size > capacity:
                raise InvalidArgumentError(
                    f"{size} bytes are not 0 to {self.count} elements of {self.quantum}"
                )
            if size > room:
                return False
        start = written % capacity
        end = start + size
        if end <= capacity:
            self._data[start:end] = data
        else:
            split = capacity - start
            self._data[start:] = data[:split]
            self._data[: size - split] = data[split:]
        # The bytes come first: a peer that sees the counter reads them at once.
        self._publish(written, size)
        return True

    def read_nowait(self, count: int | None = None, looks: int = 1, /) -> bytes | None:
        """Read ``count`` elements or all there are; return None if there are fewer.

        Looks ``looks`` times at most for something to come.

        :raises InvalidArgumentError: if as many never fit.
        :raises QueueBrokenError: if the writer's counter is impossible.
        :raises QueueClosedError: if this end is closed.
        """
        words, read, capacity = self._words, self._read, self._capacity
        if looks > 1:
            self._has_moved(WRITTEN, read, looks)
        size = words[WRITTEN] - read  # [packet]
        if not 0 <= size <= capacity or size % self.quantum:
            self._break(size)
        if count is not None:
            check_count(count, self.count)
            wanted = count * self.quantum
            if size < wanted:
                return None
            size = wanted
        elif not size:
            return None
        start = read % capacity
        end = start + size
        if end <= capacity:
            data = self._data[start:end].tobytes()
        else:
            data = b"".join((self._data[start:], self._data[: end - capacity]))
        self._consume(read, size)
        return data

    def _read_spinning(self, spinner: AdaptiveSpinner, looks: int, /) -> bytes | None:
        """Read all there are, spinning for it; return None if that does not help.

        Nothing else is to be done meanwhile, and the ``spinner`` skips no wait.

        :raises QueueBrokenError: if the writer's counter is impossible.
        :raises QueueClosedError: if this end is closed, even while this waits.
        """
        data = self.read_nowait(None, looks)
        if data is None and spin(self._has_moved, WRITTEN, self._read, spinner):
            data = self.read_nowait()
        return data

    def _break(self, unread: int, /) -> NoReturn:
        """Close this end and raise: the peer's counter has an impossible value."""
        raise NotImplementedError

    def _end(self, error: Callable[[], AsyncnnError], /) -> None:
        """Release the memory; every later use raises ``error()``."""
        self.is_closed = True
        self._limit = -1  # so that even an empty write asks for room, and raises
        self._words = _ClosedMemory(error)
        self._data = memoryview(b"")

    def _word(self, number: int, /) -> int:
        """Return a word of the shared memory."""
        return self._words[number]

    def _has_moved(self, counter: int, seen: int, looks: int = 1, /) -> bool:
        """Return whether a counter differs from ``seen``, looking ``looks`` times."""
        words = self._words
        for _ in repeat(None, looks):  # noqa: SIM110 - a generator takes longer
            if words[counter] != seen:
                return True
        return False

    def _announce(self, flag: int, counter: int, seen: int, /) -> bool:
        """Announce that this end sleeps; return False if the counter has moved."""
        words = self._words
        # Announce first, look second: the peer does it the other way round, so one of
        # the two sees the other's store and no packet is slept through.
        words[flag] = 1  # [sleep]
        with self._fence:
            pass
        if words[counter] == seen:  # [packet] or [space]
            return True
        words[flag] = 0
        return False

    def _withdraw(self, flag: int, /) -> None:
        """Take back an announcement."""
        self._words[flag] = 0

    def _publish(self, position: int, size: int, /) -> None:
        _check_position(self._written, position)
        self._words[WRITTEN] = self._written = position + size  # [packet]
        with self._fence:
            pass
        if self._words[READER_SLEEPS]:  # [sleep]
            self._wake_up(READER_SLEEPS)

    def _consume(self, position: int, size: int, /) -> None:
        _check_position(self._read, position)
        self._words[READ] = self._read = position + size  # [space]
        with self._fence:
            pass
        if self._words[WRITER_SLEEPS]:  # [sleep]
            self._wake_up(WRITER_SLEEPS)

    def _wake_up(self, flag: int) -> None:
        # Cleared before it rings: afterwards it could undo the sleeper's next one.
        self._words[flag] = 0
        self._wake_peer()

    def _room(self) -> int:
        """Return how many bytes are free, and let `write_nowait` use them unasked."""
        unread = self._written - self._words[READ]  # [space]
        self._check_unread(unread)
        room = self._capacity - unread
        self._limit = self._written + room
        return room

    def _check_unread(self, unread: int) -> None:
        if not 0 <= unread <= self._capacity or unread % self.quantum:
            self._break(unread)


class _ClosedMemory:
    """Stands for the words of a closed queue, so that open ones need no check."""

    def __init__(self, error: Callable[[], AsyncnnError]) -> None:
        self._error = error

    def __getitem__(self, index: object) -> NoReturn:
        raise self._error()

    def __setitem__(self, index: object, value: object) -> NoReturn:
        raise self._error()


if TYPE_CHECKING:
    Ring = PythonRing
else:
    _built = compiled_module("asyncnn.fmq._ring", "ASYNCNN_PURE_RING")
    Ring = PythonRing if _built is None else _built.Ring

IS_COMPILED = Ring is not PythonRing
"""Whether queues use the compiled ring."""


def check_platform() -> None:
    """Check that the argument of this module holds on this platform.

    :raises MemoryOrderError: if it does not.
    """
    if sys.platform != "linux":
        raise MemoryOrderError(f"queues need Linux, this is {sys.platform}")
    if IS_COMPILED:
        return
    machine, python = platform.machine(), platform.python_implementation()
    if machine not in _TOTAL_STORE_ORDER:
        raise MemoryOrderError(
            f"plain loads and stores of {machine} are not ordered",
            hint="executions go by socket; with a C compiler asyncnn builds a ring "
            "that works here",
        )
    if python != "CPython":
        raise MemoryOrderError(f"nothing is known of how {python} orders its stores")


def check_count(count: int, most: int) -> None:
    """Check that so many elements can be read or written at once.

    :raises InvalidArgumentError: if as many never fit.
    """
    if not 0 < count <= most:
        raise InvalidArgumentError(
            f"{count} elements of a queue that has room for 1 to {most}"
        )


def _check_position(reached: int, begun: int) -> None:
    if reached != begun:
        raise InvalidArgumentError(
            "other elements were read or written since these spans were taken"
        )


class Spans:
    """Bytes of a ring, in place: ``second`` goes on at its start where it has wrapped.

    Nothing counts as read or written before `commit`; without it the peer sees no
    change. The peer shares this memory: what is read here may change between two looks.
    """

    __slots__ = ("_commit", "first", "second")

    def __init__(
        self, first: memoryview, second: memoryview, commit: Callable[[], None]
    ) -> None:
        self.first = first
        self.second = second
        self._commit = commit

    def commit(self) -> None:
        """Hand the bytes to the peer all at once, and release both views.

        :raises QueueClosedError: if the queue was closed meanwhile.
        :raises InvalidArgumentError: if this end has moved on meanwhile.
        """
        # First: nothing here may write to what the peer has from the commit on.
        self.first.release()
        self.second.release()
        self._commit()


class OpenRing(Ring):
    """A ring whose bytes can be used in place, and which can be closed."""

    def __init__(
        self, geometry: Geometry, pages: Pages, wake_peer: Callable[[], None]
    ) -> None:
        super().__init__(geometry, pages, wake_peer)
        self._bytes = pages.ring

    def writing(self, count: int) -> Spans | None:
        """Return room for ``count`` elements in place; None if there is none now.

        :raises InvalidArgumentError: if as many never fit.
        :raises QueueBrokenError: if the reader's counter is impossible.
        :raises QueueClosedError: if this end is closed.
        """
        check_count(count, self.count)
        if count > self.available_to_write():
            return None
        return self._spans(self._written, count * self.quantum, self._publish)

    def reading(self, count: int | None = None) -> Spans | None:
        """Return ``count`` elements or all there are in place; None if there are fewer.

        :raises InvalidArgumentError: if as many never fit.
        :raises QueueBrokenError: if the writer's counter is impossible.
        :raises QueueClosedError: if this end is closed.
        """
        unread = self.available_to_read()
        if count is None:
            count = unread
        else:
            check_count(count, self.count)
        if not 0 < count <= unread:
            return None
        return self._spans(self._read, count * self.quantum, self._consume)

    def close(self) -> None:
        """Release everything; the memory goes with the last `Spans` in it."""
        self._give_up(QueueClosedError("the queue is closed"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _give_up(self, error: AsyncnnError) -> None:
        self._bytes = memoryview(b"")
        # A new error each time: this one's traceback would keep the memory alive.
        self._end(partial(type(error), error.message))

    def _break(self, unread: int, /) -> NoReturn:
        error = QueueBrokenError(
            f"{unread} bytes are unread in a queue of {self.count * self.quantum}"
        )
        self._give_up(error)
        raise error

    def _spans(
        self, position: int, size: int, commit: Callable[[int, int], None]
    ) -> Spans:
        ring = self._bytes
        start = position % len(ring)
        wrapped = max(0, start + size - len(ring))
        return Spans(
            ring[start : start + size], ring[:wrapped], partial(commit, position, size)
        )
