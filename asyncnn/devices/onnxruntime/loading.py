"""ONNX Runtime in this process: found, tried, and loaded once."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from asyncnn.devices.compiled_graph import CApiUnavailableError
from asyncnn.devices.engine_verdicts import Tried
from asyncnn.devices.onnxruntime import KNOWN_HINT, PACKAGE, found
from asyncnn.devices.onnxruntime.providers import ExecutionProvider
from asyncnn.devices.onnxruntime.runtime_api import OnnxRuntimeLibrary
from asyncnn.devices.onnxruntime.session_graphs import OnnxRegions
from asyncnn.hal.errors import EngineUnavailableError, failure_of, shortage_of

TRIED = Tried(
    "onnxruntime", "ONNX Runtime", "asyncnn.devices.onnxruntime.runtime_trial", 3
)

_PROVIDER_HINT = "the device onnxruntime computes on the CPU"

_lock = threading.Lock()
_loaded: "list[LoadedOnnxRuntime]" = []


class LoadedOnnxRuntime:
    """The library of this process: its ``version``, and the kernels of regions.

    These are by the providers that they are on; None is the CPU.
    """

    def __init__(self, library: OnnxRuntimeLibrary, path: Path, version: str) -> None:
        self.version = version
        self.path = path
        self.library = library
        self.regions: dict[ExecutionProvider | None, OnnxRegions]
        self.regions = {None: OnnxRegions(library)}


def load_onnx_runtime(provider: ExecutionProvider | None = None) -> LoadedOnnxRuntime:
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
        if provider is not None and provider not in loaded.regions:
            loaded.regions[provider] = _regions_on(loaded, provider)
        return loaded


def _load() -> LoadedOnnxRuntime:
    path, version = found()
    reason = partial(TRIED.reason_against, path, version)
    with _tried(reason, f"{PACKAGE} {version}", KNOWN_HINT):
        return LoadedOnnxRuntime(OnnxRuntimeLibrary(path), path, version)


def _regions_on(loaded: LoadedOnnxRuntime, provider: ExecutionProvider) -> OnnxRegions:
    what = f"{loaded.library.name_of(provider)} of {TRIED.what}"
    version = f"{loaded.version} {msgspec.json.encode(provider).decode()}"
    tried = TRIED._replace(what=what)
    with _tried(
        partial(tried.reason_against, loaded.path, version), what, _PROVIDER_HINT
    ):
        return OnnxRegions(loaded.library.on(provider))


@contextmanager
def _tried(reason_against: Callable[[], str], what: str, hint: str) -> Iterator[None]:
    """Enter the block once a test has been passed; say of what it, or that, fails."""
    try:
        reason = reason_against()
        if reason:
            raise CApiUnavailableError(reason)
        yield
    except (CApiUnavailableError, OSError) as error:
        if shortage_of(error) is not None:
            raise failure_of(error, f"{what} cannot be loaded") from error
        raise EngineUnavailableError(
            f"{what} does not work here: {error}", hint=hint
        ) from error


def _renew() -> None:
    global _lock
    _lock = threading.Lock()
    _loaded.clear()


os.register_at_fork(after_in_child=_renew)
