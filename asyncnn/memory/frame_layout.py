"""What lies where in the shared memory of a frame queue.

All numbers are unsigned, of 64 bits and in the machine's byte order:

====== ========================================================================
byte   is
====== ========================================================================
0      ``asyncnn1``, written when all else is there
8      places
16     bytes of a frame
24     where the first place begins
32     bytes from one place to the next
40     dtype as of NumPy's array interface, such as ``<f4``, padded to 16 bytes
56     axes of a frame, then 8 numbers for their sizes
128    1 once the owner has closed the queue
136    how many frames the owner has taken
192    process ID of the producer, 0 once it has ended in order
200    how many producers there have been
256    for each place: the number of the frame that it is free for, and of the last one
       that was written there
====== ========================================================================

Frames are numbered from 1; number N lies at place (N - 1) % places. Each number has one
writer: the owner those up to 136 and what places are free for, the producer the others.

Frames are copies of their places, or the places themselves. One that is mapped is given
back when the last array, view or pool over it has gone, on whichever thread: a run that
was left behind may still read it.
"""

import os
import re
import struct
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError, WrongTypeError
from asyncnn.hal.types import Handle
from asyncnn.memory.descriptors import Descriptor
from asyncnn.memory.handles import READ, MappedSpan, file_handle
from asyncnn.memory.pages import map_pages, os_errors, read_into, write_all
from asyncnn.memory.posix_memory import dimensions_of
from asyncnn.memory.slabs import Part, Slab, array_in

MAX_PLACES = 1024
MAX_RANK = 8
CLOSED, TAKEN, PRODUCER_PID, PRODUCERS = 128, 136, 192, 200
FILLED, FREE = ".filled", ".free"
"""What follows the queue's name in its semaphores' names."""

_MAGIC = b"asyncnn1"
_HEADER = struct.Struct(f"=8sQQQQ16sQ{MAX_RANK}Q")
_DTYPE = re.compile(r"[<>|][biufc]\d{1,2}")
_TABLE = 256
_PAIR_BYTES = 16
_ALIGNMENT = 4096


