"""Settings of the whole process that hold while any device is open."""

import sys
import threading
from contextlib import ExitStack

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from asyncnn.devices.settings import DeviceSettings

_lock = threading.Lock()
_holders = 0
_undo = ExitStack()


def hold(settings: DeviceSettings) -> None:
    """Apply the process-wide settings; those of the first holder stay in force."""
    global _holders
    with _lock:
        if _holders == 0:
            _apply(settings)
        _holders += 1


def release() -> None:
    """Undo what `hold` did when its last holder releases."""
    global _holders
    with _lock:
        _holders -= 1
        if _holders == 0:
            _undo.close()


def _apply(settings: DeviceSettings) -> None:
    if settings.blas_threads:
        _undo.enter_context(
            threadpool_limits(limits=settings.blas_threads, user_api="blas")
        )
    before = sys.getswitchinterval()
    if settings.switch_interval_s < before:
        sys.setswitchinterval(settings.switch_interval_s)
        _undo.callback(sys.setswitchinterval, before)
