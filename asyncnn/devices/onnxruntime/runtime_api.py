"""ONNX Runtime's C API, as the shared library in `onnxruntime`'s wheel has it.

The library exports one function, which returns a table of all others. A table of an
older version is a part of the newest one, so that functions are found by their numbers
in it; every one that is used is declared with its types. The Python module
``onnxruntime`` is never imported: it carries a second copy of all this.

Source: ONNX Runtime 1.32, ``onnxruntime_c_api.h``, API version 24.
"""

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from ctypes import POINTER, byref, c_bool, c_char_p, c_int, c_int64, c_size_t
from ctypes import c_void_p as handle
from pathlib import Path
from typing import Any, Final, Self

from asyncnn import hal
from asyncnn.devices.compiled_graph import CApiUnavailableError, EngineLibrary
from asyncnn.devices.onnxruntime.providers import (
    NO_PROVIDERS,
    SUFFIX,
    ExecutionProvider,
)
from asyncnn.engine.job import StopCalls
from asyncnn.hal.errors import EngineUnavailableError, in_one_line
from asyncnn.interpreter_hooks import disown_in_children

API_VERSION = 24

SILENT = 4
"""Nothing below an error that ends the process is written to stderr."""

_OUT = POINTER(handle)
_COUNT = POINTER(c_size_t)
_TEXTS = POINTER(c_char_p)
_APPEND = "SessionOptionsAppendExecutionProvider"

_CHECKED: dict[str, tuple[int, tuple[Any, ...]]] = {
    "CreateEnv": (3, (c_int, c_char_p, _OUT)),
    "DisableTelemetryEvents": (6, (handle,)),
    "CreateSessionFromArray": (8, (handle, handle, c_size_t, handle, _OUT)),
    "Run": (9, (*[handle] * 4, c_size_t, handle, c_size_t, handle)),
    "CreateSessionOptions": (10, (_OUT,)),
    "SetSessionLogSeverityLevel": (22, (handle, c_int)),
    "SetIntraOpNumThreads": (24, (handle, c_int)),
    "SetInterOpNumThreads": (25, (handle, c_int)),
    "SessionGetInputCount": (30, (handle, _COUNT)),
    "SessionGetOutputCount": (31, (handle, _COUNT)),
    "SessionGetInputTypeInfo": (33, (handle, c_size_t, _OUT)),
    "SessionGetOutputTypeInfo": (34, (handle, c_size_t, _OUT)),
    "SessionGetInputName": (36, (handle, c_size_t, handle, _OUT)),
    "SessionGetOutputName": (37, (handle, c_size_t, handle, _OUT)),
    "CreateRunOptions": (39, (_OUT,)),
    "RunOptionsSetRunLogSeverityLevel": (41, (handle, c_int)),
    "RunOptionsSetTerminate": (46, (handle,)),
    "RunOptionsUnsetTerminate": (47, (handle,)),
    "CreateTensorWithDataAsOrtValue": (
        49,
        (handle, handle, c_size_t, POINTER(c_int64), c_size_t, c_int, _OUT),
    ),
    "GetTensorMutableData": (51, (handle, _OUT)),
    "CastTypeInfoToTensorInfo": (55, (handle, _OUT)),
    "GetTensorElementType": (60, (handle, POINTER(c_int))),
    "GetDimensionsCount": (61, (handle, _COUNT)),
    "GetDimensions": (62, (handle, POINTER(c_int64), c_size_t)),
    "GetTensorTypeAndShape": (65, (handle, _OUT)),
    "CreateCpuMemoryInfo": (69, (c_int, c_int, _OUT)),
    "AllocatorFree": (76, (handle, handle)),
    "GetAllocatorWithDefaultOptions": (78, (_OUT,)),
    "GetAvailableProviders": (125, (POINTER(_TEXTS), POINTER(c_int))),
    "ReleaseAvailableProviders": (126, (_TEXTS, c_int)),
    "AddSessionConfigEntry": (130, (handle, c_char_p, c_char_p)),
    "AddInitializer": (150, (handle, c_char_p, handle)),
    "AddExternalInitializers": (210, (handle, handle, handle, c_size_t)),
    _APPEND: (216, (handle, c_char_p, handle, handle, c_size_t)),
}
"""Functions that return a status: their places in the table and argument types."""

_RELEASING = {
    "Status": 93,
    "Session": 95,
    "Value": 96,
    "RunOptions": 97,
    "TypeInfo": 98,
    "TensorTypeAndShapeInfo": 99,
    "SessionOptions": 100,
}

_OF_OWN_OPTIONS = {
    "tensorrt": ("TensorRT", "_V2", 170),
    "cuda": ("CUDA", "_V2", 204),
    "cann": ("CANN", "", 220),
    "dnnl": ("Dnnl", "", 239),
}
"""Providers with functions of their own, and the first place of these."""

