"""ONNX Runtime in this process: found, tried, and loaded once."""

import os
import threading

import msgspec

from asyncnn.devices.engine_verdicts import Tried
from asyncnn.devices.onnxruntime import KNOWN_HINT, PACKAGE, found
from asyncnn.devices.onnxruntime.providers import ExecutionProvider
from asyncnn.devices.onnxruntime.runtime_api import OnnxRuntimeLibrary, RuntimeApiError
from asyncnn.devices.onnxruntime.session_graphs import OnnxRegions
from asyncnn.hal.errors import (
    AsyncnnError,
    EngineUnavailableError,
    failure_of,
    shortage_of,
)

TRIED = Tried(
    "onnxruntime", "ONNX Runtime", "asyncnn.devices.onnxruntime.runtime_trial", 2
)

_PROVIDER_HINT = "the device onnxruntime computes on the CPU"

_lock = threading.Lock()
_loaded: "list[LoadedOnnxRuntime]" = []


class LoadedOnnxRuntime:
    """The library of this process: its ``version``, and the kernels of regions.

    These are by the providers that they are on; None is the CPU.
    """

    def __init__(self, library: OnnxRuntimeLibrary, version: str) -> None:
        self.version = version
        self.library = library
        self.regions: dict[ExecutionProvider | None, OnnxRegions] = {}


def load_onnx_runtime(
    provider: ExecutionProvider | None = None,
) -> LoadedOnnxRuntime:
    """Return ONNX Runtime with kernels of regions on the CPU, or on a provider.

    The first time on a machine each is tried in a process of its own, which takes about
    a second. From any thread, but none that runs an event loop.

    :raises EngineUnavailableError: if it is not there, or does not work here.
    :raises ResourceExhaustedError: if it cannot be loaded for want of something.
    """
    with _lock:
        if not _loaded:
            _loaded.append(_load())
        loaded = _loaded[0]
        if provider not in loaded.regions:
            if provider is not None:
                _try_provider(loaded.library, provider)
            loaded.regions[provider] = OnnxRegions(loaded.library, provider)
        return loaded


def _load() -> LoadedOnnxRuntime:
    path, version = found()
    try:
        _require_tried(TRIED)
        return LoadedOnnxRuntime(OnnxRuntimeLibrary(path), version)
    except (RuntimeApiError, OSError) as error:
        raise _unavailable(f"{PACKAGE} {version}", error, KNOWN_HINT) from error


def _try_provider(library: OnnxRuntimeLibrary, provider: ExecutionProvider) -> None:
    """Raise an error unless regions work on a provider."""
    name = library.provider_name(provider)
    tried = TRIED._replace(
        key=f"{TRIED.key}-{provider.name}",
        what=f"{name} of {TRIED.what}",
        arguments=(msgspec.json.encode(provider).decode(),),
    )
    try:
        _require_tried(tried)
    except (RuntimeApiError, OSError) as error:
        raise _unavailable(tried.what, error, _PROVIDER_HINT) from error


def _require_tried(tried: Tried) -> None:
    reason = tried.reason_against(*found())
    if reason:
        raise RuntimeApiError(reason)


def _unavailable(what: str, error: Exception, hint: str) -> AsyncnnError:
    if shortage_of(error) is not None:
        return failure_of(error, f"{what} cannot be loaded")
    return EngineUnavailableError(f"{what} does not work here: {error}", hint=hint)


def _renew() -> None:
    global _lock
    _lock = threading.Lock()
    _loaded.clear()


os.register_at_fork(after_in_child=_renew)
