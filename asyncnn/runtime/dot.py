"""Draws models as Graphviz text: types, shapes, and what a device makes of them.

Operations are boxes, operands ellipses, both numbered as in the model. Inputs and
outputs of the model are white on black; operations that the device does not support
are red, with the reason as a tooltip. Referenced subgraphs are clusters of their own.

`WholeDrawing` has a node for each operand. `FoldedDrawing` has nodes for operations
and for what enters and leaves; values travel along edges that say their types and
shapes. Scalars and short vectors are attributes of their operation, under the names
of its arguments, and of weights the operation says names, types and shapes.

Source: graphDump of the HAL's runtime (GraphDump.h).
"""

import math
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cached_property
from itertools import cycle
from typing import TextIO, TypeAlias

import msgspec

from asyncnn.deadlines import format_duration
from asyncnn.engine.plan import CONSTANT_LIFETIMES, constant_array
from asyncnn.extensions import Vocabulary, names_in, numbered
from asyncnn.hal.errors import AsyncnnError, in_one_line
from asyncnn.hal.operands import SCALAR_TYPES
from asyncnn.hal.operations.signature import Argument
from asyncnn.hal.operations.table import signature_of
from asyncnn.hal.types import (
    FusedActivationFunc,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    Subgraph,
)
from asyncnn.logs import MODEL
from asyncnn.runtime.explain import Explanation, OperationReport
from asyncnn.runtime.model import NamedModel, TensorInfo

_TYPES: dict[int, str] = {
    OperandType.FLOAT32: "F32",
    OperandType.INT32: "I32",
    OperandType.UINT32: "U32",
    OperandType.BOOL: "B",
    OperandType.FLOAT16: "F16",
    OperandType.TENSOR_FLOAT32: "TF32",
    OperandType.TENSOR_INT32: "TI32",
    OperandType.TENSOR_QUANT8_ASYMM: "TQ8A",
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: "TQ8AS",
    OperandType.TENSOR_QUANT8_SYMM: "TQ8S",
    OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL: "TQ8SPC",
    OperandType.TENSOR_QUANT16_ASYMM: "TQ16A",
    OperandType.TENSOR_QUANT16_SYMM: "TQ16S",
    OperandType.TENSOR_FLOAT16: "TF16",
    OperandType.TENSOR_BOOL8: "TB8",
    OperandType.SUBGRAPH: "SUBGRAPH",
    OperandType.OEM: "OEM",
    OperandType.TENSOR_OEM_BYTE: "TOEMB",
}
_LIFETIMES: dict[int, str] = {
    OperandLifeTime.CONSTANT_COPY: "COPY",
    OperandLifeTime.CONSTANT_REFERENCE: "REF",
    OperandLifeTime.NO_VALUE: "NO",
}
_BORDER = frozenset({OperandLifeTime.SUBGRAPH_INPUT, OperandLifeTime.SUBGRAPH_OUTPUT})

_FOLDED = CONSTANT_LIFETIMES | {OperandLifeTime.NO_VALUE, OperandLifeTime.SUBGRAPH}
_BIAS = "bias"
"""The name of arguments that are weights, although they may be integers."""

_NAMED: Mapping[str, Mapping[int, str]] = {
    "activation": {int(each): each.name for each in FusedActivationFunc},
    "padding_scheme": {1: "SAME", 2: "VALID"},
}
"""Names of values, by the names of arguments."""

_OPERATION_TYPES = {int(each): each for each in OperationType}

_MOST_VALUES = 8
_MOST_WEIGHTS = 4
_WIDTH = 40
"""Characters of a line in an operation."""

Reports: TypeAlias = Mapping[tuple[int | None, int], OperationReport]
"""What a device says, by number of the subgraph (None: the main one) and operation."""