for _own, _version, _place in _OF_OWN_OPTIONS.values():
    _CHECKED |= {
        f"{_APPEND}_{_own}{_version}": (_place, (handle, handle)),
        f"Create{_own}ProviderOptions": (_place + 1, (_OUT,)),
        f"Update{_own}ProviderOptions": (_place + 2, (*[handle] * 3, c_size_t)),
    }
    _RELEASING[f"{_own}ProviderOptions"] = _place + 4

_MESSAGE = 2
_HAS_SHAPE = 390

_SHORTAGES = ("bad_alloc", "Failed to allocate", "out of memory")
"""What its words have where memory has run out; no code says it."""


_NO_TELEMETRY = "ORT_DISABLE_TELEMETRY"


@contextmanager
def _without_telemetry() -> Iterator[None]:
    """Have ONNX Runtime send nothing, of this process and ever.

    It looks at the variable once, as the environment is made: afterwards it has sent
    that by then, kept a number for the machine, and has threads for more.
    """
    before = os.environ.get(_NO_TELEMETRY)
    os.environ[_NO_TELEMETRY] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_NO_TELEMETRY]
        else:
            os.environ[_NO_TELEMETRY] = before


class OnnxRuntimeLibrary(EngineLibrary):
    """The shared library: its functions, and a process's one environment in it.

    :raises CApiUnavailableError: if it is not there, or has no table of `API_VERSION`.
    :raises OSError: if memory or descriptors have run out.
    """

    title = "ONNX Runtime's "

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            base = self._library.OrtGetApiBase
        except AttributeError as error:
            raise CApiUnavailableError(f"{path} is not ONNX Runtime") from error
        base.restype, base.argtypes = POINTER(handle), ()
        get_api = ctypes.CFUNCTYPE(POINTER(handle), ctypes.c_uint32)(base()[0])
        table = get_api(API_VERSION)
        if not table:
            raise CApiUnavailableError(
                f"{path} serves no version {API_VERSION} of its API"
            )
        self._addresses = {
            name: table[place] or 0 for name, (place, _) in _CHECKED.items()
        }
        self._functions = {
            name: ctypes.CFUNCTYPE(handle, *types)(self._addresses[name])
            for name, (_, types) in _CHECKED.items()
        }
        self._releasing = {
            kind: ctypes.CFUNCTYPE(None, handle)(table[place])
            for kind, place in _RELEASING.items()
        }
        self._message = ctypes.CFUNCTYPE(c_char_p, handle)(table[_MESSAGE])
        self.has_shape: Final = ctypes.CFUNCTYPE(c_bool, handle)(table[_HAS_SHAPE])
        self.provider: ExecutionProvider | None = None
        try:
            with _without_telemetry():
                self.environment: Final = self.create("CreateEnv", SILENT, b"asyncnn")
            self.call("DisableTelemetryEvents", self.environment)
            self.memory: Final = self.create("CreateCpuMemoryInfo", 0, 0)
            self._allocator = self.create("GetAllocatorWithDefaultOptions")
        except hal.GeneralFailureError as error:
            raise CApiUnavailableError(str(error)) from error
        disown_in_children(self)

    def address(self, name: str) -> int:
        """Return where a function is, for what calls it without Python."""
        return self._addresses[name]

    def release_address(self, kind: str) -> int:
        """Return where the function is that gives objects of a kind back."""
        return ctypes.cast(self._releasing[kind], ctypes.c_void_p).value or 0

    def text(self, name: str, *arguments: Any) -> bytes:
        """Call a function that returns a name by an argument, and return it.

        :raises AsyncnnError: if it fails.
        """
        made = self.create(name, *arguments, self._allocator)
        try:
            return ctypes.string_at(made)
        finally:
            self.call("AllocatorFree", self._allocator, made)

    def tensor(
        self, address: int, nbytes: int, shape: Sequence[int], element_type: int
    ) -> int:
        """Return a tensor over memory, to be released.

        :raises AsyncnnError: if it is none.
        """
        lengths = (c_int64 * len(shape))(*shape)
        place = self.memory, address, nbytes, lengths, len(shape), element_type
        return self.create("CreateTensorWithDataAsOrtValue", *place)

    def release(self, kind: str, made: int) -> None:
        """Give an object back, unless this is a forked child: it is its parent's."""
        if not self._is_forked:
            self._releasing[kind](made)

    def failure(self, name: str, status: int) -> hal.AsyncnnError:
        """Return the error for a status that a function has returned, and release it.

        A status that is released twice ends the process.
        """
        reason = in_one_line(" ".join(self.message(status).split()))
        self.release("Status", status)
        message = f"ONNX Runtime's {name} failed: {reason}"
        if any(words in reason for words in _SHORTAGES):
            return hal.failure_of(MemoryError(message))
        return hal.GeneralFailureError(message)

    def message(self, status: int) -> str:
        """Return what a status says."""
        text: bytes = self._message(status)
        return text.decode(errors="replace")

    def providers(self) -> dict[str, str]:
        """Return ONNX Runtime's names of the execution providers that it has, by ours.

        :raises AsyncnnError: if they cannot be asked for.
        """
        names, count = _TEXTS(), c_int()
        self.call("GetAvailableProviders", byref(names), byref(count))
        try:
            found = [name.decode() for name in names[: count.value] if name]
        finally:
            self.call("ReleaseAvailableProviders", names, count)
        ours = {name.removesuffix(SUFFIX).lower(): name for name in found}
        return {key: name for key, name in ours.items() if key not in NO_PROVIDERS}

    def name_of(self, provider: ExecutionProvider) -> str:
        """Return ONNX Runtime's name of an execution provider.

        :raises EngineUnavailableError: if it was built without that.
        """
        known = self.providers()
        if provider.name not in known:
            raise EngineUnavailableError(
                f"ONNX Runtime was built without execution provider {provider.name!r}",
                hint=f"it has: {', '.join(known) or 'only the CPU provider'}",
            )
        return known[provider.name]

    def on(self, provider: ExecutionProvider | None) -> Self:
        """Return the same library, whose sessions run on a provider where they can."""
        other = copy(self)
        other.provider = provider
        disown_in_children(other)
        return other

    def append_provider(self, options: int) -> None:
        """Have sessions of these options run on the provider, if there is one.

        :raises EngineUnavailableError: if it is not there, or lacks what it needs.
        :raises ResourceExhaustedError: if memory has run out.
        """
        provider = self.provider
        if provider is None:
            return
        name, count = self.name_of(provider), len(provider.options)
        keys = (c_char_p * count)(*[key.encode() for key, _ in provider.options])
        values = (c_char_p * count)(*[value.encode() for _, value in provider.options])
        given = keys, values, count
        try:
            if provider.name not in _OF_OWN_OPTIONS:
                self.call(_APPEND, options, name.encode(), *given)
                return
            own, version, _ = _OF_OWN_OPTIONS[provider.name]
            made = self.create(f"Create{own}ProviderOptions")
            try:
                self.call(f"Update{own}ProviderOptions", made, *given)
                self.call(f"{_APPEND}_{own}{version}", options, made)
            finally:
                self.release(f"{own}ProviderOptions", made)
        except hal.GeneralFailureError as error:
            message = f"{name} cannot be used: {error.message}"
            raise EngineUnavailableError(message) from error

    def described(self, info: int) -> tuple[int, Sequence[int] | None]:
        """Return element type and lengths of a tensor; None if it may have any rank.

        A length of -1 is open.

        :raises AsyncnnError: if it cannot be asked for.
        """
        element_type = c_int()
        self.call("GetTensorElementType", info, byref(element_type))
        if not self.has_shape(info):
            return element_type.value, None
        return element_type.value, self._lengths(info)

    def shape_of(self, value: int) -> tuple[int, ...]:
        """Return the lengths of a tensor that is there.

        :raises AsyncnnError: if it cannot be asked for.
        """
        info = self.create("GetTensorTypeAndShape", value)
        try:
            return self._lengths(info)
        finally:
            self.release("TensorTypeAndShapeInfo", info)

    def _lengths(self, info: int) -> tuple[int, ...]:
        rank = self.number("GetDimensionsCount", info)
        lengths = (c_int64 * rank)()
        self.call("GetDimensions", info, lengths, rank)
        return tuple(lengths)


