"""The ring between one writer and one reader: everything that never waits.

Each end keeps the position it has reached to itself and only publishes it; what it
loads from shared memory is the other end's position, which may be anything and is
checked before use. ``ordering`` says why nothing more is needed.

Stores and loads that belong together carry the same mark: [packet] bytes are there,
[space] bytes are free again, [sleep] somebody is about to sleep.

``_ring.c`` is this file in C; ``built`` says which of the two is taken.
"""

import importlib
import os
import platform
import sys
import threading
from collections.abc import Callable
from itertools import repeat
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeAlias

from asyncnn.fmq.layout import (
    READ,
    READER_SLEEPS,
    WRITER_SLEEPS,
    WRITTEN,
    Geometry,
    MemoryOrderError,
    Pages,
)
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError

Bytes: TypeAlias = bytes | bytearray | memoryview
"""Whatever is written; a ``memoryview`` has to be one of contiguous bytes."""


class _Words(Protocol):
    """The counters and announcements of a queue."""

    def __getitem__(self, index: int, /) -> int: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...


class _Gone:
    """Stands for the memory of a queue that is closed."""

    def __init__(self, error: Callable[[], AsyncnnError]) -> None:
        self._error = error

    def __getitem__(self, index: object) -> NoReturn:
        raise self._error()

    def __setitem__(self, index: object, value: object) -> NoReturn:
        raise self._error()


class Ring:
    """One end of a queue. An end either writes or reads, one thread at a time.

    ``wake_peer`` is called when the other end sleeps and should not.
    """

    def __init__(
        self, geometry: Geometry, pages: Pages, wake_peer: Callable[[], None]
    ) -> None:
        self.quantum = geometry.quantum
        self.count = geometry.count
        self.is_closed = False
        self._capacity = geometry.capacity
        self._words: _Words = pages.words
        self._data = pages.ring
        self._read = pages.read
        self._written = pages.written
        self._limit = pages.written  # what `_written` may grow to, as far as is known
        self._wake_peer = wake_peer
        # A lock for its locked instruction; see ordering.
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
        """Tell whether anything seems to wait, after so many looks at most.

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
            self._check_size(size)
            if size > room:
                return False
        words = self._words
        start = written % capacity
        end = start + size
        if end <= capacity:
            self._data[start:end] = data
        else:
            split = capacity - start
            self._data[start:] = data[:split]
            self._data[: size - split] = data[split:]
        words[WRITTEN] = self._written = written + size  # [packet]
        with self._fence:
            pass
        if words[READER_SLEEPS]:  # [sleep]
            self._wake_up(READER_SLEEPS)
        return True

    def read_nowait(self, count: int | None = None, looks: int = 1, /) -> bytes | None:
        """Read ``count`` elements or all there are; return None if there are fewer.

        Looks so many times at most whether anything comes.

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
        words[READ] = self._read = read + size  # [space]
        with self._fence:
            pass
        if words[WRITER_SLEEPS]:  # [sleep]
            self._wake_up(WRITER_SLEEPS)
        return data

    def _break(self, unread: int, /) -> NoReturn:
        """Close this end and raise: the other one counts what cannot be."""
        raise NotImplementedError

    def _end(self, error: Callable[[], AsyncnnError], /) -> None:
        """Let go of the memory; whatever is done afterwards raises ``error()``."""
        self.is_closed = True
        self._limit = -1  # not even nothing may be written
        self._words = _Gone(error)
        self._data = memoryview(b"")

    def _word(self, number: int, /) -> int:
        """Return a word of the shared memory."""
        return self._words[number]

    def _has_moved(self, counter: int, seen: int, looks: int = 1, /) -> bool:
        """Tell whether a counter is not ``seen``, after so many looks at most."""
        words = self._words
        for _ in repeat(None, looks):  # noqa: SIM110 - a generator takes longer
            if words[counter] != seen:
                return True
        return False

    def _announce(self, flag: int, counter: int, seen: int, /) -> bool:
        """Say that this end is about to sleep; return False if it must not."""
        words = self._words
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
        """Hand over what was written in place from ``position`` on."""
        _check_position(self._written, position)
        self._words[WRITTEN] = self._written = position + size  # [packet]
        with self._fence:
            pass
        if self._words[READER_SLEEPS]:  # [sleep]
            self._wake_up(READER_SLEEPS)

    def _consume(self, position: int, size: int, /) -> None:
        """Give back what was read in place from ``position`` on."""
        _check_position(self._read, position)
        self._words[READ] = self._read = position + size  # [space]
        with self._fence:
            pass
        if self._words[WRITER_SLEEPS]:  # [sleep]
            self._wake_up(WRITER_SLEEPS)

    def _wake_up(self, flag: int) -> None:
        self._words[flag] = 0
        self._wake_peer()

    def _room(self) -> int:
        """Return how many bytes are free, as the writer sees it, and remember it."""
        unread = self._written - self._words[READ]  # [space]
        self._check_unread(unread)
        room = self._capacity - unread
        self._limit = self._written + room
        return room

    def _check_unread(self, unread: int) -> None:
        if not 0 <= unread <= self._capacity or unread % self.quantum:
            self._break(unread)

    def _check_size(self, size: int) -> None:
        if size % self.quantum or size > self._capacity:
            raise InvalidArgumentError(
                f"{size} bytes are not 0 to {self.count} elements of {self.quantum}"
            )


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


def _ring() -> type[Ring]:
    if os.environ.get("ASYNCNN_PURE_RING") == "1":
        return Ring
    try:
        compiled = importlib.import_module("asyncnn.fmq._ring")
    except ImportError:  # there was no compiler
        return Ring
    ring: type[Ring] = compiled.Ring
    return ring


if TYPE_CHECKING:
    Ring = Ring
else:
    Ring = _ring()

IS_COMPILED = Ring is not Ring
"""Whether queues use the compiled ring."""


_TOTAL_STORE_ORDER = frozenset({"x86_64", "AMD64"})


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
