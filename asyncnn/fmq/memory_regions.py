"""Packets written and read in place, without a copy."""

from collections.abc import Callable
from functools import partial
from typing import NoReturn, Self

from asyncnn.fmq.layout import Geometry, Pages, QueueBrokenError, QueueClosedError
from asyncnn.fmq.ring import Ring, check_count
from asyncnn.hal.errors import AsyncnnError


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
