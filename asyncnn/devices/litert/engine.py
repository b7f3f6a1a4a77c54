"""The engine that runs graphs here: which one works, found out once in a process."""

import importlib.util
import os
import threading
from importlib import metadata
from pathlib import Path
from typing import Literal, TypeAlias

from asyncnn.devices.litert.c_api import CApiUnavailableError
from asyncnn.devices.litert.c_api_engine import CApiEngine
from asyncnn.devices.litert.compiled_graph import (
    CompiledGraph,
    Engine,
    EngineUnavailableError,
)

__all__ = ("CompiledGraph", "Engine", "EngineUnavailableError", "load_engine")

Backend: TypeAlias = Literal["c_api", "interpreter"]

_PACKAGE, _DISTRIBUTION = "ai_edge_litert", "ai-edge-litert"
_LIBRARY = "libLiteRt.so"
_HINT = "pip install asyncnn[accelerated]"

_lock = threading.Lock()
_engines: dict[Backend | None, Engine] = {}


def load_engine(backend: Backend | None = None) -> Engine:
    """Return the engine of this process, or the one of a certain backend.

    :raises EngineUnavailableError: if there is none.
    """
    with _lock:
        if backend not in _engines:
            _engines[backend] = _load(backend)
        return _engines[backend]


def _load(backend: Backend | None) -> Engine:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise EngineUnavailableError(f"{_PACKAGE} is not installed", hint=_HINT)
    try:
        return CApiEngine(
            Path(spec.origin).parent / _LIBRARY, metadata.version(_DISTRIBUTION)
        )
    except CApiUnavailableError as error:
        raise EngineUnavailableError(str(error), hint=_HINT) from error


def _renew() -> None:
    global _lock
    _lock = threading.Lock()
    _engines.clear()


os.register_at_fork(after_in_child=_renew)
