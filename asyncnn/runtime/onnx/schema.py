"""Reads ONNX files with the `onnx` package into records that hold together.

The package is imported when the first file is read. It parses the message and checks
each node against its operator's schema; names, shapes and sizes are checked here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np

from asyncnn.extensions.protobuf import Split, split
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Memory
from asyncnn.memory.pools import view
from asyncnn.runtime.model_description import ModelMetadata, Outline, TensorOutline
from asyncnn.runtime.onnx.tensors import DTYPES, TYPE_NAMES, TensorReader, dtype_of
from asyncnn.runtime.unsupported import Refusals, UnsupportedOperatorError

OLDEST_OPSET = 6
"""Older operators reshape, cast and cut by other rules; what runs them is rare."""

DOMAINS = frozenset({"", "ai.onnx"})
"""Both names of ONNX's own operators."""


NAMELESS = ("", "?", "-1", "None", "unk")
"""What writers put where an axis has no name, which does not make such axes equal."""

MAX_METADATA_CHARACTERS = 1 << 20
"""How much of what the author says is read."""


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


class Axes(msgspec.Struct, frozen=True):
    """What a file says of an input: name, dtype, and lengths or names of its axes.

    An axis without both has the empty name. One that is not ``is_ranked`` may have any
    axes.
    """

    name: str
    dtype: np.dtype[Any]
    lengths: tuple[int | str, ...]
    is_ranked: bool = True

    @property
    def named_lengths(self) -> tuple[int | str, ...]:
        """Lengths, and a name for each axis without one."""
        return tuple(
            f"axis {place} of {self.name}" if length in NAMELESS else length
            for place, length in enumerate(self.lengths)
        )


class Source(msgspec.Struct, frozen=True, eq=False):
    """A file that was read: its graph, weights by name, and the opsets by domain."""

    graph: Any
    weights: Mapping[str, Array]
    inputs: tuple[Axes, ...]
    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str], Any]
    reader: TensorReader
    ir_version: int
    metadata: ModelMetadata | None


def read_model(memory: Memory, folder: Path | None) -> Source:
    """Read the file whose bytes are ``memory``; its external files are in ``folder``.

    :raises InvalidArgumentError: if it is damaged or inconsistent.
    :raises UnsupportedOperatorError: if it uses what cannot be imported.
    :raises GeneralFailureError: if the package `onnx` is not installed.
    """
    onnx = onnx_package()
    parts = split(view(memory))
    model = parsed(parts)
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
        metadata_of(model),
    )


def read_outline(memory: Memory) -> Outline:
    """Return what a file says of its inputs and outputs, as far as it can be read.

    :raises InvalidArgumentError: if it is damaged.
    :raises GeneralFailureError: if the package `onnx` is not installed.
    """
    model = parsed(split(view(memory)))
    weights = {tensor.name for tensor in model.graph.initializer}
    return Outline(
        tuple(_outline(each) for each in model.graph.input if each.name not in weights),
        tuple(map(_outline, model.graph.output)),
        metadata_of(model),
    )


def _outline(info: Any) -> TensorOutline:
    tensor = info.type.tensor_type
    dtype = DTYPES.get(tensor.elem_type)
    kind = info.type.WhichOneof("value") or "tensor_type"
    name = TYPE_NAMES.get(tensor.elem_type, "").lower() if dtype is None else dtype.name
    lengths = tuple("?" if n in NAMELESS else n for n in lengths_of(tensor))
    if kind != "tensor_type":
        name = kind.removesuffix("_type")
    return TensorOutline(info.name, name, lengths)


def parsed(parts: Split) -> Any:
    """Return the ``ModelProto`` of a file.

    :raises InvalidArgumentError: if it is damaged.
    :raises GeneralFailureError: if the package `onnx` is not installed.
    """
    onnx = onnx_package()
    try:
        model = onnx.ModelProto.FromString(parts.rest)
    except Exception as error:  # protobuf's own class, of one of its packages
        raise InvalidArgumentError(f"damaged ONNX file: {error}") from error
    if not model.HasField("graph"):
        raise InvalidArgumentError("damaged ONNX file: it has no graph")
    return model