class WholeDrawing(msgspec.Struct, frozen=True):
    """One subgraph; ``names`` are of operands at the border of the model."""

    model: Model
    number: int | None
    names: Mapping[int, str]
    words: Vocabulary
    reports: Reports
    device: str
    colors: Mapping[str, str]
    is_device_known: bool = False
    """Whether it is said elsewhere which device has all operations."""

    @property
    def subgraph(self) -> Subgraph:
        """The subgraph that is drawn."""
        if self.number is None:
            return self.model.main
        return self.model.referenced[self.number]

    def lines(self) -> Iterator[str]:
        """Yield the nodes of operands, and of operations with their edges."""
        for index, operand in enumerate(self.subgraph.operands):
            yield self._operand(index, operand)
        for index, operation in enumerate(self.subgraph.operations):
            yield self._operation(index, operation)
            yield from self._edges(index, operation)

    def _operand(self, index: int, operand: Operand) -> str:
        label = f"{index}: {self._described(operand)}"
        if index in self.names:
            label = f"{self.names[index]}\n{label}"
        style = ""
        if operand.lifetime in _BORDER:
            style = " style=filled fillcolor=black fontcolor=white"
        return f"{operand_node(self.number, index)} [label={quoted(label)}{style}];"

    def _described(self, operand: Operand) -> str:
        lifetime = _LIFETIMES.get(operand.lifetime)
        type_ = self._type(operand)
        return f"{lifetime} {type_}" if lifetime else type_

    def _type(self, operand: Operand) -> str:
        type_ = operand.type
        words = [_TYPES.get(type_) or self.words.operand_type(type_)]
        if operand.dimensions:
            words.append("x".join(str(length or "?") for length in operand.dimensions))
        elif type_ not in SCALAR_TYPES and type_ != OperandType.SUBGRAPH:
            words.append("any shape")
        return " ".join(words)

    def _operation(self, index: int, operation: Operation) -> str:
        lines = [f"{index}: {self.words.operation_type(operation.type)}"]
        report = self.reports.get((self.number, index))
        style = ""
        if report is not None and report.is_supported:
            if not self.is_device_known:
                lines.append(place_of(report, self.device))
            if report.device:
                color = self.colors[report.device]
                why = filter(None, (report.choice, report.obstacle))
                tooltip = quoted("; ".join(why))
                style = f" style=filled fillcolor={color} tooltip={tooltip}"
        elif report is not None:
            lines.append(f"not supported: {report.cause}")
            tooltip = quoted(report.reason)
            style = f" style=filled fillcolor=salmon tooltip={tooltip}"
        label = quoted("\n".join([*lines, *self._folded(operation)]))
        return f"{operation_node(self.number, index)} [shape=box label={label}{style}];"

    def _folded(self, operation: Operation) -> Sequence[str]:
        return ()

    def _edges(self, index: int, operation: Operation) -> Iterator[str]:
        node = operation_node(self.number, index)
        for position, operand in enumerate(operation.inputs):
            label = _position(position, len(operation.inputs))
            yield f"{operand_node(self.number, operand)} -> {node}{label};"
        for position, operand in enumerate(operation.outputs):
            label = _position(position, len(operation.outputs))
            yield f"{node} -> {operand_node(self.number, operand)}{label};"


