"""What concerns the whole process: settings of open devices, and its free memory."""

import ctypes
import os
from collections.abc import Callable
from contextlib import ExitStack

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from asyncnn.devices.device_settings import DeviceSettings
from asyncnn.interpreter_hooks import freezing_allowed
from asyncnn.offload import LeastHeld, switching_at_least_every


def apply_settings(settings: DeviceSettings) -> Callable[[], None]:
    """Apply what ``settings`` ask for; return what undoes it.

    Of several devices, the least number of threads and the least interval count.
    """
    with ExitStack() as held:
        if settings.blas_threads:
            held.enter_context(_threads.held(settings.blas_threads))
        if settings.freezes_large_models:
            held.enter_context(freezing_allowed())
        if settings.switch_interval_s:
            held.enter_context(switching_at_least_every(settings.switch_interval_s))
        return held.pop_all().close


class _BlasThreads(LeastHeld):
    """The number of BLAS's threads."""

    _limits: threadpool_limits | None = None

    def renew(self) -> None:
        super().renew()
        self._limits = None

    def _apply(self) -> None:
        # Undone first: the next limits record what was there before as the original.
        if self._limits is not None:
            self._limits.restore_original_limits()
            self._limits = None
        if self._held:
            least = int(min(self._held))
            self._limits = threadpool_limits(limits=least, user_api="blas")


_threads = _BlasThreads()
os.register_at_fork(after_in_child=_threads.renew)


def return_free_memory() -> None:
    """Return what the allocator holds free: large blocks of the heap, not only its top.

    Takes some milliseconds per GiB of heap.
    """
    if _malloc_trim is not None:
        _malloc_trim(0)


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