class OnnxRunOptions:
    """What notifies ONNX Runtime that a run is to end; it goes with the object."""

    def __init__(self, library: OnnxRuntimeLibrary) -> None:
        self._library = library
        self.handle = library.create("CreateRunOptions")
        library.call("RunOptionsSetRunLogSeverityLevel", self.handle, SILENT)

    def stop_calls(self) -> StopCalls:
        """Return how its runs are ended early."""
        address = self._library.address
        return StopCalls(
            address("RunOptionsSetTerminate"),
            address("RunOptionsUnsetTerminate"),
            self.handle,
        )

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            self._library.release("RunOptions", self.handle)


class Values:
    """Tensors over memory, which are released with the last reference.

    Those over memory that is gone are harmless as long as they are not run.
    """

    def __init__(self, library: OnnxRuntimeLibrary, *made: int) -> None:
        self._library = library
        self.made = [*made]

    def add(
        self, address: int, nbytes: int, shape: Sequence[int], element_type: int
    ) -> None:
        """Make a tensor over the memory at ``address``."""
        self.made.append(self._library.tensor(address, nbytes, shape, element_type))

    def __del__(self) -> None:
        for made in self.made:
            self._library.release("Value", made)


def words_of(given: Sequence[Any]) -> Any:
    """Return an array of pointers; it keeps the texts that they point to."""
    if given and isinstance(given[0], bytes):
        return (c_char_p * len(given))(*given)
    return (handle * len(given))(*given)
