"""Copies of spans of files that could not be mapped safely.

Reading from a file that has been truncated merely comes back short.
"""

import os
from typing import Self

import numpy as np
from numpy.typing import NDArray

from asyncnn.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.types import Memory
from asyncnn.memory.handles import READ_WRITE, Span, label, span_of
from asyncnn.memory.pages import checked_span, os_errors
from asyncnn.memory.sealing import seals_of


class Descriptor:
    """A file descriptor that closes with the last reference to it.

    A thread that uses one keeps it, and hence its number, for as long as it does.
    """

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


class CopiedSpan:
    """A span of a file that pools are copied from and written back to."""

    __slots__ = ("_descriptor", "_span", "kind")

    def __init__(self, kind: str, span: Span, descriptor: Descriptor) -> None:
        self.kind = kind
        self._descriptor = descriptor
        self._span = span

    @classmethod
    def open(cls, memory: Memory) -> Self:
        """Return the span that a pool's handle stands for; duplicate its descriptor.

        :raises InvalidArgumentError: if the kind is unknown.
        :raises GeneralFailureError: if the handle is malformed, the pool not within a
            regular file, or it cannot be used as its handle demands.
        """
        fd = span_of(memory).fd
        with os_errors(label(memory)):
            descriptor = Descriptor(os.dup(fd))
            span = checked_span(memory, seals_of(fd), os.fstat(fd))
        return cls(memory.name, span._replace(fd=descriptor.fd), descriptor)

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self._span.length

    @property
    def _is_writable(self) -> bool:
        return self._span.protection == READ_WRITE

    def read(self, copy: NDArray[np.uint8]) -> memoryview:
        """Fill ``copy`` from the file; return its bytes, read-only if the span is.

        :raises GeneralFailureError: if the file has become too short or unreadable.
        """
        data = copy.data
        fd, offset, done = self._span.fd, self._span.offset, 0
        with os_errors(f"{self.kind} pool"):
            while done < self.size:
                count = os.preadv(fd, [data[done:]], offset + done)
                if not count:
                    raise GeneralFailureError(
                        f"the file of the {self.kind} pool ends {self.size - done} "
                        "bytes early"
                    )
                done += count
        return data if self._is_writable else data.toreadonly()

    def write(self, data: memoryview, offset: int) -> None:
        """Write ``data`` back to the file, ``offset`` bytes into the span.

        :raises InvalidArgumentError: if the span may not be written.
        :raises GeneralFailureError: if the file cannot be.
        """
        if not self._is_writable:
            raise InvalidArgumentError(f"the {self.kind} pool is read-only")
        fd, start, done = self._span.fd, self._span.offset + offset, 0
        with os_errors(f"{self.kind} pool"):
            while done < len(data):
                done += os.pwritev(fd, [data[done:]], start + done)