class FrameLayout(msgspec.Struct, frozen=True):
    """The frames of a queue: their shape and dtype, and how many there is room for."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    places: int
    frame_bytes: int

    @classmethod
    def of(cls, shape: int | tuple[int, ...], dtype: DTypeLike, places: int) -> Self:
        """Return the layout of a new queue.

        :raises InvalidArgumentError: if there is no such array or number of places.
        """
        if not isinstance(places, int | np.integer):
            raise WrongTypeError(f"{places!r} places of a frame queue")
        dimensions, element, size = dimensions_of(shape, dtype)
        if len(dimensions) > MAX_RANK or not _DTYPE.fullmatch(element.str):
            raise InvalidArgumentError(
                f"no queue has frames of shape {shape!r} and dtype {dtype!r}",
                hint=f"take {MAX_RANK} axes at most, and numbers",
            )
        if 0 in dimensions:
            raise InvalidArgumentError(f"a frame of shape {shape!r} is empty")
        if not 2 <= places <= MAX_PLACES:
            # The one that is looked at is not free for the next one.
            raise InvalidArgumentError(
                f"{places} places of a frame queue", hint=f"take 2 to {MAX_PLACES}"
            )
        return cls(dimensions, element, places, size)

    @classmethod
    def read(cls, fd: int, name: str) -> Self:
        """Return the layout that a queue's memory begins with.

        :raises GeneralFailureError: if it is none.
        """
        with os_errors(name):
            data = os.pread(fd, _HEADER.size, 0)
            size = os.fstat(fd).st_size
        if len(data) == _HEADER.size and data.startswith(_MAGIC):
            _, places, *numbers, dtype, rank = _HEADER.unpack(data)[:7]
            shape = _HEADER.unpack(data)[7 : 7 + min(rank, MAX_RANK)]
            with suppress(InvalidArgumentError, OverflowError, UnicodeDecodeError):
                kind = dtype.rstrip(b"\0").decode()
                # Other text is parsed by NumPy, as a list of fields, say.
                found = cls.of(shape, kind if _DTYPE.fullmatch(kind) else "O", places)
                if [*found._numbers] == numbers and found.size <= size:
                    return found
        raise GeneralFailureError(f"{name} is no frame queue")

    @property
    def size(self) -> int:
        """Bytes of the whole memory."""
        return self.offset_of(self.places)

    @property
    def _numbers(self) -> tuple[int, int, int]:
        return (
            self.frame_bytes,
            self.offset_of(0),
            self.offset_of(1) - self.offset_of(0),
        )

    def write(self, fd: int) -> None:
        """Describe the queue; all places are free.

        :raises OSError: if that fails.
        """
        for place in range(self.places):
            write_word(fd, self.free_at(place), place + 1)
        shape = self.shape + (0,) * (MAX_RANK - len(self.shape))
        header = _HEADER.pack(
            _MAGIC,
            self.places,
            *self._numbers,
            self.dtype.str.encode(),
            len(self.shape),
            *shape,
        )
        write_all(fd, memoryview(header)[8:], 8)
        write_all(fd, memoryview(header)[:8], 0)

    def place_of(self, number: int) -> int:
        """Return where a frame lies."""
        return (number - 1) % self.places

    def offset_of(self, place: int) -> int:
        """Return where the bytes of a place begin."""
        table = _TABLE + self.places * _PAIR_BYTES
        return _rounded_up(table) + place * _rounded_up(self.frame_bytes)

    def free_at(self, place: int) -> int:
        """Return where it is written which frame a place is free for."""
        return _TABLE + place * _PAIR_BYTES

    def written_at(self, place: int) -> int:
        """Return where it is noted which frame was written to a place."""
        return self.free_at(place) + 8


def read_word(fd: int, offset: int) -> int:
    """Return a number; 0 where the memory has been cut short.

    Never by a mapping, which could end this process. As each call of the system orders
    what is read before and after, a frame's bytes are not older than its number.

    :raises OSError: if that fails.
    """
    return int.from_bytes(os.pread(fd, 8, offset), sys.byteorder)


def write_word(fd: int, offset: int, number: int) -> None:
    """Write a number.

    :raises OSError: if that fails.
    """
    os.pwrite(fd, number.to_bytes(8, sys.byteorder), offset)


def _rounded_up(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


GiveBack = Callable[[int], None]
"""Takes the number of a frame that nobody looks at any more."""


class CopiedFrames(msgspec.Struct, frozen=True, eq=False):
    """Copies of frames. Reading fails where the queue's memory has been cut short."""

    _fd: Descriptor
    _layout: FrameLayout
    _give_back: GiveBack

    def frame(self, number: int) -> NDArray[Any]:
        """Return a copy of a frame, and give its place back.

        :raises AsyncnnError: if it cannot be had; its place stays taken.
        """
        layout = self._layout
        offset = layout.offset_of(layout.place_of(number))
        with os_errors("frame"):
            # Of the heap, whose pages have been there before; pages of a new memory
            # file take ten times as long as the copying.
            frame = np.empty(layout.shape, layout.dtype)
            data = frame.reshape(-1).view(np.uint8).data
            if read_into(data, self._fd.fd, offset) < layout.frame_bytes:
                raise GeneralFailureError("the memory of the queue has been cut short")
        self._give_back(number)
        return frame


class MappedFrames:
    """Frames where they are, read-only, in memory whose producer is trusted.

    Each place is a slab for itself, so that a driver that copies has one to copy.
    """

    def __init__(
        self, fd: Descriptor, layout: FrameLayout, give_back: GiveBack
    ) -> None:
        self._layout = layout
        self._give_back = give_back
        self._leases: dict[int, weakref.ref[NDArray[np.uint8]]] = {}
        size = layout.frame_bytes
        with os_errors("frame queue", layout.size):
            pages = map_pages(MappedSpan(fd.fd, READ, 0, layout.size), 0)
        self._slabs: list[Slab] = []
        for place in range(layout.places):
            start = layout.offset_of(place)
            handle = file_handle(MappedSpan(fd.fd, READ, start, size))
            slab = Slab("mmap_fd", size, handle, pages[start : start + size])
            weakref.finalize(slab, id, fd)  # which is open for as long
            self._slabs.append(slab)

    def frame(self, number: int) -> NDArray[Any]:
        """Return a frame; its place is given back once nothing views it."""
        layout = self._layout
        slab = self._slabs[layout.place_of(number)]
        assert slab.buffer is not None
        whole = np.frombuffer(slab.buffer, np.uint8)
        leases, give_back = self._leases, self._give_back

        def ended(_: object) -> None:
            leases.pop(number, None)
            give_back(number)

        part = Part("ashmem", slab.size, Handle(), whole.data, slab=slab, offset=0)
        frame = array_in(part, layout.dtype, layout.shape)
        leases[number] = weakref.ref(whole, ended)
        return frame
