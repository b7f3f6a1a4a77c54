"""ONNX Runtime in this process: found, tried, and loaded once."""

import os
import threading
from pathlib import Path

from asyncnn.devices.engine_verdicts import Tried
from asyncnn.devices.onnxruntime import KNOWN_HINT, PACKAGE, found
from asyncnn.devices.onnxruntime.runtime_api import OnnxRuntimeLibrary, RuntimeApiError
from asyncnn.devices.onnxruntime.session_graphs import OnnxRegions
from asyncnn.hal.errors import EngineUnavailableError, failure_of, shortage_of

TRIED = Tried(
    "onnxruntime", "ONNX Runtime", "asyncnn.devices.onnxruntime.runtime_trial", 2
)

_lock = threading.Lock()
_loaded: "list[LoadedOnnxRuntime]" = []


class LoadedOnnxRuntime:
    """The library of this process: its ``version``, and the kernels of regions."""

    def __init__(self, path: Path, version: str) -> None:
        self.version = version
        self.regions = OnnxRegions(OnnxRuntimeLibrary(path))


def load_onnx_runtime() -> LoadedOnnxRuntime:
    """Return ONNX Runtime.

    The first time on a machine it is tried in a process of its own, which takes about a
    second. From any thread, but none that runs an event loop.

    :raises EngineUnavailableError: if it is not there, or does not work here.
    :raises ResourceExhaustedError: if it cannot be loaded for want of something.
    """
    with _lock:
        if not _loaded:
            _loaded.append(_load())
        return _loaded[0]


def _load() -> LoadedOnnxRuntime:
    path, version = found()
    try:
        reason = TRIED.reason_against(path, version)
        if reason:
            raise RuntimeApiError(reason)
        return LoadedOnnxRuntime(path, version)
    except (RuntimeApiError, OSError) as error:
        if shortage_of(error) is not None:
            raise failure_of(error, f"{PACKAGE} cannot be loaded") from error
        raise EngineUnavailableError(
            f"{PACKAGE} {version} does not work here: {error}", hint=KNOWN_HINT
        ) from error


def _renew() -> None:
    global _lock
    _lock = threading.Lock()
    _loaded.clear()


os.register_at_fork(after_in_child=_renew)