class FoldedDrawing(WholeDrawing, frozen=True, dict=True):
    """One subgraph whose constants are shown in their operations."""

    def lines(self) -> Iterator[str]:
        """Yield the nodes of what enters and leaves, and operations with edges."""
        for index, operand in enumerate(self.subgraph.operands):
            if index in self._nodes:
                yield self._operand(index, operand)
        for index, operation in enumerate(self.subgraph.operations):
            yield self._operation(index, operation)
            yield from self._edges(index, operation)

    @cached_property
    def _makers(self) -> Mapping[int, tuple[int, str]]:
        return {
            operand: (index, f"output {position}" if len(operation.outputs) > 1 else "")
            for index, operation in enumerate(self.subgraph.operations)
            for position, operand in enumerate(operation.outputs)
        }

    @cached_property
    def _nodes(self) -> Set[int]:
        main = self.subgraph
        return {*main.input_indexes, *main.output_indexes} | {
            operand
            for operation in main.operations
            for operand in operation.inputs
            if operand not in self._makers and not self._is_folded(operand)
        }

    def _is_folded(self, operand: int) -> bool:
        operands = self.subgraph.operands
        return operand < len(operands) and operands[operand].lifetime in _FOLDED

    def _edges(self, index: int, operation: Operation) -> Iterator[str]:
        node = operation_node(self.number, index)
        names = self._arguments(operation)
        travelling = [
            (operand, name)
            for operand, name in zip(operation.inputs, names, strict=True)
            if operand in self._makers or operand in self._nodes
        ]
        for operand, name in travelling:
            words = [name] if len(travelling) > 1 else []
            if operand in self._makers:
                maker, output = self._makers[operand]
                source = operation_node(self.number, maker)
                type_ = self._type(self.subgraph.operands[operand])
                words = [*filter(None, [output]), type_, *words]
            else:
                source = operand_node(self.number, operand)
            label = f" [label={quoted(chr(10).join(words))}]" if words else ""
            yield f"{source} -> {node}{label};"
        for operand in operation.outputs:
            if operand in self._nodes:
                yield f"{node} -> {operand_node(self.number, operand)};"

    def _folded(self, operation: Operation) -> Sequence[str]:
        weights, attributes = [], []
        names = self._arguments(operation)
        for index, name in zip(operation.inputs, names, strict=True):
            if index in self._nodes or not self._is_folded(index):
                continue
            operand = self.subgraph.operands[index]
            value = self._value(operand, name)
            if value:
                attributes.append(f"{name}={value}")
            elif operand.lifetime in CONSTANT_LIFETIMES:
                weights.append((name, self._type(operand)))
        lines = [f"{name}: {type_}" for name, type_ in weights]
        if len(weights) > _MOST_WEIGHTS:
            counts = Counter(type_ for _, type_ in weights)
            lines = [f"{count} weights: {type_}" for type_, count in counts.items()]
        return [*lines, *textwrap.wrap(", ".join(attributes), _WIDTH)]

    def _value(self, operand: Operand, name: str) -> str:
        if operand.lifetime == OperandLifeTime.SUBGRAPH:
            return f"subgraph {operand.location.offset}"
        is_scalar = operand.type in SCALAR_TYPES
        if operand.lifetime not in CONSTANT_LIFETIMES or not (
            is_scalar or (operand.type == OperandType.TENSOR_INT32 and name != _BIAS)
        ):
            return ""
        if math.prod(operand.dimensions) > _MOST_VALUES:
            return ""
        try:
            value = constant_array(self.model, operand).tolist()
        except (AsyncnnError, LookupError, TypeError, ValueError):
            return "?" if is_scalar else ""  # of a model that is not valid
        if is_scalar and value in _NAMED.get(name, {}):
            return _NAMED[name][value]
        if isinstance(value, float):
            return f"{value:.6g}"
        return str(value).lower()

    def _arguments(self, operation: Operation) -> Sequence[str]:
        inputs = operation.inputs
        operands = self.subgraph.operands
        types = [operands[i].type if i < len(operands) else None for i in inputs]
        known = _OPERATION_TYPES.get(operation.type)
        signature = None if known is None else signature_of(known)
        for layout in signature.layouts if signature is not None else ():
            taken = layout.take_inputs(len(inputs))
            if taken is not None and all(map(_is_of, taken, types)):
                return [argument.name for argument in taken]
        return [f"input {position}" for position in range(len(inputs))]


def _is_of(argument: Argument, type_: int | None) -> bool:
    # A letter stands for a type that several arguments share, None for any.
    return isinstance(argument.type, str | None) or argument.type == type_


def place_of(report: OperationReport, device: str) -> str:
    """Return which device has an operation, and what computes it there."""
    place = report.device or device
    return f"{place}: {report.engine}" if report.engine else place


def operand_node(subgraph: int | None, index: int) -> str:
    """Return the name of the node of an operand."""
    return f"d{index}" if subgraph is None else f"s{subgraph}_d{index}"


def operation_node(subgraph: int | None, index: int) -> str:
    """Return the name of the node of an operation."""
    return f"n{index}" if subgraph is None else f"s{subgraph}_n{index}"


def _position(position: int, count: int) -> str:
    return f" [label={position}]" if count > 1 else ""


