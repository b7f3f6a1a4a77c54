"""Where LiteRT finds the inputs and outputs of a graph: tensor buffers over arrays.

One over the memory of an array is made as its address comes for the first time. Memory
that LiteRT does not take, or after which its kernels might read beyond a mapping, is
copied from and to memory of the graph's own.
"""

import ctypes
import weakref
from collections.abc import Callable, Sequence
from ctypes import byref
from functools import partial
from itertools import chain
from typing import Any

from asyncnn.devices.litert.array_memory import address_of, has_tail
from asyncnn.devices.litert.c_api import BUFFER_ALIGNMENT, Library, TensorType
from asyncnn.devices.litert.compiled_graph import Array, Tensor
from asyncnn.engine.workspace import aligned_bytes
from asyncnn.memory.pages import TAIL_BYTES


class TensorSlot:
    """One input or output of a graph, and the memory that stands in for arrays."""

    def __init__(self, type_: TensorType, tensor: Tensor) -> None:
        self.type = type_
        self.tensor = tensor
        self.dtype, self.nbytes = tensor.dtype, tensor.nbytes
        self._standing_in: tuple[Array, int] | None = None

    def stand_in(self) -> tuple[Array, int]:
        """Return memory of the graph's own for arrays that LiteRT does not take.

        Comes with its address.
        """
        if self._standing_in is None:
            raw = aligned_bytes(self.nbytes + TAIL_BYTES)[: self.nbytes]
            memory = raw.view(self.dtype)
            self._standing_in = memory, address_of(memory)
        return self._standing_in


class TensorBuffers:
    """Tensor buffers over a set of addresses, which are freed with the last reference.

    Buffers over memory that is gone are harmless as long as they are not run.
    """

    def __init__(self, library: Library, graph: int, sides: Sequence[Any]) -> None:
        self._library = library
        self._made: list[int] = []
        arguments: list[Any] = [graph, 0]
        for slots, addresses in sides:
            buffers = (ctypes.c_void_p * len(slots))()
            for number, (slot, address) in enumerate(
                zip(slots, addresses, strict=True)
            ):
                buffers[number] = self._create(slot, address)
            arguments += [len(slots), ctypes.cast(buffers, ctypes.c_void_p)]
        self.run: Callable[[], int] = partial(library.run, *arguments)

    def _create(self, slot: TensorSlot, address: int) -> int:
        made = self._library.create(
            "CreateTensorBufferFromHostMemory",
            *(byref(slot.type), address, slot.tensor.nbytes, None),
        )
        self._made.append(made)
        return made

    def __del__(self) -> None:
        for made in self._made:
            self._library.destroy("TensorBuffer", made)


class KnownArrays:
    """The buffers of arrays that a graph has run on in place. Keeps no array."""

    __slots__ = ("_arrays", "_buffers", "run")

    def __init__(
        self, inputs: Sequence[Array], outputs: Sequence[Array], buffers: TensorBuffers
    ) -> None:
        self._arrays = tuple([weakref.ref(each) for each in (*inputs, *outputs)])
        self._buffers = buffers  # what runs on them does not keep them
        self.run = buffers.run

    @property
    def are_alive(self) -> bool:
        """Whether all of the arrays exist."""
        return all(reference() is not None for reference in self._arrays)

    def match(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        """Tell whether these are the arrays, rather than others in their place."""
        for reference, array in zip(self._arrays, chain(inputs, outputs), strict=True):
            if reference() is not array:
                return False
        return True


def place(
    arrays: Sequence[Array],
    slots: Sequence[TensorSlot],
    addresses: list[int],
    copied: list[tuple[Array, Array]],
    *,
    written: bool = False,
) -> bool:
    """Add where LiteRT finds each array to ``addresses``; False if one does not fit.

    What it is not given in place is added to ``copied``, with the memory that stands in
    for it. Tells of arrays what `CompiledGraph._check` does, in a fraction of its time.
    """
    if len(arrays) != len(slots):
        return False
    for array, slot in zip(arrays, slots, strict=True):
        if array.nbytes != slot.nbytes or array.dtype != slot.dtype:
            return False
        flags = array.flags
        if not flags.c_contiguous or (written and not flags.writeable):
            return False
        address = address_of(array)
        if address % BUFFER_ALIGNMENT or not has_tail(array, address):
            memory, address = slot.stand_in()
            copied.append((array, memory))
        addresses.append(address)
    return True
