"""Reads ONNX files with the `onnx` package into records that hold together.

The package is imported when the first file is read. It parses the message and checks
each node against its operator's schema; names, shapes and sizes are checked here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np

from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Memory
from asyncnn.memory.pools import view
from asyncnn.runtime.onnx.protobuf import split
from asyncnn.runtime.onnx.tensors import TensorReader, dtype_of
from asyncnn.runtime.unsupported import Refusals, UnsupportedOperatorError

OLDEST_OPSET = 6
"""Older operators reshape, cast and cut by other rules; what runs them is rare."""

DOMAINS = frozenset({"", "ai.onnx"})
"""Both names of ONNX's own operators."""


def onnx_package() -> ModuleType:
    """Return the `onnx` package.

    :raises GeneralFailureError: if it is not installed.
    """
    try:
        for name in ("checker", "defs", "helper"):
            import_module(f"onnx.{name}")
        return import_module("onnx")
    except ImportError as error:
        raise GeneralFailureError(
            f"ONNX files need the package onnx: {error}",
            hint="install it with: pip install 'asyncnn[onnx]'",
        ) from error


@contextmanager
def decoding() -> Iterator[None]:
    """Turn what decoders raise on damaged bytes into one error of the family.

    :raises InvalidArgumentError: if the block raises such an error.
    """
    try:
        yield
    except RecursionError as error:
        raise InvalidArgumentError(
            "damaged ONNX file: graphs nested too deeply"
        ) from error
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise InvalidArgumentError(
            f"damaged ONNX file ({type(error).__name__}: {str(error)[:300]})"
        ) from error


class Axes(msgspec.Struct, frozen=True):
    """What a file says of an input: name, dtype, and lengths or names of its axes.

    An axis without both has the empty name.
    """

    name: str
    dtype: np.dtype[Any]
    lengths: tuple[int | str, ...]


class Source(msgspec.Struct, frozen=True, eq=False):
    """A file that was read: its graph, weights by name, and the opsets by domain."""

    graph: Any
    weights: Mapping[str, Array]
    inputs: tuple[Axes, ...]
    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str], Any]
    reader: TensorReader
    ir_version: int


def read_model(memory: Memory, folder: Path | None) -> Source:
    """Read the file whose bytes are ``memory``; its external files are in ``folder``.

    :raises InvalidArgumentError: if it is damaged or inconsistent.
    :raises UnsupportedOperatorError: if it uses what cannot be imported.
    :raises GeneralFailureError: if the package `onnx` is not installed.
    """
    onnx = onnx_package()
    parts = split(view(memory))
    try:
        model = onnx.ModelProto.FromString(parts.rest)
    except Exception as error:  # protobuf's own class, of one of its packages
        raise InvalidArgumentError(f"damaged ONNX file: {error}") from error
    if not model.HasField("graph"):
        raise InvalidArgumentError("damaged ONNX file: it has no graph")
    opsets = {_domain(opset.domain): opset.version for opset in model.opset_import}
    newest = onnx.defs.onnx_opset_version()
    # Without ONNX's own operators their version does not matter.
    _check_opset(opsets.setdefault("", newest), newest)
    reader = TensorReader(memory, folder)
    graph = model.graph
    return Source(
        graph,
        _weights(graph, reader, parts.raw),
        _inputs(graph),
        opsets,
        {(_domain(f.domain), f.name): f for f in model.functions},
        reader,
        model.ir_version,
    )


def _domain(name: str) -> str:
    return "" if name in DOMAINS else name


def _check_opset(version: int, newest: int) -> None:
    if not OLDEST_OPSET <= version <= newest:
        raise UnsupportedOperatorError(
            f"operator set {version} is not one of {OLDEST_OPSET} to {newest}",
            hint="a newer package onnx may know it" if version > newest else "",
        )


def _weights(
    graph: Any, reader: TensorReader, raw: Sequence[tuple[int, int] | None]
) -> dict[str, Array]:
    if graph.sparse_initializer:
        raise UnsupportedOperatorError("sparse initializers cannot be imported")
    if len(raw) != len(graph.initializer):
        raise InvalidArgumentError("damaged ONNX file: initializers are lost")
    weights: dict[str, Array] = {}
    for tensor, position in zip(graph.initializer, raw, strict=True):
        if tensor.name in weights:
            raise InvalidArgumentError(f"two initializers {tensor.name[:80]!r}")
        weights[tensor.name] = reader.array(tensor, position)
    return weights


def operator_name(proto: Any) -> str:
    """Return the name of a node's operator, behind that of a domain not ONNX's own."""
    name = str(proto.op_type)[:80]
    return name if proto.domain in DOMAINS else f"{proto.domain[:40]}.{name}"


def place_of(index: int, proto: Any) -> str:
    """Return where a node is, for messages."""
    computed = next(iter(proto.output), "")[:80]
    return f"node {index} ({operator_name(proto)}), which computes {computed!r}"


def _inputs(graph: Any) -> tuple[Axes, ...]:
    """Return what the file says of its inputs.

    :raises UnsupportedOperatorError: if the HAL has no such tensors; it names all
        nodes that read them.
    """
    found, refusals = [], Refusals()
    for info in graph.input:
        try:
            found.append(_axes(info))
        except UnsupportedOperatorError as error:
            readers = [
                (index, proto)
                for index, proto in enumerate(graph.node)
                if info.name in proto.input
            ]
            if error.hint or not readers:
                raise
            for index, proto in readers:
                place = place_of(index, proto)
                refusals.add(operator_name(proto), index, place, error)
    refusals.raise_any()
    return tuple(found)


def _axes(info: Any) -> Axes:
    what = f"input {info.name[:80]!r}"
    if not info.type.HasField("tensor_type"):
        kind = info.type.WhichOneof("value") or "nothing"
        raise UnsupportedOperatorError(f"{what} is a {kind}, not a tensor")
    tensor = info.type.tensor_type
    dtype = dtype_of(tensor.elem_type, what)
    if not tensor.HasField("shape"):
        raise UnsupportedOperatorError(
            f"{what} has no shape", hint="give one, by input_shapes"
        )
    lengths: list[int | str] = []
    for axis in tensor.shape.dim:
        # Some writers say -1 for a length that is open.
        is_known = axis.HasField("dim_value") and axis.dim_value > 0
        lengths.append(axis.dim_value if is_known else axis.dim_param)
        if axis.HasField("dim_value") and axis.dim_value == 0:
            lengths[-1] = ""
    return Axes(info.name, dtype, tuple(lengths))


def captured(graph: Any, visit: Callable[[int], None]) -> set[str]:
    """Return the names that a graph and those in it read, its own included.

    ``visit`` is told how many nodes each has before they are looked at.
    """
    names: set[str] = {output.name for output in graph.output}
    stack = [graph]
    while stack:
        nodes = stack.pop().node
        visit(len(nodes))
        for node in nodes:
            names.update(node.input)
            for inner in inner_graphs(node):
                names.update(output.name for output in inner.output)
                stack.append(inner)
    return names


def inner_graphs(node: Any) -> list[Any]:
    """Return the graphs among the attributes of ``node``."""
    return [
        graph
        for attribute in node.attribute
        for graph in (
            *([attribute.g] if attribute.HasField("g") else []),
            *attribute.graphs,
        )
    ]
