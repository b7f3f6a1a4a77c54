"""The ring between one writer and one reader: everything that never waits.

Each end keeps the position it has reached to itself and only publishes it; what it
loads from shared memory is the other end's position, which may be anything and is
checked before use. ``ordering`` says why nothing more is needed.

Stores and loads that belong together carry the same mark: [packet] bytes are there,
[space] bytes are free again, [sleep] somebody is about to sleep.
"""

import threading
from collections.abc import Callable
from functools import partial
from itertools import repeat
from typing import NoReturn, Protocol, Self, TypeAlias

from asyncnn.errors import AsyncnnError, InvalidArgumentError
from asyncnn.fmq.errors import QueueBrokenError, QueueClosedError
from asyncnn.fmq.layout import (
    READ,
    READER_SLEEPS,
    WRITER_SLEEPS,
    WRITTEN,
    Geometry,
    Pages,
)

Bytes: TypeAlias = bytes | bytearray | memoryview
"""Whatever is written; a ``memoryview`` has to be one of bytes."""


class Words(Protocol):
    """The counters and announcements of a queue."""

    def __getitem__(self, index: int, /) -> int: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...


class _Gone:
    """Stands for the memory of a queue that is closed."""

    def __init__(self, error: AsyncnnError) -> None:
        # Not the error itself, whose traceback would keep the memory alive.
        self._error = partial(type(error), error.message)

    def __getitem__(self, index: object) -> NoReturn:
        raise self._error()

    def __setitem__(self, index: object, value: object) -> NoReturn:
        raise self._error()


class Spans:
    """Bytes within a ring, in place: ``second`` goes on where ``first`` ends.

    Nothing is read or written before `commit`. Without it the bytes stay as they were.
    The peer shares this memory: what is read here may change while one looks at it.
    """

    __slots__ = ("_commit", "first", "second")

    def __init__(
        self, first: memoryview, second: memoryview, commit: Callable[[], None]
    ) -> None:
        self.first = first
        self.second = second
        self._commit = commit

    def commit(self) -> None:
        """Hand the bytes to the peer all at once. The views end.

        :raises QueueClosedError: if the queue was closed meanwhile.
        :raises InvalidArgumentError: if this end has moved on meanwhile.
        """
        self.first.release()
        self.second.release()
        self._commit()


