"""Settings of the whole process that hold while devices are open that ask for them."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from asyncnn.devices.device_settings import DeviceSettings
from asyncnn.interpreter_hooks import freezing_allowed
from asyncnn.offload import switching_at_least_every


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


class _BlasThreads:
    """Sets the number of BLAS's threads to the least that is held."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[int] = []
        self._limits: threadpool_limits | None = None

    @contextmanager
    def held(self, threads: int) -> Iterator[None]:
        with self._lock:
            self._held.append(threads)
            self._apply()
        try:
            yield
        finally:
            with self._lock:
                if threads in self._held:  # not what a forked child has inherited
                    self._held.remove(threads)
                    self._apply()

    def renew(self) -> None:
        """Start over in a forked child: a thread of the parent may hold the lock."""
        self._lock = threading.Lock()
        self._held.clear()
        self._limits = None

    def _apply(self) -> None:
        # Undone first: the next limits record what was there before as the original.
        if self._limits is not None:
            self._limits.restore_original_limits()
            self._limits = None
        if self._held:
            least = min(self._held)
            self._limits = threadpool_limits(limits=least, user_api="blas")


_threads = _BlasThreads()
os.register_at_fork(after_in_child=_threads.renew)
