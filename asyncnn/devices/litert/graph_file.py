"""A TFLite file whose large constants lie apart, and where LiteRT reads it.

The schema lets a buffer say where its bytes are, as an offset from the beginning of the
file, instead of having them. So weights stay where the model has them: no copy is made
for the file, and what is mapped stays shared. LiteRT reads nothing but the file and
what its offsets refer to, which may lie anywhere behind it. Both ways of running LiteRT
are an `Engine`, which compiles such files.
"""

import ctypes
import itertools
import logging
import mmap
import resource
import struct
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from asyncnn.devices.compiled_graph import CompiledGraph
from asyncnn.devices.litert.c_api import require_descriptors
from asyncnn.devices.litert.weights import PackedWeights
from asyncnn.engine.array_memory import address_of, has_tail
from asyncnn.engine.costs import USUAL, Speeds
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operations.bound import Array
from asyncnn.interpreter_hooks import disown_in_children, forked_error
from asyncnn.memory.pages import TAIL_BYTES, Room, aligned_bytes, os_errors
from asyncnn.offload import room_for

logger = logging.getLogger(__name__)

ALIGNMENT = 16
"""Bytes that the schema wants offsets of buffers to be a multiple of."""

_WORTH_BYTES = 2**12
_ALIGNMENT_APART = 4
"""The alignment of vectors in a file whose writer does not care for buffers."""

_OFFSET = struct.Struct("<Q")

_PACKED_SHARE, _ROOM_BYTES = 2, 2**22
"""Weights are in a buffer and in the file of packed ones while they are packed."""

_FIRST, _END = 2**32, 2**40
"""Addresses where files are placed: below what the system gives programs as a rule."""

_STRIDE = 2**21
_MAP_FAILED = ctypes.c_void_p(-1).value


class Apart(NamedTuple):
    """Bytes of a constant, and the position of their offset in the file.

    ``source`` is the array that has these very bytes, None for converted ones.
    """

    position: int
    data: Array
    source: Array | None = None


class GraphFile(msgspec.Struct, frozen=True, eq=False):
    """A TFLite file; the offsets of what lies ``apart`` are 0 in ``content``.

    Their data have one axis of uint8. So has the file ``behind``, if any, which
    ``content`` is the head of; nobody reads its ``holes``, places and sizes in order.
    If there is ``room`` for the head, it is read from there, and the file where it is.
    """

    content: bytes
    apart: tuple[Apart, ...] = ()
    behind: Array | None = None
    holes: tuple[tuple[int, int], ...] = ()
    room: Room | None = None

    @property
    def size(self) -> int:
        """Bytes of content, and of what is behind it."""
        distance = 0 if self.room is None else self.room.distance
        behind = 0 if self.behind is None else self.behind.size
        return len(self.content) + distance + behind

    def joined(self) -> bytes:
        """Return the file in one piece, with a copy of what lies apart."""
        if not self.apart and self.behind is None:
            return self.content
        head = bytearray(self.content)
        parts: list[bytes | bytearray | memoryview] = [head]
        if self.room is not None:
            parts.append(bytes(self.room.distance))
        if self.behind is not None:
            parts.append(self.behind.data)
        end = self.size
        for position, data, _ in self.apart:
            padding = -end % ALIGNMENT
            _OFFSET.pack_into(head, position, end + padding)
            parts += [bytes(padding), data.data]
            end += padding + data.size
        return b"".join(parts)

    def parts(self) -> Iterator[tuple[int, int, int]]:
        """Yield what is to be copied: from which address, how much, and to where."""
        head = np.frombuffer(self.content, np.uint8)
        yield address_of(head), head.size, 0
        if self.behind is None:
            return
        address, at = address_of(self.behind), 0
        for start, size in (*self.holes, (self.behind.size, 0)):
            if start > at:
                yield address + at, start - at, head.size + at
            at = max(at, start + size)


def referring(content: bytes, apart: Iterable[Apart], address: int) -> bytes:
    """Return content as it is at an address, below what lies apart."""
    head = bytearray(content)
    for each in apart:
        _OFFSET.pack_into(head, each.position, address_of(each.data) - address)
    return bytes(head)


Source: TypeAlias = bytes | bytearray | memoryview | GraphFile
"""What is compiled: a TFLite file."""


def may_lie_apart(data: Array) -> bool:
    """Return whether a constant is worth the bytes, and kernels can read it."""
    if data.size < _WORTH_BYTES:
        return False
    address = address_of(data)
    return not address % _ALIGNMENT_APART and has_tail(data, address)


@contextmanager
def for_want_of_room(model: Source) -> Iterator[None]:
    """Compile a graph inside the block, if there is memory for its packed weights.

    XNNPACK ends the process where it gets none. What fails for want of anything else,
    which LiteRT does not report, is found out afterwards.

    :raises ResourceExhaustedError: if memory or descriptors have run out.
    """
    size = _most_packed_bytes(model)
    with os_errors(f"compiling a graph with LiteRT ({size} bytes)", size):
        try:
            with room_for(size):
                yield
        except GeneralFailureError:
            with room_for(size):
                require_descriptors(1)
            raise