class Ring:
    """One end of a queue. An end either writes or reads, one thread at a time.

    ``wake_peer`` is called when the other end sleeps and should not.
    """

    def __init__(
        self, geometry: Geometry, pages: Pages, wake_peer: Callable[[], None]
    ) -> None:
        self.quantum = geometry.quantum
        self.count = geometry.count
        self._capacity = geometry.capacity
        self._words: Words = pages.words
        self._data = pages.ring
        self._read = pages.read
        self._written = pages.written
        self._limit = pages.written  # what `_written` may grow to, as far as is known
        self.is_closed = False
        self._wake_peer = wake_peer
        # A lock for its locked instruction; see ordering.
        self._fence = threading.Lock()

    def available_to_read(self) -> int:
        """Return how many elements wait to be read.

        :raises QueueBrokenError: if the writer's counter is impossible.
        :raises QueueClosedError: if this end is closed.
        """
        return self._unread() // self.quantum

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
        words, read = self._words, self._read
        for _ in repeat(None, looks):  # noqa: SIM110 - a generator takes longer
            if words[WRITTEN] != read:
                return True
        return False

    def write_nowait(self, data: Bytes) -> bool:
        """Write whole elements as one packet; return False if there is no room now.

        The reader sees all of them or none.

        :raises InvalidArgumentError: if these are no whole elements or more than fit.
        :raises QueueBrokenError: if the reader's counter is needed and impossible.
        :raises QueueClosedError: if this end is closed.
        """
        size = len(data)
        written, capacity = self._written, self._capacity
        if size > self._limit - written or size % self.quantum:
            self._check_size(size)
            if size > self._room():
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

    def read_nowait(self, count: int | None = None) -> bytes | None:
        """Read ``count`` elements or all there are; return None if there are fewer.

        :raises InvalidArgumentError: if as many never fit.
        :raises QueueBrokenError: if the writer's counter is impossible.
        :raises QueueClosedError: if this end is closed.
        """
        words, read, capacity = self._words, self._read, self._capacity
        size = words[WRITTEN] - read  # [packet]
        if not 0 <= size <= capacity or size % self.quantum:
            self._break(size)
        if count is not None:
            wanted = self._bytes_of(count)
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

    def writing(self, count: int) -> Spans | None:
        """Return room for ``count`` elements in place; None if there is none now.

        :raises InvalidArgumentError: if as many never fit.
        :raises QueueBrokenError: if the reader's counter is impossible.
        :raises QueueClosedError: if this end is closed.
        """
        size = self._bytes_of(count)
        if size > self._room():
            return None
        return self._spans(self._written, size, self._publish)

    def reading(self, count: int | None = None) -> Spans | None:
        """Return ``count`` elements or all there are in place; None if there are fewer.

        :raises InvalidArgumentError: if as many never fit.
        :raises QueueBrokenError: if the writer's counter is impossible.
        :raises QueueClosedError: if this end is closed.
        """
        unread = self._unread()
        size = unread if count is None else self._bytes_of(count)
        if not 0 < size <= unread:
            return None
        return self._spans(self._read, size, self._consume)

    def _wake_up(self, flag: int) -> None:
        self._words[flag] = 0
        self._wake_peer()

    def _announce(self, flag: int, counter: int, seen: int) -> bool:
        """Say that this end is about to sleep; return False if it must not."""
        words = self._words
        words[flag] = 1  # [sleep]
        with self._fence:
            pass
        if words[counter] == seen:  # [packet] or [space]
            return True
        words[flag] = 0
        return False

    def _unread(self) -> int:
        """Return how many bytes wait, as the reader sees it."""
        unread = self._words[WRITTEN] - self._read
        if not 0 <= unread <= self._capacity or unread % self.quantum:
            self._break(unread)
        return unread

    def _room(self) -> int:
        """Return how many bytes are free, as the writer sees it, and remember it."""
        unread = self._written - self._words[READ]  # [space]
        if not 0 <= unread <= self._capacity or unread % self.quantum:
            self._break(unread)
        room = self._capacity - unread
        self._limit = self._written + room
        return room

    def _break(self, unread: int) -> NoReturn:
        error = QueueBrokenError(
            f"{unread} bytes are unread in a queue of {self._capacity}"
        )
        self._end(error)
        raise error

    def _bytes_of(self, count: int) -> int:
        if not 0 < count <= self.count:
            raise InvalidArgumentError(
                f"{count} elements of a queue that has room for 1 to {self.count}"
            )
        return count * self.quantum

    def _check_size(self, size: int) -> None:
        if size % self.quantum or size > self._capacity:
            raise InvalidArgumentError(
                f"{size} bytes are not 0 to {self.count} elements of {self.quantum}"
            )

    def _spans(
        self, position: int, size: int, commit: Callable[[int, int], None]
    ) -> Spans:
        start = position % self._capacity
        wrapped = max(0, start + size - self._capacity)
        ring = self._data
        return Spans(
            ring[start : start + size], ring[:wrapped], partial(commit, position, size)
        )

    def _publish(self, position: int, size: int) -> None:
        _check_position(self._written, position)
        self._words[WRITTEN] = self._written = position + size  # [packet]
        with self._fence:
            pass
        if self._words[READER_SLEEPS]:  # [sleep]
            self._wake_up(READER_SLEEPS)

    def _consume(self, position: int, size: int) -> None:
        _check_position(self._read, position)
        self._words[READ] = self._read = position + size  # [space]
        with self._fence:
            pass
        if self._words[WRITER_SLEEPS]:  # [sleep]
            self._wake_up(WRITER_SLEEPS)

    def _end(self, error: AsyncnnError) -> None:
        """Let go of the memory; ``error`` is raised by whatever is done afterwards."""
        self.is_closed = True
        self._limit = self._written
        self._words = _Gone(error)
        self._data = memoryview(b"")

    def close(self) -> None:
        """Give everything back. The memory goes with the last `Spans` in it."""
        self._end(QueueClosedError("the queue is closed"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_position(reached: int, begun: int) -> None:
    if reached != begun:
        raise InvalidArgumentError(
            "other elements were read or written since these spans were taken"
        )
