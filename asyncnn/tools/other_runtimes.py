"""Runtimes of others that read model files, as peers: LiteRT and ONNX Runtime.

Each is imported when it is first needed; its errors become `PeerRefusedError`. Do not
give them files from untrusted sources: they may end the process on damaged ones.
"""

import importlib.metadata
import os
import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Dimensions
from asyncnn.runtime.model import TensorInfo
from asyncnn.tools.bench.environment import peer_module

InputKind: TypeAlias = tuple[Dimensions, np.dtype[Any]]
"""Shape and dtype of an input; an open axis has length 0."""

_MAX_REASON = 160

_WARNINGS_OFF = 3

_ONNX_DTYPES = {
    "float": np.float32,
    "double": np.float64,
    "bool": np.bool_,
    **{
        name: getattr(np, name)
        for size in (8, 16, 32, 64)
        for name in (f"int{size}", f"uint{size}")
    },
    "float16": np.float16,
}
"""Dtypes by what ONNX Runtime calls the elements of a tensor."""


class OtherRuntime(Protocol):
    """A runtime with a model file."""

    def input_kinds(self) -> list[InputKind]:
        """Return shape and dtype of every input, in the model's order."""
        ...

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Compute the outputs of ``arrays``, as new arrays.

        :raises PeerRefusedError: if the inputs do not fit, or running it fails.
        """
        ...

    def reset(self) -> None:
        """Let state begin anew, if the model has any."""
        ...


class PeerRefusedError(AsyncnnError):
    """A peer cannot load or run a model."""


def litert_module(name: str) -> Any:
    """Import one module of LiteRT.

    :raises PeerMissingError: if LiteRT is not installed.
    """
    return peer_module(f"ai_edge_litert.{name}", "LiteRT", "asyncnn[bench]")


def litert_version() -> str:
    """Return the version of LiteRT that is installed.

    :raises PeerMissingError: if there is none.
    """
    litert_module("interpreter")
    return importlib.metadata.version("ai-edge-litert")


class LiteRt:
    """One LiteRT interpreter with one thread, or as many as it takes if None.

    ``reference`` selects its reference kernels instead of XNNPACK, and
    ``input_shapes`` are taken in place of the file's, if they have its ranks.
    With ``shows_all`` it keeps every tensor for `tensors`, which rules XNNPACK out.

    :raises PeerMissingError: if LiteRT is not installed.
    :raises PeerRefusedError: if it cannot load the model.
    """

    def __init__(
        self,
        path: Path,
        *,
        reference: bool = False,
        input_shapes: Sequence[Dimensions] = (),
        shows_all: bool = False,
        threads: int | None = 1,
    ) -> None:
        module = litert_module("interpreter")
        resolvers = module.OpResolverType
        with _refusals(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tensors that are kept need memory
            self._interpreter = module.Interpreter(
                model_path=str(path),
                num_threads=threads,
                experimental_op_resolver_type=(
                    resolvers.BUILTIN_REF if reference else resolvers.AUTO
                ),
                experimental_preserve_all_tensors=shows_all,
            )
            details = self._interpreter.get_input_details()
            for detail, shape in zip(details, input_shapes, strict=False):
                declared = tuple(map(int, detail["shape"]))
                if len(declared) == len(shape) and declared != shape:
                    self._interpreter.resize_tensor_input(detail["index"], shape)
            self._interpreter.allocate_tensors()
        self.invoke = self._interpreter.invoke
        """Runs the model once on the inputs that were set; a bare LiteRT call."""
        self._inputs = _indexes(self._interpreter.get_input_details())
        self._outputs = _indexes(self._interpreter.get_output_details())

    def input_kinds(self) -> list[InputKind]:
        """Return shape and dtype of every input, in the model's order."""
        return [
            (tuple(map(int, detail["shape"])), np.dtype(detail["dtype"]))
            for detail in self._interpreter.get_input_details()
        ]

    def set_inputs(self, arrays: Sequence[Array]) -> None:
        """Copy ``arrays`` into the model's inputs, in the model's order.

        :raises PeerRefusedError: if they do not fit.
        """
        with _refusals():
            for index, array in zip(self._inputs, arrays, strict=True):
                self._interpreter.set_tensor(index, array)

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Compute the outputs of ``arrays``, as new arrays; what an application calls.

        :raises PeerRefusedError: if the inputs do not fit, or running it fails.
        """
        self.set_inputs(arrays)
        with _refusals():
            self.invoke()
            return [self._interpreter.get_tensor(index) for index in self._outputs]

    def tensors(self, names: Container[str]) -> dict[str, Array]:
        """Return copies of the tensors of these names that the last run has computed.

        Names that several tensors have, and what has no data, are left out. LiteRT may
        end the process if it is asked for a resource, which has no elements.
        """
        details = self._interpreter.get_tensor_details()
        counts = Counter(detail["name"] for detail in details)
        found: dict[str, Array] = {}
        for detail in details:
            name = detail["name"]
            if name in names and counts[name] == 1:
                with suppress(ValueError):  # it has no data
                    array = self._interpreter.get_tensor(detail["index"])
                    found[name] = np.array(array)
        return found

    def reset(self) -> None:
        """Let state in variable tensors begin anew; resource variables keep theirs.

        :raises PeerRefusedError: if LiteRT cannot.
        """
        with _refusals():
            self._interpreter.reset_all_variables()

    def first_outputs(self) -> list[Array]:
        """Return copies of what one run gives when the model's state is zero.

        :raises PeerRefusedError: if running it fails.
        """
        with _refusals():
            self._interpreter.reset_all_variables()
            self.invoke()
            return [
                np.array(self._interpreter.get_tensor(index)) for index in self._outputs
            ]


class OnnxFile:
    """One session of ONNX Runtime, for a file or its bytes.

    It has one thread, or with None as many as it takes.
    ``constants`` are values of inputs, by name, that are the same in every run. With
    ``shows_all`` all that nodes of a file compute are outputs after its own, for
    `tensors`.

    :raises PeerMissingError: if ONNX Runtime is not installed.
    :raises PeerRefusedError: if it cannot load the model.
    """

    def __init__(
        self,
        model: Path | bytes,
        *,
        constants: Mapping[str, Any] | None = None,
        shows_all: bool = False,
        threads: int | None = 1,
    ) -> None:
        runtime = _onnx_runtime()
        settings = runtime.SessionOptions()
        if threads is not None:
            settings.intra_op_num_threads = settings.inter_op_num_threads = threads
        settings.log_severity_level = _WARNINGS_OFF
        source = model if isinstance(model, bytes) else str(model)
        if shows_all:
            source = _with_all_outputs(source)
        with _refusals():
            self.session = runtime.InferenceSession(
                source, settings, providers=["CPUExecutionProvider"]
            )
        inputs = self.session.get_inputs()
        fixed = constants or {}
        self._inputs = [each for each in inputs if each.name not in fixed]
        self.names: list[str] = [each.name for each in self._inputs]
        self._fixed = {
            each.name: np.asarray(fixed[each.name], _onnx_kind(each)[1])
            for each in inputs
            if each.name in fixed
        }
        self._results: list[Array] = []

    def input_kinds(self) -> list[InputKind]:
        """Return shape and dtype of every input, in the model's order.

        :raises PeerRefusedError: if one is not a tensor of numbers.
        """
        return [_onnx_kind(each) for each in self._inputs]

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Compute the outputs of ``arrays``, as new arrays.

        :raises PeerRefusedError: if the inputs do not fit, or running it fails.
        """
        with _refusals():
            feed = self._fixed | dict(zip(self.names, arrays, strict=True))
            self._results = self.session.run(None, feed)
            return list(self._results)

    def tensors(self, names: Container[str]) -> dict[str, Array]:
        """Return what the last run has computed of these names."""
        outputs = zip(self.session.get_outputs(), self._results, strict=True)
        return {each.name: array for each, array in outputs if each.name in names}

    def reset(self) -> None:
        """Do nothing: state of ONNX models is among their inputs and outputs."""


