"""Memory that an idle device gives back to the system."""

import ctypes
from collections.abc import Callable


def _find_trim() -> Callable[[int], int] | None:
    """Return the C library's ``malloc_trim``, which not every one has."""
    try:
        function = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    function.argtypes = (ctypes.c_size_t,)
    function.restype = ctypes.c_int
    return lambda pad: int(function(pad))


_malloc_trim = _find_trim()


def return_free_memory() -> None:
    """Return what the allocator holds free: large blocks of the heap, not only its top.

    Takes some milliseconds per GiB of heap.
    """
    if _malloc_trim is not None:
        _malloc_trim(0)
