"""Draws models as Graphviz text: types, shapes, and what a device makes of them.

Operations are boxes, operands ellipses, both numbered as in the model. Inputs and
outputs of the model are white on black; operations that the device does not support
are red, with the reason as a tooltip. Referenced subgraphs are clusters of their own.

Source: graphDump of the HAL's runtime (GraphDump.h).
"""

import logging
from collections.abc import Iterator, Mapping
from itertools import cycle
from typing import TextIO

import msgspec

from asyncnn.extensions import Vocabulary, names_in, numbered
from asyncnn.hal.operands import SCALAR_TYPES
from asyncnn.hal.types import (
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    Subgraph,
)
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
_COLORS = ("lightblue", "palegreen", "khaki", "plum", "lightgray", "orange")
"""Of the devices that a model is divided among, in the order of their names."""

_BORDER = frozenset({OperandLifeTime.SUBGRAPH_INPUT, OperandLifeTime.SUBGRAPH_OUTPUT})

_Reports = Mapping[tuple[int | None, int], OperationReport]

logger = logging.getLogger(__name__)


def graph_dump(
    name: str,
    model: NamedModel | Model,
    to: TextIO | logging.Logger | None = None,
) -> None:
    """Write the Graphviz text of a model to a stream or a logger, ``name`` before it.

    A logger gets it line by line, as information; by default it is this module's.
    """
    text = f"// {' '.join(name.split())}\n{dot(model)}"
    if to is not None and not isinstance(to, logging.Logger):
        to.write(text)
        return
    for line in text.splitlines():
        (to or logger).info("%s", line)


def dot(model: NamedModel | Model, explanation: Explanation | None = None) -> str:
    """Return the Graphviz text of a model, marked with what a device says of it.

    A bare `Model` has no names for its inputs and outputs.
    """
    reports: _Reports = {}
    colors: dict[str, str] = {}
    device = ""
    if explanation is not None:
        device = explanation.device
        reports = {(r.subgraph, r.index): r for r in explanation.operations}
        devices = sorted({each.device for each in explanation.partitions})
        colors = dict(zip(devices, cycle(_COLORS), strict=False))
    names, words = _border_names(model), _vocabulary(model)
    bare = model.model if isinstance(model, NamedModel) else model
    lines = [
        "digraph model {",
        "  compound=true;",
        "  node [fontname=monospace];",
    ]
    if explanation is not None and explanation.problem:
        lines.append(f"  label={_quoted(explanation.problem)};")
    elif explanation is not None and explanation.partitions:
        steps = [
            f"{number}: {each.device}, {len(each.operations)} operations, "
            f"about {each.expected_us:.0f} us"
            for number, each in enumerate(explanation.partitions)
        ]
        steps += _segments(explanation)
        lines.append(f"  label={_quoted(chr(10).join(steps))};")
    elif explanation is not None and explanation.segments:
        lines.append(f"  label={_quoted(chr(10).join(_segments(explanation)))};")
    drawing = _Drawing(None, bare.main, names, words, reports, device, colors)
    lines += [f"  {line}" for line in drawing.lines()]
    for number, subgraph in enumerate(bare.referenced):
        drawing = _Drawing(number, subgraph, {}, words, reports, device, colors)
        lines.append(f"  subgraph cluster_{number} {{")
        lines.append(f"    label={_quoted(f'referenced subgraph {number}')};")
        lines += [f"    {line}" for line in drawing.lines()]
        lines.append("  }")
    lines += [f"  {line}" for line in _references(bare)]
    return "\n".join([*lines, "}", ""])


def _segments(explanation: Explanation) -> list[str]:
    return [
        f"{each.device}: {each.engine}, {len(each.operations)} operations, "
        f"about {each.expected_us:.0f} us"
        for each in explanation.segments
    ]


class _Drawing(msgspec.Struct, frozen=True):
    """One subgraph; ``names`` are those of operands at the border of the model."""

    number: int | None
    subgraph: Subgraph
    names: Mapping[int, str]
    words: Vocabulary
    reports: _Reports
    device: str
    colors: Mapping[str, str]

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
        return f"{_operand_node(self.number, index)} [label={_quoted(label)}{style}];"

    def _described(self, operand: Operand) -> str:
        """Return lifetime, type, and dimensions, with ? for those that are open."""
        words = [_LIFETIMES[operand.lifetime]] if operand.lifetime in _LIFETIMES else []
        type_ = operand.type
        words.append(_TYPES.get(type_) or self.words.operand_type(type_))
        if operand.dimensions:
            words.append("x".join(str(length or "?") for length in operand.dimensions))
        elif type_ not in SCALAR_TYPES and type_ != OperandType.SUBGRAPH:
            words.append("any shape")
        return " ".join(words)

    def _operation(self, index: int, operation: Operation) -> str:
        label = f"{index}: {self.words.operation_type(operation.type)}"
        report = self.reports.get((self.number, index))
        style = ""
        if report is not None and report.is_supported:
            label = f"{label}\n{report.device or self.device}"
            if report.engine:
                label += f": {report.engine}"
            if report.device:
                color = self.colors[report.device]
                why = filter(None, (report.choice, report.obstacle))
                tooltip = _quoted("; ".join(why))
                style = f" style=filled fillcolor={color} tooltip={tooltip}"
        elif report is not None:
            label = f"{label}\nnot supported: {report.cause}"
            tooltip = _quoted(report.reason)
            style = f" style=filled fillcolor=salmon tooltip={tooltip}"
        node = _operation_node(self.number, index)
        return f"{node} [shape=box label={_quoted(label)}{style}];"

    def _edges(self, index: int, operation: Operation) -> Iterator[str]:
        node = _operation_node(self.number, index)
        for position, operand in enumerate(operation.inputs):
            label = _position(position, len(operation.inputs))
            yield f"{_operand_node(self.number, operand)} -> {node}{label};"
        for position, operand in enumerate(operation.outputs):
            label = _position(position, len(operation.outputs))
            yield f"{node} -> {_operand_node(self.number, operand)}{label};"


def _references(model: Model) -> Iterator[str]:
    """Yield a dashed edge from each operand that refers to a subgraph to that."""
    for number, subgraph in enumerate((model.main, *model.referenced), -1):
        for index, operand in enumerate(subgraph.operands):
            if operand.lifetime == OperandLifeTime.SUBGRAPH:
                target = operand.location.offset
                source = _operand_node(None if number < 0 else number, index)
                yield (
                    f"{source} -> {_operation_node(target, 0)} "
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


def _operand_node(subgraph: int | None, index: int) -> str:
    return f"d{index}" if subgraph is None else f"s{subgraph}_d{index}"


def _operation_node(subgraph: int | None, index: int) -> str:
    return f"n{index}" if subgraph is None else f"s{subgraph}_n{index}"


def _position(position: int, count: int) -> str:
    return f" [label={position}]" if count > 1 else ""


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
