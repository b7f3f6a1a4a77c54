"""Where LiteRT finds the inputs and outputs of a graph: tensor buffers over memory."""

import ctypes
from collections.abc import Iterable
from ctypes import byref

from asyncnn.devices.litert.c_api import Library, TensorType
from asyncnn.devices.litert.compiled_graph import Tensor


class TensorBuffers:
    """Tensor buffers over a set of addresses, which are freed with the last reference.

    Buffers over memory that is gone are harmless as long as they are not run.
    """

    def __init__(
        self, library: Library, tensors: Iterable[tuple[TensorType, Tensor, int]]
    ) -> None:
        self._library = library
        self._made: list[int] = []
        for type_, tensor, address in tensors:
            made = library.create(
                "CreateTensorBufferFromHostMemory",
                *(byref(type_), address, tensor.nbytes, None),
            )
            self._made.append(made)
        self._array = (ctypes.c_void_p * len(self._made))(*self._made)

    def address_of(self, number: int) -> int:
        """Return where C finds the buffers, from this one on."""
        return ctypes.addressof(self._array) + number * ctypes.sizeof(ctypes.c_void_p)

    def __del__(self) -> None:
        for made in self._made:
            self._library.destroy("TensorBuffer", made)
