"""Writes a segment of a plan as a TFLite file, in memory.

`write_graph` gives the bytes of a model of one subgraph whose inputs and outputs are
those of the segment, in its order, shapes and dtypes. Every operation of the segment
has to be claimed (`asyncnn.devices.litert.claims`).

A barrier before a step divides what LiteRT runs as one node: every tensor that crosses
it is copied by an operator that XNNPACK does not take, so that the operators before and
after it become separate nodes, between which a run can be stopped.

Format: the TFLite schema, version 3 (file identifier TFL3), whose tables have their
fields by number here; buffers start at multiples of 16 bytes, as it demands. Large
constants are not copied: their buffers have offset and length instead of bytes.
"""

import struct
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import flatbuffers  # type: ignore[import-untyped]
import numpy as np
import tflite  # type: ignore[import-untyped]

from asyncnn.devices.litert.claims import WrittenOperation, write_operation
from asyncnn.devices.litert.flat_file import REFERENCE, FlatFile, Place, layout_of
from asyncnn.devices.litert.graph_file import Apart, GraphFile, may_lie_apart
from asyncnn.devices.litert.operand_tensors import OperandTensors
from asyncnn.devices.litert.tflite_graph import (
    TYPE_NAMES,
    Constant,
    Graph,
    Operator,
    Options,
    Tensor,
)
from asyncnn.engine.delegation import Segment
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation, Shape

Made: TypeAlias = Mapping[BoundOperation, WrittenOperation]

NOTHING_MADE: Made = {}

MAX_FILE_BYTES = 2**31 - 2**20
"""Most bytes of a file: offsets within it have 31 bits."""

_IDENTIFIER = b"TFL3"
_SCHEMA_VERSION = 3
_MAX_DEPRECATED_CODE = 127
_SCALE, _ZERO_POINT = struct.Struct("<f"), struct.Struct("<q")
_pack_scale = _SCALE.pack

_APART = frozenset({np.dtype(np.float32), np.dtype(np.int8), np.dtype(np.uint8)})
"""What is only computed with. Integers may be shapes or indexes, which LiteRT checks as
it compiles, if at all: memory of a client does not stay as it was.
"""

_TYPES: dict[str, int] = {name: getattr(tflite.TensorType, name) for name in TYPE_NAMES}

_NAME, _QUANTIZATION_OF = (3, REFERENCE), (4, REFERENCE)
_TENSORS = {
    (is_named, is_quantized): layout_of(
        (
            *((0, REFERENCE), (1, "b"), (2, "I"), (8, "?")),
            *([_NAME] if is_named else ()),
            *([_QUANTIZATION_OF] if is_quantized else ()),
        )
    )
    for is_named in (False, True)
    for is_quantized in (False, True)
}
_QUANTIZATION = layout_of(((2, REFERENCE), (3, REFERENCE), (6, "i")))
_PLAIN_OPERATOR = layout_of(((0, "I"), (1, REFERENCE), (2, REFERENCE)))
_OPERATOR = layout_of(
    ((0, "I"), (1, REFERENCE), (2, REFERENCE), (3, "B"), (4, REFERENCE))
)

_OFFSET_IN_BUFFER = 8
"""Where a buffer of this writer's has its offset."""


def write_graph(segment: Segment, barriers: Collection[int] = ()) -> bytes:
    """Return the TFLite file of ``segment``, as `write_file` does, in one piece."""
    return write_file(segment, barriers).joined()


def write_file(
    segment: Segment, barriers: Collection[int] = (), made: Made = NOTHING_MADE
) -> GraphFile:
    """Return the TFLite file of ``segment``, whose large constants lie apart.

    ``made`` are operations of it that have been written before.

    ``barriers`` are positions in ``segment.steps``: what a step at or after such a
    position reads of earlier ones passes a barrier.

    :raises GeneralFailureError: if an operation is not claimed, or the constants do not
        fit into one file.
    """
    graph, inputs, outputs = _graph_of(segment, frozenset(barriers), made)
    total = sum(constant.size_bytes for constant in graph.constants)
    if total > MAX_FILE_BYTES:
        raise GeneralFailureError(
            f"{total} bytes of constants do not fit into a TFLite file, "
            f"which holds {MAX_FILE_BYTES} at most"
        )
    return _Writer(graph).finish(inputs, outputs)


def _graph_of(
    segment: Segment, barriers: frozenset[int], made: Made
) -> tuple[Graph, list[Tensor], list[Tensor]]:
    described = _operands_of(segment)
    graph = Graph()
    values = OperandTensors(graph)
    inputs = [values.add_input(index, described[index]) for index in segment.inputs]
    last_use = _last_uses(segment)
    for position, step in enumerate(segment.steps):
        if position in barriers:
            values.pass_barrier(
                [
                    index
                    for index in values.known()
                    if last_use.get(index, -1) >= position
                ]
            )
        place = graph, values, step.inputs, step.outputs
        own = made.get(step.operation)
        if own is None or not own.add_to(*place):
            write_operation(graph, values, step.operation, step.inputs, step.outputs)
        if step.outputs:
            values.keep_outputs(step.outputs, segment.outputs, step.operation.outputs)
    outputs = [values.output(index) for index in segment.outputs]
    return graph, inputs, outputs


