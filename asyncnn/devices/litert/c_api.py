"""LiteRT's C API, as the shared library of `ai_edge_litert` exports it, by ctypes.

Every function that is used is declared with its types, and an object is named after
the C type that it is a pointer to. A status other than 0 becomes an exception that says
which function failed. ctypes lets go of the interpreter lock while a function runs.

Source: LiteRT 2.3, ``litert/c/*.h``.
"""

import ctypes
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ctypes import POINTER, Structure, c_bool, c_char_p, c_int, c_int64, c_size_t
from ctypes import c_void_p as handle
from pathlib import Path
from typing import Any, Final

from asyncnn.devices.compiled_graph import CApiUnavailableError, EngineLibrary
from asyncnn.hal.errors import AsyncnnError, GeneralFailureError, failure_of
from asyncnn.interpreter_hooks import disown_in_children

MOST_DIMENSIONS = 8

_CPU = 1
_OPTION_ACCELERATORS, _OPTION_SEVERITY = 24, 25
_INTEGER = 2
_SILENT = 4
_ERRORS_IN_BUFFER = 2

_FIRST_DESCRIPTORS = 2
"""XNNPACK has one open at a time; another thread may take one meanwhile."""

_NO_MEMORY = 2
_STATUSES = {
    1: "invalid argument",
    _NO_MEMORY: "no memory",
    3: "run-time failure",
    5: "unsupported",
    6: "not found",
    8: "wrong version",
    100: "cancelled",
    500: "file error",
    501: "invalid flatbuffer",
    504: "compilation failed",
}


class _Any(Structure):
    _fields_ = (("type", c_int), ("value", c_int64))


class _EnvironmentOption(Structure):
    _fields_ = (("tag", c_int), ("value", _Any))


class TensorType(Structure):
    """LiteRtRankedTensorType: element type, rank (lower 7 bits), dimensions, strides.

    A dimension below 0 is open.
    """

    _fields_ = (
        ("element_type", c_int),
        ("rank_and_flags", ctypes.c_uint),
        ("dimensions", ctypes.c_int32 * MOST_DIMENSIONS),
        ("strides", ctypes.c_uint32 * MOST_DIMENSIONS),
    )

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return int(self.rank_and_flags) & 0x7F


class TensorLayout(Structure):
    """LiteRtLayout: the last three fields of a `TensorType`."""

    _fields_ = TensorType._fields_[1:]

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return int(self.rank_and_flags) & 0x7F


_OUT = POINTER(handle)
_INDEX = c_size_t

_CHECKED: dict[str, tuple[Any, ...]] = {
    "CreateEnvironment": (c_int, POINTER(_EnvironmentOption), _OUT),
    "CreateModelFromBuffer": (handle, handle, c_size_t, _OUT),
    "GetMainModelSubgraphIndex": (handle, POINTER(_INDEX)),
    "GetModelSubgraph": (handle, _INDEX, _OUT),
    "GetNumSubgraphInputs": (handle, POINTER(_INDEX)),
    "GetNumSubgraphOutputs": (handle, POINTER(_INDEX)),
    "GetSubgraphInput": (handle, _INDEX, _OUT),
    "GetSubgraphOutput": (handle, _INDEX, _OUT),
    "GetRankedTensorType": (handle, POINTER(TensorType)),
    "CreateOptions": (_OUT,),
    "SetOptionsHardwareAccelerators": (handle, c_int),
    "CreateOpaqueOptions": (c_char_p, handle, handle, _OUT),
    "AddOpaqueOptions": (handle, handle),
    "CreateCompiledModel": (handle, handle, handle, _OUT),
    "CompiledModelGetErrorMessages": (handle, _OUT),
    "CompiledModelClearErrors": (handle,),
    "SetCompiledModelCancellationFunction": (handle, handle, handle),
    "GetCompiledModelInputBufferRequirements": (handle, _INDEX, _INDEX, _OUT),
    "GetCompiledModelOutputBufferRequirements": (handle, _INDEX, _INDEX, _OUT),
    "GetTensorBufferRequirementsBufferSize": (handle, POINTER(c_size_t)),
    "GetCompiledModelOutputTensorLayouts": (
        *(handle, _INDEX, c_size_t, POINTER(TensorLayout), c_bool),
    ),
    "CreateTensorBufferFromHostMemory": (
        *(POINTER(TensorType), handle, c_size_t, handle, _OUT),
    ),
    "RunCompiledModel": (handle, _INDEX, c_size_t, handle, c_size_t, handle),
}
"""Functions that return a status, and the types of their arguments."""

_DESTROYING = (
    "DestroyModel",
    "DestroyOptions",
    "DestroyOpaqueOptions",
    "DestroyCompiledModel",
    "DestroyTensorBuffer",
)