def _with_all_outputs(source: str | bytes) -> bytes:
    """Return a model whose outputs are all that its nodes compute, its own first.

    :raises PeerMissingError: if the package ``onnx`` is not installed.
    """
    onnx = peer_module("onnx", "the package onnx", "asyncnn[onnx]")
    with _refusals():
        # With the weights of other files, as bytes have no folder beside them.
        model = (
            onnx.load_model_from_string(source)
            if isinstance(source, bytes)
            else onnx.load(source)
        )
        known = {output.name for output in model.graph.output}
        for node in model.graph.node:
            for name in node.output:
                if name and name not in known:
                    known.add(name)
                    model.graph.output.append(onnx.ValueInfoProto(name=name))
        written: bytes = model.SerializeToString()
        return written


def _onnx_kind(value: Any) -> InputKind:
    element = value.type.removeprefix("tensor(").removesuffix(")")
    if element not in _ONNX_DTYPES:
        raise PeerRefusedError(f"input {value.name} is a {value.type}")
    shape = tuple(axis if isinstance(axis, int) else 0 for axis in value.shape)
    return shape, np.dtype(_ONNX_DTYPES[element])


def onnx_runtime_version() -> str:
    """Return the version of ONNX Runtime that is installed.

    :raises PeerMissingError: if there is none.
    """
    _onnx_runtime()
    return importlib.metadata.version("onnxruntime")


