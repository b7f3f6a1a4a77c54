"""What concerns the whole process: settings of open devices, BLAS, and free memory.

The threads of a BLAS wait for one another, spinning: on small matrices, and where
others compete for the CPUs, they take many times as long as one thread. OpenBLAS as
NumPy has it knows one number of threads for all who call it. So that is changed while
devices compute, and what it was comes back when none does. `threadpoolctl` finds the
libraries; it lets one thread alone set their numbers, and takes ten times as long.
"""

import ctypes
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from itertools import product
from operator import methodcaller
from typing import Any, NamedTuple, cast

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from asyncnn.devices.device_settings import DeviceSettings
from asyncnn.interpreter_hooks import freezing_allowed
from asyncnn.offload import switching_at_least_every


def apply_settings(settings: DeviceSettings) -> Callable[[], None]:
    """Apply what ``settings`` ask for; return what undoes it.

    Of several devices, the least interval counts.
    """
    if settings.blas_threads:
        _blas.look()
    with ExitStack() as held:
        if settings.freezes_large_models:
            held.enter_context(freezing_allowed())
        if settings.switch_interval_s:
            held.enter_context(switching_at_least_every(settings.switch_interval_s))
        return held.pop_all().close


_NO_LIMIT = 2**31 - 1


class BlasLibrary(NamedTuple):
    """A BLAS of this process: what gets and sets the number of its threads."""

    get: Callable[[], int]
    set: Callable[[int], object]


class BlasThreads:
    """The threads of libraries while devices compute: the least number of all.

    ``find`` finds the libraries.
    """

    def __init__(self, find: Callable[[], tuple[BlasLibrary, ...]]) -> None:
        self._find = find
        self._libraries: tuple[BlasLibrary, ...] = ()
        self._lock = threading.Lock()
        self._held: list[int] = []
        self._least = _NO_LIMIT
        self._original: list[int] = []

    def look(self) -> None:
        """Look for the libraries, if none is known: it takes a while, and descriptors.

        Where there are none left, they stay unlimited.
        """
        with suppress(OSError), self._lock:
            self._libraries = self._libraries or self._find()

    def begin(self, most: int) -> None:
        """Have ``most`` threads at most, until `end` is called as often."""
        with self._lock:
            self._held.append(most)
            if most < self._least:
                self._change(most)

    def end(self, most: int) -> None:
        """Have no such limit; the last one puts back what there was.

        What others have changed meanwhile stays as they want it.
        """
        with self._lock:
            held = self._held
            if most in held:  # not what a forked child has inherited
                held.remove(most)
            if not held:
                self._change(_NO_LIMIT)
            elif most == self._least and most not in held:
                self._change(min(held))

    def renew(self) -> None:
        """Start over in a forked child: a thread of the parent may hold the lock.

        To put anything back would start the threads of the library here.
        """
        self._lock = threading.Lock()
        self._held.clear()

    def _change(self, least: int) -> None:
        """Set another limit; the lock is held."""
        before, self._least = self._least, least
        if before == _NO_LIMIT:
            self._original = list(map(methodcaller("get"), self._libraries))
        for (get, set_), original in zip(self._libraries, self._original, strict=False):
            now = get()
            wanted = least if least < original else original
            if now != wanted and (before == _NO_LIMIT or now == min(before, original)):
                set_(wanted)


def _blas_libraries() -> tuple[BlasLibrary, ...]:
    """Return those that are loaded: NumPy has loaded its own by now."""
    found = ThreadpoolController().select(user_api="blas").lib_controllers
    return tuple(map(_library, found))


def _library(found: Any) -> BlasLibrary:
    if found.internal_api != "openblas":
        return BlasLibrary(found.get_num_threads, found.set_num_threads)
    # Called without letting go of the interpreter, for which a lane might wait then.
    library = ctypes.PyDLL(found.filepath, handle=found.dynlib._handle)
    for prefix, suffix in product(("", "scipy_"), ("", "64_", "_64")):
        with suppress(AttributeError):
            return BlasLibrary(
                getattr(library, f"{prefix}openblas_get_num_threads{suffix}"),
                getattr(library, f"{prefix}openblas_set_num_threads{suffix}"),
            )
    return BlasLibrary(found.get_num_threads, found.set_num_threads)


_blas = BlasThreads(_blas_libraries)
os.register_at_fork(after_in_child=_blas.renew)


class _Limit(NamedTuple):
    """A block in which BLAS has so many threads; any number of threads may be in it."""

    most: int

    def __enter__(self) -> None:
        _blas.begin(self.most)

    def __exit__(self, *_: object) -> None:
        _blas.end(self.most)


NOTHING: AbstractContextManager[object] = nullcontext()
"""A block in which nothing is limited."""


def blas_threads_limited(most: int) -> AbstractContextManager[object]:
    """Return a block in which BLAS has ``most`` threads; 0 is for no limit.

    Any number of threads may be in it at a time. The least limit of all that are in
    force counts.
    """
    return _Limit(most) if most else NOTHING


def return_free_memory() -> None:
    """Return what the allocator holds free: large blocks of the heap, not only its top.

    Takes some milliseconds per GiB of heap.
    """
    if _malloc_trim is not None:
        _malloc_trim(0)


def bound_heaps() -> None:
    """Have all threads of this process allocate from `_HEAPS` heaps of the C library.

    Each thread would have its own, up to eight for each processor, which keeps what is
    free in it. What the environment says of that stands. Call it before threads
    allocate, in a process that is a driver's alone.
    """
    if _mallopt is not None and not _HEAPS_ARE_CHOSEN & os.environ.keys():
        _mallopt(_M_ARENA_MAX, _HEAPS)


def _of_c_library(name: str, *arguments: Any) -> Callable[..., int] | None:
    """Return a function of the C library's allocator, which not every one has."""
    try:
        function = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError):
        return None
    function.argtypes, function.restype = arguments, ctypes.c_int
    return cast("Callable[..., int]", function)


_malloc_trim = _of_c_library("malloc_trim", ctypes.c_size_t)
_mallopt = _of_c_library("mallopt", ctypes.c_int, ctypes.c_int)
_HEAPS, _M_ARENA_MAX = 2, -8
_HEAPS_ARE_CHOSEN = {"MALLOC_ARENA_MAX", "GLIBC_TUNABLES"}
