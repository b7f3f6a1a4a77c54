"""The engine that runs graphs in this process: which one works, found out once.

The C API comes first, if its self-test has passed on this machine; the public
interpreter is what is left otherwise. Nothing of ``ai_edge_litert`` is imported before
an engine is asked for.
"""

import importlib.util
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from asyncnn.devices.compiled_graph import (
    Array,
    CApiUnavailableError,
    CompiledGraph,
    CompiledTensor,
)
from asyncnn.devices.litert.c_api_engine import CApiEngine
from asyncnn.devices.litert.graph_file import Engine
from asyncnn.devices.litert.public_interpreter import InterpreterEngine
from asyncnn.devices.litert.self_test import reason_against, speeds_of
from asyncnn.hal.errors import EngineUnavailableError, failure_of, shortage_of

__all__ = ("Array", "CompiledGraph", "CompiledTensor", "Engine", "load_engine")

logger = logging.getLogger(__name__)

Backend: TypeAlias = Literal["c_api", "interpreter"]

PACKAGE, DISTRIBUTION = "ai_edge_litert", "ai-edge-litert"
_LIBRARY = "libLiteRt.so"
_HINT = "install it with: pip install asyncnn[accelerated]"
_KNOWN_HINT = (
    "pip install asyncnn[accelerated] installs a version that is known to work; the "
    "device reference needs none"
)

_lock = threading.Lock()
_engines: dict[Backend | None, Engine] = {}


def load_engine(backend: Backend | None = None) -> Engine:
    """Return the engine of this process, or the one of a certain ``backend``.

    The first time on a machine the C API is tried in a process of its own, which takes
    about a second. From any thread, but none that runs an event loop.

    :raises EngineUnavailableError: if there is none.
    :raises ResourceExhaustedError: if it cannot be loaded for want of something.
    """
    with _lock:
        if backend not in _engines:
            _engines[backend] = _load(backend)
        return _engines[backend]


def _load(backend: Backend | None) -> Engine:
    folder, version = _found()
    against = []
    for name in get_args(Backend) if backend is None else (backend,):
        try:
            engine = _engines.get(name) or _LOADING[name](folder, version)
        except (CApiUnavailableError, ImportError, OSError) as error:
            if shortage_of(error) is not None:
                raise failure_of(error, f"{DISTRIBUTION} cannot be loaded") from error
            against.append(f"{name}: {error}")
            logger.info("LiteRT's %s is not used: %s", name, error)
            continue
        return _engines.setdefault(name, engine)
    reasons = "; ".join(against)
    raise EngineUnavailableError(
        f"{DISTRIBUTION} {version} does not work here: {reasons}", hint=_KNOWN_HINT
    )


def _found() -> tuple[Path, str]:
    """Return the package's folder and version."""
    try:
        spec = importlib.util.find_spec(PACKAGE)
        if spec is not None and spec.origin is not None:
            folder = Path(spec.origin).parent
            return folder, _version(folder)
    except (ImportError, ValueError):
        pass
    raise EngineUnavailableError(f"{DISTRIBUTION} is not installed", hint=_HINT)


def _version(folder: Path) -> str:
    """Return the version of the package in ``folder``.

    Its metadata lie beside it, in a folder named after it: to import what else reads
    them takes longer than to load the engine.
    """
    named = [path.stem for path in folder.parent.glob(f"{PACKAGE}-*.dist-info")]
    if len(named) == 1:
        return named[0].removeprefix(f"{PACKAGE}-")
    from importlib import metadata

    return metadata.version(DISTRIBUTION)


def _c_api(folder: Path, version: str) -> Engine:
    library = folder / _LIBRARY
    reason = reason_against(library, version)
    if reason:
        raise CApiUnavailableError(reason)
    engine = CApiEngine(library, version)
    engine.speeds = speeds_of(library, version)
    return engine


def _interpreter(folder: Path, version: str) -> Engine:
    return InterpreterEngine(version)


_LOADING: dict[Backend, Callable[[Path, str], Engine]] = {
    "c_api": _c_api,
    "interpreter": _interpreter,
}


def _renew() -> None:
    global _lock
    _lock = threading.Lock()
    _engines.clear()


os.register_at_fork(after_in_child=_renew)