def _onnx_runtime() -> Any:
    # Its reports to its makers would run beside what is measured.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    return peer_module("onnxruntime", "ONNX Runtime", "asyncnn[bench]")


def as_peer_takes(array: Array, shape: Dimensions, dtype: np.dtype[Any]) -> Array:
    """Return an input of the model as it is in the file.

    The HAL has no int64 and no tensors of rank 0, which are int32 and of rank 1 here.
    """
    if array.ndim != len(shape):
        array = array.reshape(shape)
    return np.ascontiguousarray(array, dtype).reshape(array.shape)


def open_file(
    path: Path,
    infos: Sequence[TensorInfo],
    sample: Mapping[str, Array],
    *,
    is_litert: bool,
    reference: bool = False,
    constants: Mapping[str, Any] | None = None,
    shows_all: bool = False,
) -> LiteRt | OnnxFile:
    """Open a model file in the runtime that it is for, with the shapes of a sample.

    :raises PeerMissingError: if that is not installed.
    :raises PeerRefusedError: if it cannot load the model.
    """
    if not is_litert:
        return OnnxFile(path, constants=constants, shows_all=shows_all)
    shapes = [sample[info.name].shape for info in infos if info.name in sample]
    return LiteRt(path, reference=reference, input_shapes=shapes, shows_all=shows_all)


def taken(
    peer: OtherRuntime,
    title: str,
    infos: Sequence[TensorInfo],
    *,
    may_take_fewer: bool = False,
) -> Callable[[Mapping[str, Array]], list[Array]]:
    """Return what makes of a sample the inputs of a peer of that title.

    :raises InvalidArgumentError: if it has not as many inputs as the model.
    """
    kinds = peer.input_kinds()
    if len(kinds) > len(infos) or not (may_take_fewer or len(kinds) == len(infos)):
        raise InvalidArgumentError(
            f"{title} takes {len(kinds)} inputs, and the model {len(infos)}"
        )
    return lambda sample: [
        as_peer_takes(sample[info.name], *kind)
        for info, kind in zip(infos, kinds, strict=not may_take_fewer)
    ]


def _indexes(details: Sequence[Any]) -> list[int]:
    return [detail["index"] for detail in details]


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # ONNX Runtime's are of no common class
        reason = " ".join(str(error).split())
        if len(reason) > _MAX_REASON:
            reason = f"{reason[:_MAX_REASON]}..."
        raise PeerRefusedError(reason) from error
