"""Where arrays lie, and whether what follows them can be read."""

import ctypes
import mmap
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from asyncnn.hal.operations.bound import Array
from asyncnn.memory.pages import TAIL_BYTES

_DATA_OFFSET = 2 * ctypes.sizeof(ctypes.c_void_p)
"""Of the pointer to the elements: NumPy's ABI has it behind CPython's object head."""

_size_at = ctypes.c_size_t.from_address


def _stored_address_of(array: Array) -> int:
    return _size_at(id(array) + _DATA_OFFSET).value


def _asked_address_of(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _pick_address_of() -> Callable[[Array], int]:
    """Return the object with the address of an array's first element.

    To read the array object takes a seventh of asking it, where objects are like that.
    """
    probe = np.empty(64, np.uint8)[5:]
    is_usual = sys.implementation.name == "cpython" and not _IS_FREE_THREADED
    if is_usual and _stored_address_of(probe) == _asked_address_of(probe):
        return _stored_address_of
    return _asked_address_of


_IS_FREE_THREADED = "t" in sys.abiflags

address_of = _pick_address_of()
"""Returns the address of the first element of an array."""


def has_tail(array: Array, address: int) -> bool:
    """Return whether `TAIL_BYTES` after an array can be read as long as it lives.

    They can if they are in its last page, or belong to what it is a view of.
    """
    end = address + array.nbytes
    if -end % mmap.PAGESIZE >= TAIL_BYTES:
        return True
    owner: Any = array.base
    while isinstance(owner, np.ndarray | memoryview):
        if isinstance(owner, memoryview):
            owner = owner.obj
            continue
        if owner.flags.c_contiguous and _end_of(owner) - end >= TAIL_BYTES:
            return True
        owner = owner.base
    if owner is None:
        return False
    try:
        return _end_of(np.frombuffer(owner, np.uint8)) - end >= TAIL_BYTES
    except (TypeError, ValueError, BufferError):  # it does not show its memory
        return False


def _end_of(array: Array) -> int:
    return address_of(array) + array.nbytes