class LiteRtLibrary(EngineLibrary):
    """The shared library: its functions, and a process's one environment in it.

    :raises CApiUnavailableError: if it is not there, or lacks a function.
    :raises OSError: if memory or descriptors have run out.
    """

    title = "LiteRt"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path
        self._c = ctypes.CDLL(None)
        self._functions = {
            name: self._declare(name, c_int, types) for name, types in _CHECKED.items()
        }
        self._destroying = {
            name: self._declare(name, None, (handle,)) for name in _DESTROYING
        }
        self.run: Final = self._functions["RunCompiledModel"]
        self.free: Final = self._of_c("free", None, handle)
        self._strdup = self._of_c("strdup", handle, c_char_p)
        # Once: a function that was cast refers to itself.
        self._freeing = ctypes.cast(self._c["free"], handle)
        self.environment = self._create_environment()
        disown_in_children(self)

    def _declare(self, name: str, result: Any, types: Sequence[Any]) -> Any:
        try:
            function = self._library[f"LiteRt{name}"]
        except AttributeError as error:
            raise CApiUnavailableError(
                f"the library has no function LiteRt{name}"
            ) from error
        function.restype, function.argtypes = result, tuple(types)
        return function

    def _of_c(self, name: str, result: Any, *types: Any) -> Any:
        function = self._c[name]
        function.restype, function.argtypes = result, types
        return function

    def destroy(self, kind: str, made: int) -> None:
        """Give an object back, unless this is a forked child: it is its parent's."""
        if not self._is_forked:
            self._destroying[f"Destroy{kind}"](made)

    def failure(self, name: str, status: int, errors: str = "") -> AsyncnnError:
        """Return the error for a status that ``LiteRt<name>`` has returned."""
        meaning = _STATUSES.get(status, "unknown")
        message = f"LiteRt{name} failed: {meaning} (status {status})"
        if errors:
            message = f"{message}: {errors}"
        if status == _NO_MEMORY:
            return failure_of(MemoryError(message))
        return GeneralFailureError(message)

    def cancellation_function(self) -> int:
        """Return the address of strlen, which is true of memory that begins with 1.

        LiteRT asks it before every node, from a thread without the interpreter lock.
        """
        address = ctypes.cast(self._c["strlen"], handle).value
        assert address is not None
        return address

    def compile(self, model: int, cpu_options: dict[str, int]) -> int:
        """Return a compiled model that runs on the CPU.

        :raises GeneralFailureError: if LiteRT cannot compile it.
        :raises OSError: if descriptors have run out.
        """
        options = self.create("CreateOptions")
        try:
            self.call("SetOptionsHardwareAccelerators", options, _CPU)
            self._add(options, b"xnnpack", cpu_options)
            reporting = {"error_reporter_mode": _ERRORS_IN_BUFFER}
            self._add(options, b"runtime_options_string", reporting)
            with first_words_discarded(str(self.path)):
                return self.create(
                    "CreateCompiledModel", self.environment, model, options
                )
        finally:
            self.destroy("Options", options)

    def errors_of(self, compiled: int) -> str:
        """Return what a compiled model has reported since it was last asked."""
        try:
            text = self.create("CompiledModelGetErrorMessages", compiled)
        except GeneralFailureError:
            return ""
        try:
            errors = ctypes.string_at(text).decode(errors="replace")
        finally:
            self.free(text)
            self.forget_errors_of(compiled)
        return " ".join(errors.split())

    def forget_errors_of(self, compiled: int) -> None:
        """Drop what a compiled model has reported."""
        self._functions["CompiledModelClearErrors"](compiled)

    def _add(self, options: int, kind: bytes, values: dict[str, int]) -> None:
        text = "".join([f"{key} = {value}\n" for key, value in values.items()])
        payload = self._strdup(text.encode())
        opaque = self.create("CreateOpaqueOptions", kind, payload, self._freeing)
        try:
            self.call("AddOpaqueOptions", options, opaque)
        except GeneralFailureError:
            self.destroy("OpaqueOptions", opaque)
            raise

    def _create_environment(self) -> int:
        options = (_EnvironmentOption * 2)()
        values = ((_OPTION_ACCELERATORS, _CPU), (_OPTION_SEVERITY, _SILENT))
        for option, (tag, value) in zip(options, values, strict=True):
            option.tag, option.value = tag, _Any(_INTEGER, value)
        try:
            return self.create("CreateEnvironment", len(options), options)
        except GeneralFailureError as error:
            raise CApiUnavailableError(str(error)) from error


_speaking = threading.Lock()
_have_spoken: set[str] = set()
_nowhere: list[int] = []


def _renew() -> None:
    global _speaking
    _speaking = threading.Lock()


os.register_at_fork(after_in_child=_renew)


def require_descriptors(count: int) -> None:
    """Check that so many descriptors can be had.

    :raises OSError: if not.
    """
    with ExitStack() as opened:
        for _ in range(count):
            fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            opened.callback(os.close, fd)


@contextmanager
def first_words_discarded(speaker: str) -> Iterator[None]:
    """Discard what C code writes to ``stderr``, unless ``speaker`` has spoken before.

    TFLite says once in each library that there is an XNNPACK delegate, at a severity
    that nothing exported can change. Only C's stream is exchanged: the descriptor, and
    what Python writes, are as ever.

    XNNPACK learns then what the CPU is, from files, and where it cannot open them it
    does not work in this process any more: so not before descriptors are left for it.

    :raises OSError: if there are none.
    """
    if speaker in _have_spoken:
        yield
        return
    c = ctypes.CDLL(None, use_errno=True)
    with _speaking:
        stream = handle.in_dll(c, "stderr")
        if not _nowhere:
            # It stays open: other threads may have the stream in hand.
            c.fopen.restype, c.fopen.argtypes = handle, (c_char_p, c_char_p)
            opened = c.fopen(b"/dev/null", b"we")
            if not opened:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
            _nowhere.append(opened)
        require_descriptors(_FIRST_DESCRIPTORS)
        usual, stream.value = stream.value, _nowhere[0]
        try:
            yield
        finally:
            stream.value = usual
        _have_spoken.add(speaker)