def _operands_of(segment: Segment) -> dict[int, BoundOperand]:
    return {
        index: operand
        for step in segment.steps
        for index, operand in zip(step.inputs, step.operation.inputs, strict=True)
        if operand is not None
    }


def _last_uses(segment: Segment) -> dict[int, int]:
    """Return the position of the last step that reads each operand."""
    return {
        index: position
        for position, step in enumerate(segment.steps)
        for index in step.inputs
    }


class _Writer:
    """Writes a graph; what is referred to has to be written first.

    Shapes, quantisation and options that occur again are referred to again.
    """

    def __init__(self, graph: Graph) -> None:
        self._file = FlatFile()
        self._graph = graph
        self._shapes: dict[Shape, Place] = {}
        self._quantizations: dict[object, Place] = {}
        self._zero_points: dict[tuple[int, int], Place] = {}
        self._tables: dict[Options, Place] = {}
        self._apart: list[tuple[Place, Constant, Array]] = []

    def finish(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> GraphFile:
        """Return the file whose subgraph has these inputs and outputs."""
        file, graph = self._file, self._graph
        buffers = [file.table(()), *map(self._buffer, graph.constants)]
        named = {tensor.number for tensor in (*inputs, *outputs)}
        tensors = [
            self._tensor(tensor, is_named=tensor.number in named)
            for tensor in graph.tensors
        ]
        codes: dict[tuple[str, int], int] = {}
        operators = [self._operator(operator, codes) for operator in graph.operators]
        subgraph = file.table(
            (
                (0, REFERENCE, file.references(tensors)),
                (1, REFERENCE, file.numbers([tensor.number for tensor in inputs])),
                (2, REFERENCE, file.numbers([tensor.number for tensor in outputs])),
                (3, REFERENCE, file.references(operators)),
                (4, REFERENCE, file.string("main")),
            )
        )
        model = file.table(
            (
                (0, "I", _SCHEMA_VERSION),
                (1, REFERENCE, file.references([self._code(*code) for code in codes])),
                (2, REFERENCE, file.references([subgraph])),
                (4, REFERENCE, file.references(buffers)),
            )
        )
        content = file.joined(model, _IDENTIFIER)
        apart = [
            Apart(
                len(content) - place + _OFFSET_IN_BUFFER,
                data,
                constant.array if np.may_share_memory(data, constant.array) else None,
            )
            for place, constant, data in self._apart
        ]
        return GraphFile(content, tuple(apart))

    def _buffer(self, constant: Constant) -> Place:
        data = constant.data()
        if not (constant.dtype in _APART and may_lie_apart(data)):
            return self._file.table(((0, REFERENCE, self._file.data(data)),))
        place = self._file.table(((1, "Q", 0), (2, "Q", data.size)))
        self._apart.append((place, constant, data))
        return place

    def _tensor(self, tensor: Tensor, *, is_named: bool) -> Place:
        file = self._file
        shape = self._shapes.get(tensor.shape)
        if shape is None:
            shape = self._shapes[tensor.shape] = file.numbers(tensor.shape)
        values = [
            shape,
            _TYPES[tensor.type],
            0 if tensor.buffer is None else tensor.buffer + 1,
            True,
        ]
        if is_named:
            values.append(file.string(f"tensor_{tensor.number}"))
        scales = tensor.scales or (_pack_scale(tensor.scale) if tensor.scale else b"")
        if scales:
            key = scales, tensor.zero_point, tensor.axis
            if key not in self._quantizations:
                self._quantizations[key] = self._quantization(*key)
            values.append(self._quantizations[key])
        return file.laid_out(_TENSORS[is_named, bool(scales)], values)

    def _quantization(self, scales: bytes, zero_point: int, axis: int) -> Place:
        file = self._file
        count = len(scales) // _SCALE.size
        points = self._zero_points.get((zero_point, count))
        if points is None:
            points = file.vector(_ZERO_POINT.pack(zero_point) * count, count)
            self._zero_points[zero_point, count] = points
        return file.laid_out(_QUANTIZATION, (file.vector(scales, count), points, axis))

    def _operator(self, operator: Operator, codes: dict[tuple[str, int], int]) -> Place:
        file = self._file
        code = codes.setdefault((operator.name, operator.version), len(codes))
        values = [code, file.numbers(operator.inputs), file.numbers(operator.outputs)]
        table = operator.options
        if table is None:
            return file.laid_out(_PLAIN_OPERATOR, values)
        if table not in self._tables:
            self._tables[table] = file.blob(*_options_table(table))
        values += [getattr(tflite.BuiltinOptions, table.kind), self._tables[table]]
        return file.laid_out(_OPERATOR, values)

    def _code(self, name: str, version: int) -> Place:
        number = getattr(tflite.BuiltinOperator, name)
        return self._file.table(
            (
                (0, "b", min(number, _MAX_DEPRECATED_CODE)),
                (2, "i", version),
                (3, "i", number),
            )
        )


@lru_cache(maxsize=1024)
def _options_table(table: Options) -> tuple[bytes, Place]:
    """Return a table of options by the schema's own builders, and its place there."""
    builder, kind = flatbuffers.Builder(64), table.kind
    getattr(tflite, f"{kind}Start")(builder)
    for field, value in table.fields:
        getattr(tflite, f"{kind}Add{field}")(builder, value)
    place = int(getattr(tflite, f"{kind}End")(builder))
    return bytes(builder.Bytes[builder.Head() :]), place
