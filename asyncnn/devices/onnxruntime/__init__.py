"""Regions on ONNX Runtime, an inference engine: graphs of ONNX as they are in a file.

A region is an operation REGION of the extension ``org.asyncnn.onnx`` (see
`asyncnn.extensions.regions`); nothing is translated. The files, from below:

`providers.py`
    what it computes on instead of the CPU
`runtime_api.py`
    ONNX Runtime's C API
`region_checks.py`
    what a graph may have before ONNX Runtime sees it
`graph_rewriting.py`
    such graphs changed: large weights taken out, outputs that were inputs copied
`sessions.py`
    graphs that are ready to run, shared by all who run the same one
`session_graphs.py`
    regions as kernels, which are stopped but never paused
`loading.py`
    finds the library, and has it tried in a process of its own first
`runtime_trial.py`
    that test
`onnx_device.py`
    the device ``onnxruntime``, and those on other providers
"""

import importlib.util
from pathlib import Path

from asyncnn.hal.errors import EngineUnavailableError

PACKAGE = "onnxruntime"
_MESSAGES = "google.protobuf"  # which graphs are read with

_HINT = "install it with: pip install asyncnn[onnxruntime]"
KNOWN_HINT = (
    "pip install asyncnn[onnxruntime] installs a version that is known to work; the "
    "device reference needs none"
)


def found() -> tuple[Path, str]:
    """Return the shared library and its version, which is a part of its name.

    It is looked for without importing anything of it, as is what else is needed.

    :raises EngineUnavailableError: if it is not there.
    """
    origins: list[str] = []
    for package in (PACKAGE, _MESSAGES):
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            spec = None
        if spec is None or spec.origin is None:
            raise EngineUnavailableError(f"{package} is not installed", hint=_HINT)
        origins.append(spec.origin)
    name = "libonnxruntime.so."
    found = sorted((Path(origins[0]).parent / "capi").glob(f"{name}[0-9]*"))
    if len(found) != 1:
        raise EngineUnavailableError(
            f"{PACKAGE} is installed without its shared library", hint=KNOWN_HINT
        )
    return found[0], found[0].name.removeprefix(name)


def found_providers() -> tuple[str, ...]:
    """Return the execution providers whose libraries are installed, by their names.

    They may lack what they need themselves. What is built into ONNX Runtime's own
    library only that can say.
    """
    try:
        folder = found()[0].parent
    except EngineUnavailableError:
        return ()
    prefix = "libonnxruntime_providers_"
    names = {
        path.stem.removeprefix(prefix).replace("_", "")
        for path in folder.glob(f"{prefix}*.so")
    }
    return tuple(sorted(names - {"shared"}))