def quoted(text: str) -> str:
    """Return a string as Graphviz writes it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


_COLORS = ("lightblue", "palegreen", "khaki", "plum", "lightgray", "orange")
"""Of the devices that a model is divided among, in the order of their names."""


def dot(
    model: NamedModel | Model,
    explanation: Explanation | None = None,
    *,
    folded: bool = False,
) -> str:
    """Return the Graphviz text of a model, marked with what a device says of it.

    A bare `Model` has no names for its inputs and outputs. With ``folded``, scalars
    are attributes of their operation, which also shows types and shapes of its
    weights: large models can be read so.
    """
    reports: Reports = {}
    colors: dict[str, str] = {}
    device, places = "", set()
    if explanation is not None:
        device = explanation.device
        reports = {(r.subgraph, r.index): r for r in explanation.operations}
        devices = sorted({each.device for each in explanation.partitions})
        colors = dict(zip(devices, cycle(_COLORS), strict=False))
        places = {place_of(r, device) for r in explanation.operations if r.is_supported}
    names, words = _border_names(model), _vocabulary(model)
    bare = model.model if isinstance(model, NamedModel) else model
    lines = ["digraph model {", "  compound=true;", "  node [fontname=monospace];"]
    if folded:
        lines.append("  edge [fontname=monospace fontsize=10];")
    is_device_known = folded and len(places) == 1
    title = _title(explanation) if explanation is not None else []
    if is_device_known and not title:
        title = [f"on {places.pop()}"]
    if title:
        lines.append(f"  label={quoted(chr(10).join(title))};")
    kind = FoldedDrawing if folded else WholeDrawing
    subgraphs = range(len(bare.referenced))
    main, *referenced = (
        kind(
            model=bare,
            number=number,
            names=names if number is None else {},
            words=words,
            reports=reports,
            device=device,
            colors=colors,
            is_device_known=is_device_known,
        )
        for number in (None, *subgraphs)
    )
    lines += [f"  {line}" for line in main.lines()]
    for number, drawing in enumerate(referenced):
        lines.append(f"  subgraph cluster_{number} {{")
        lines.append(f"    label={quoted(f'referenced subgraph {number}')};")
        lines += [f"    {line}" for line in drawing.lines()]
        lines.append("  }")
    lines += [f"  {line}" for line in _references(bare, folded)]
    return "\n".join([*lines, "}", ""])


def graph_dump(name: str, model: Model, to: TextIO | None = None) -> None:
    """Write the Graphviz text of a model to a stream, under a ``name``.

    Without one it goes to the log: under the tag ``model`` where ``ASYNCNN_VLOG`` has
    it on, else standard error. The HAL's ``graphDump``.
    """
    text = f"// {in_one_line(name)}\n{dot(model)}"
    if to is None and MODEL.is_on:
        MODEL(text)
    else:
        print(text, end="", file=sys.stderr if to is None else to)


def _title(explanation: Explanation) -> list[str]:
    if explanation.problem:
        return [explanation.problem]
    steps = [
        f"{number}: {each.device}, {len(each.operations)} operations, "
        f"about {format_duration(each.expected_us)}"
        for number, each in enumerate(explanation.partitions)
    ]
    return steps + [
        f"{each.device}: {each.engine}, {len(each.operations)} operations, "
        f"about {format_duration(each.expected_us)}"
        for each in explanation.segments
    ]


def _references(model: Model, folded: bool) -> Iterator[str]:
    """Yield a dashed edge to each subgraph from what refers to it.

    That is an operand, or the operation that it is folded into.
    """
    for place, subgraph in enumerate((model.main, *model.referenced), -1):
        number = None if place < 0 else place
        targets = {
            index: operand.location.offset
            for index, operand in enumerate(subgraph.operands)
            if operand.lifetime == OperandLifeTime.SUBGRAPH
        }
        pairs = [(operand_node(number, index), to) for index, to in targets.items()]
        if folded:
            pairs = [
                (operation_node(number, index), targets[operand])
                for index, operation in enumerate(subgraph.operations)
                for operand in operation.inputs
                if operand in targets
            ]
        for source, target in pairs:
            yield (
                f"{source} -> {operation_node(target, 0)} "
                f"[style=dashed lhead=cluster_{target}];"
            )


def _vocabulary(model: NamedModel | Model) -> Vocabulary:
    if isinstance(model, NamedModel):
        return model.vocabulary
    return Vocabulary(numbered(model), names_in(model))


def _border_names(model: NamedModel | Model) -> dict[int, str]:
    if isinstance(model, Model):
        return {}
    main = model.model.main
    kept = [state.info for state in model.states]
    ends: list[tuple[int, TensorInfo]] = [
        *zip(main.input_indexes, [*model.inputs, *kept], strict=True),
        *zip(main.output_indexes, [*model.outputs, *kept], strict=True),
    ]
    return {index: info.name for index, info in ends}