def may_be_packed(model: Source) -> bool:
    """Return whether this process may write files as large as packed weights are.

    XNNPACK ends the process where it may not, be the file on a disk or in memory.
    """
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return most == resource.RLIM_INFINITY or most >= _most_packed_bytes(model)


def _most_packed_bytes(model: Source) -> int:
    if isinstance(model, GraphFile):
        size = model.size + sum([each.data.size for each in model.apart])
    else:
        size = len(model)
    return _PACKED_SHARE * size + _ROOM_BYTES


class Engine(ABC):
    """Compiles TFLite files asyncnn wrote or checked; others may end the process."""

    name: str
    speeds: Speeds = USUAL
    """How fast it was measured to be."""
    computes_float16: bool = False
    """Whether it can be asked to compute float32 as float16."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._is_forked = False
        disown_in_children(self)

    def disown(self) -> None:
        """Refuse all use: this is a forked child of the process that loaded it."""
        self._is_forked = True

    def compile(
        self,
        model: Source,
        *,
        threads: int = 1,
        weights: PackedWeights | None = None,
        float16: bool = False,
    ) -> CompiledGraph:
        """Return the graph of a TFLite flatbuffer, which is kept as long as needed.

        An open dimension counts as 1. ``weights`` keeps packed weights of this very
        model, of what lies apart too. With ``float16``, float32 is computed as that
        where the CPU can. Engines that have no use for either ignore it.

        :raises GeneralFailureError: if it cannot be compiled.
        :raises ResourceExhaustedError: if memory or descriptors have run out.
        :raises ForkedError: in a child of the process that loaded the engine.
        """
        if self._is_forked:
            raise forked_error("an engine")
        with for_want_of_room(model):
            if float16 and self.computes_float16:
                try:
                    return self._compile(model, threads, weights, True)
                except GeneralFailureError as error:  # the CPU has no such kernels
                    logger.info("%s computes no float16: %s", self.name, error)
            return self._compile(model, threads, weights, False)

    @abstractmethod
    def _compile(
        self, model: Source, threads: int, weights: PackedWeights | None, float16: bool
    ) -> CompiledGraph:
        """Do it, where there is room."""


class ModelMemory:
    """A file where LiteRT reads it, as long as this lives.

    ``size`` reaches from its ``address`` to the end of what lies apart.
    """

    def __init__(self, model: Source) -> None:
        self._mapped_bytes = 0
        self._kept: object = model
        if isinstance(model, GraphFile) and model.room is not None:
            self.address, self.size = model.room.end - len(model.content), model.size
            ctypes.memmove(self.address, model.content, len(model.content))
            return
        if isinstance(model, GraphFile) and model.apart and self._map(model):
            return
        if isinstance(model, GraphFile) and model.apart:
            model = model.joined()
        if isinstance(model, GraphFile):
            array = aligned_bytes(model.size + TAIL_BYTES)[: model.size]
            for source, size, at in model.parts():
                ctypes.memmove(address_of(array) + at, source, size)
        else:
            array = np.frombuffer(model, np.uint8)
            if address_of(array) % ALIGNMENT:
                array = aligned_bytes(array.nbytes)
                array[:] = np.frombuffer(model, np.uint8)
        self._kept = array
        self.address, self.size = address_of(array), array.nbytes

    def _map(self, file: GraphFile) -> bool:
        """Place a file below what lies apart; False if the system does not."""
        # Kernels read a little beyond what is the last of a file behind its head.
        needed = -(-(file.size + TAIL_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
        addresses = [address_of(each.data) for each in file.apart]
        readable, private = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE
        address = _c.mmap(
            _next_place(needed), needed, readable, private | mmap.MAP_ANONYMOUS, -1, 0
        )
        if address in (None, _MAP_FAILED):
            return False
        self.address, self._mapped_bytes = address, needed
        if address + needed > min(addresses):
            self._unmap()
            return False
        for source, size, place in file.parts():
            ctypes.memmove(address + place, source, size)
        ends = []
        for each, at in zip(file.apart, addresses, strict=True):
            offset = _OFFSET.pack(at - address)
            ctypes.memmove(address + each.position, offset, len(offset))
            ends.append(at + each.data.size)
        self.size = max(ends) - address
        return True

    def _unmap(self) -> None:
        _c.munmap(self.address, self._mapped_bytes)
        self._mapped_bytes = 0

    def __del__(self) -> None:
        # As the process ends, graphs that were stopped are not freed, and refer to it.
        if self._mapped_bytes and not sys.is_finalizing():
            self._unmap()


_c = ctypes.CDLL(None)
_c.mmap.restype = ctypes.c_void_p
_c.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
)
_c.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)

_places = itertools.cycle(range(_FIRST, _END, _STRIDE))


def _next_place(size: int) -> int:
    """Return where to ask for memory; the system may give another place."""
    place = next(_places)
    for _ in range(0, size - _STRIDE, _STRIDE):
        next(_places)
    return place