def metadata_of(model: Any) -> ModelMetadata | None:
    """Return what the author says, but for the longest texts; None for nothing."""
    texts: dict[str, str] = {}
    left = MAX_METADATA_CHARACTERS
    for entry in model.metadata_props:
        left -= len(entry.key) + len(entry.value)
        if left < 0:
            break
        texts[entry.key] = entry.value
    found = ModelMetadata(
        description=(model.doc_string or model.graph.doc_string)[: max(left, 0)],
        version=str(model.model_version or ""),
        author=texts.get("model_author", ""),
        license=texts.get("model_license", ""),
        properties=texts,
    )
    return None if found == ModelMetadata() else found


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
    """Return the name of a node's operator, behind a domain other than ONNX's."""
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
            found.append(axes_of(info, f"input {info.name[:80]!r}"))
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


def axes_of(info: Any, what: str, also: Mapping[int, np.dtype[Any]] = {}) -> Axes:
    """Return what the file says of an input or output.

    ``also`` are dtypes of element types beside those that can be read.

    :raises UnsupportedOperatorError: if it is no tensor of such elements.
    """
    tensor = tensor_type_of(info, what)
    number = tensor.elem_type
    dtype = also[number] if number in also else dtype_of(number, what)
    return Axes(info.name, dtype, tuple(lengths_of(tensor)), tensor.HasField("shape"))


def tensor_type_of(info: Any, what: str) -> Any:
    """Return the type of an input or output that is a tensor.

    :raises UnsupportedOperatorError: if it is something else.
    """
    if info.type.HasField("tensor_type"):
        return info.type.tensor_type
    kind = (info.type.WhichOneof("value") or "nothing").removesuffix("_type")
    is_of_maps = info.type.sequence_type.elem_type.HasField("map_type")
    raise UnsupportedOperatorError(
        f"{what} is {'an' if kind == 'optional' else 'a'} {kind}"
        f"{' of maps' * is_of_maps}, not a tensor",
        hint="sklearn-onnx writes a tensor with the option zipmap=False"
        if is_of_maps
        else "",
    )


def lengths_of(tensor: Any) -> Iterator[int | str]:
    """Yield lengths of axes, and names of those that are open."""
    for axis in tensor.shape.dim:
        if not axis.HasField("dim_value"):
            yield str(axis.dim_param)
        elif axis.dim_value > 0:
            yield int(axis.dim_value)
        else:  # some writers say -1 for a length that is open
            yield ""


def captured(graph: Any, visit: Callable[[int], None]) -> set[str]:
    """Return the names that a graph and those in it read, its own included.

    ``visit`` is given the number of nodes of each before they are looked at.
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
    attributes = node.attribute
    if not attributes:
        return []
    return [
        graph
        for attribute in attributes
        for graph in (
            *([attribute.g] if attribute.HasField("g") else []),
            *attribute.graphs,
        )
    ]


def embed(graph: Any, reader: TensorReader) -> None:
    """Put the weights of external files into a graph and those in it.

    :raises InvalidArgumentError: as `TensorReader.array`.
    """
    for tensor in tensors_in(graphs_in(graph)):
        if is_external(tensor):
            # Bytes of booleans may be anything in a file, and are made 0 or 1.
            is_bool = TYPE_NAMES.get(tensor.data_type) == "BOOL"
            data = reader.array(tensor) if is_bool else reader.span_of(tensor).data
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = data.tobytes()


def is_external(tensor: Any) -> bool:
    """Return whether the elements of a tensor lie in another file."""
    return bool(tensor.data_location == tensor.EXTERNAL)


def tensors_in(graphs: Iterable[Any]) -> Iterator[Any]:
    """Yield the tensors of graphs, but for sparse ones."""
    for each in graphs:
        yield from each.initializer
        for node in each.node:
            yield from (part.t for part in node.attribute if part.HasField("t"))


def graphs_in(graph: Any) -> list[Any]:
    """Return a graph and those in it."""
    graphs = [graph]
    for each in graphs:  # which grows meanwhile
        for node in each.node:
            graphs += inner_graphs(node)
    return graphs
