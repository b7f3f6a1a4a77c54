"""Writes a segment of a plan as a TFLite file, in memory.

`write_graph` gives the bytes of a model of one subgraph whose inputs and outputs are
the segment's, in its order, shapes and dtypes. Every operation of the segment
has to be claimed (`asyncnn.devices.litert.claims`).

A barrier before a step divides what LiteRT runs as one node: every tensor that crosses
it is copied by an operator that XNNPACK does not take, so that the operators before and
after it become separate nodes, between which a run can be stopped.

Format: the TFLite schema, version 3 (file identifier TFL3), whose tables have their
fields by number here; buffers start at multiples of 16 bytes, as it demands. Large
constants are not copied: their buffers have offset and length instead of bytes.
"""

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TypeAlias

import flatbuffers  # type: ignore[import-untyped]
import numpy as np

from asyncnn.devices.litert.claims import WrittenOperation, write_operation
from asyncnn.devices.litert.cuts import last_reads
from asyncnn.devices.litert.flat_file import (
    REFERENCE,
    FlatFile,
    Place,
    TableLayout,
    layout_of,
)
from asyncnn.devices.litert.graph_file import Apart, GraphFile, may_lie_apart
from asyncnn.devices.litert.operand_tensors import OperandTensors
from asyncnn.devices.litert.tflite_graph import (
    TYPE_NAMES,
    Constant,
    OperatorOptions,
    WrittenGraph,
    WrittenTensor,
)
from asyncnn.engine.delegation import Segment
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation
from asyncnn.lazy import module_alone

Made: TypeAlias = Mapping[BoundOperation, WrittenOperation]

_Kind: TypeAlias = tuple[str, int]
"""Name and version of operators."""

_Quantization: TypeAlias = tuple[bytes, int, int]
"""Scales, the zero point of all, and the axis whose indexes they are of."""

NOTHING_MADE: Made = {}

MAX_FILE_BYTES = 2**31 - 2**20
"""Most bytes of a file: offsets within it have 31 bits."""

_IDENTIFIER = b"TFL3"
_SCHEMA_VERSION = 3
_MAX_DEPRECATED_CODE = 127
_SCALE, _ZERO_POINT = struct.Struct("<f"), struct.Struct("<q")

_APART = frozenset(map(np.dtype, (np.float32, np.float16, np.int8, np.uint8)))
"""What is only computed with. Integers may be shapes or indexes, which LiteRT checks as
it compiles, if at all: memory of a client does not stay as it was.
"""

_generated = partial(module_alone, "tflite")
_types = _generated("TensorType").TensorType
_TYPES: dict[str, int] = {name: getattr(_types, name) for name in TYPE_NAMES}
_options = _generated("BuiltinOptions").BuiltinOptions
_operators = _generated("BuiltinOperator").BuiltinOperator

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
_OPERATORS = {
    has_options: layout_of(
        (
            *((0, "I"), (1, REFERENCE), (2, REFERENCE)),
            *(((3, "B"), (4, REFERENCE)) if has_options else ()),
        )
    )
    for has_options in (False, True)
}

_CODE = layout_of(((0, "b"), (2, "i"), (3, "i")))
_BUFFER = layout_of(((0, REFERENCE),))
_BUFFER_APART = layout_of(((1, "Q"), (2, "Q")))
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
) -> tuple[WrittenGraph, list[WrittenTensor], list[WrittenTensor]]:
    described = _operands_of(segment)
    graph = WrittenGraph()
    values = OperandTensors(graph)
    inputs = [values.add_input(index, described[index]) for index in segment.inputs]
    last_use = last_reads(segment.steps) if barriers else {}
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
    """Return the inputs of a segment."""
    wanted = set(segment.inputs)
    return {
        index: operand
        for step in segment.steps
        if not wanted.isdisjoint(step.inputs)
        for index, operand in zip(step.inputs, step.operation.inputs, strict=True)
        if operand is not None
    }


class _Writer:
    """Writes a graph; what is referred to has to be written first.

    Shapes, quantisation and options that occur again are referred to again.
    """

    def __init__(self, graph: WrittenGraph) -> None:
        self._file = FlatFile()
        self._graph = graph
        self._apart: list[tuple[int, Constant, Array]] = []

    def finish(
        self, inputs: Sequence[WrittenTensor], outputs: Sequence[WrittenTensor]
    ) -> GraphFile:
        """Return the file."""
        file, operators = self._file, self._graph.operators
        empty, buffers = file.table(()), self._buffers()
        kinds = dict.fromkeys([(each.name, each.version) for each in operators])
        codes = {kind: code for code, kind in enumerate(kinds)}
        graph = self._subgraph(inputs, outputs, codes)
        model = file.table(
            (
                (0, "I", _SCHEMA_VERSION),
                (1, REFERENCE, file.references(self._codes(codes))),
                (2, REFERENCE, file.references([graph])),
                (4, REFERENCE, file.references([empty, *buffers])),
            )
        )
        content = file.joined(model, _IDENTIFIER)
        apart = [
            Apart(
                len(content) - buffers[number] + _OFFSET_IN_BUFFER,
                data,
                constant.array if np.may_share_memory(data, constant.array) else None,
            )
            for number, constant, data in self._apart
        ]
        return GraphFile(content, tuple(apart))

    def _subgraph(
        self,
        inputs: Sequence[WrittenTensor],
        outputs: Sequence[WrittenTensor],
        codes: Mapping[_Kind, int],
    ) -> Place:
        file = self._file
        tensors = self._tensors({each.number for each in (*inputs, *outputs)})
        operators = self._operators(codes)
        return file.table(
            (
                (0, REFERENCE, file.references(tensors)),
                (1, REFERENCE, file.numbers([tensor.number for tensor in inputs])),
                (2, REFERENCE, file.numbers([tensor.number for tensor in outputs])),
                (3, REFERENCE, file.references(operators)),
                (4, REFERENCE, file.string("main")),
            )
        )

    def _codes(self, kinds: Iterable[_Kind]) -> list[Place]:
        numbers = [getattr(_operators, name) for name, _ in kinds]
        deprecated = [min(number, _MAX_DEPRECATED_CODE) for number in numbers]
        versions = [version for _, version in kinds]
        columns = {0: deprecated, 2: versions, 3: numbers}
        return self._file.tables([_CODE] * len(numbers), columns)

    def _buffers(self) -> list[Place]:
        layouts: list[TableLayout] = []
        places: list[Place] = []
        sizes: list[int] = []
        for number, constant in enumerate(self._graph.constants):
            data = constant.data()
            is_apart = constant.dtype in _APART and may_lie_apart(data)
            if is_apart:
                self._apart.append((number, constant, data))
            layouts.append(_BUFFER_APART if is_apart else _BUFFER)
            places.append(0 if is_apart else self._file.data(data))
            sizes.append(data.size)
        columns = {0: places, 1: [0] * len(sizes), 2: sizes}
        return self._file.tables(layouts, columns)

    def _tensors(self, named: Collection[int]) -> list[Place]:
        """Write the tensors; those whose numbers are ``named`` have a name."""
        file, tensors = self._file, self._graph.tensors
        shapes = dict.fromkeys([tensor.shape for tensor in tensors])
        shape_of = dict(zip(shapes, file.integers(shapes), strict=True))
        quantized = [
            (tensor.scales or _SCALE.pack(tensor.scale), tensor.zero_point, tensor.axis)
            if tensor.scales or tensor.scale
            else None
            for tensor in tensors
        ]
        quantization_of = self._quantizations(quantized)
        numbers, count = [tensor.number for tensor in tensors], len(tensors)
        names = [file.string(f"tensor_{n}") if n in named else 0 for n in numbers]
        columns: dict[int, Sequence[int]] = {
            0: [shape_of[tensor.shape] for tensor in tensors],
            1: [_TYPES[tensor.type] for tensor in tensors],
            2: [0 if t.buffer is None else t.buffer + 1 for t in tensors],
            3: names,
            4: [quantization_of.get(each, 0) for each in quantized],
            8: [True] * count,
        }
        layouts = [
            _TENSORS[name > 0, each is not None]
            for name, each in zip(names, quantized, strict=True)
        ]
        return file.tables(layouts, columns)

    def _quantizations(
        self, given: Iterable[_Quantization | None]
    ) -> dict[_Quantization | None, Place]:
        """Write the quantisations; return the place of each."""
        file = self._file
        points_of: dict[tuple[int, int], Place] = {}
        different = [each for each in dict.fromkeys(given) if each is not None]
        columns: dict[int, list[int]] = {2: [], 3: [], 6: []}
        for each in different:
            scales, zero_point, axis = each
            count = len(scales) // _SCALE.size
            points = points_of.get((zero_point, count))
            if points is None:
                points = file.vector(_ZERO_POINT.pack(zero_point) * count, count)
                points_of[zero_point, count] = points
            columns[2].append(file.vector(scales, count))
            columns[3].append(points)
            columns[6].append(axis)
        places = file.tables([_QUANTIZATION] * len(different), columns)
        return dict(zip(different, places, strict=True))

    def _operators(self, codes: Mapping[_Kind, int]) -> list[Place]:
        """Write the operators, whose kinds have these ``codes``."""
        file, operators = self._file, self._graph.operators
        read = file.integers([operator.inputs for operator in operators])
        made = file.integers([operator.outputs for operator in operators])
        options_of: dict[OperatorOptions | None, tuple[int, Place]] = {None: (0, 0)}
        for table in dict.fromkeys([operator.options for operator in operators]):
            if table is not None:
                place = file.blob(*_options_table(table))
                options_of[table] = getattr(_options, table.kind), place
        chosen = [options_of[operator.options] for operator in operators]
        columns = {
            0: [codes[operator.name, operator.version] for operator in operators],
            1: read,
            2: made,
            3: [kind for kind, _ in chosen],
            4: [place for _, place in chosen],
        }
        layouts = [_OPERATORS[kind > 0] for kind, _ in chosen]
        return file.tables(layouts, columns)


@lru_cache(maxsize=1024)
def _options_table(table: OperatorOptions) -> tuple[bytes, Place]:
    """Return a table of options by the schema's own builders, and its place there."""
    builder, kind = flatbuffers.Builder(64), table.kind
    schema = _generated(kind)
    getattr(schema, f"{kind}Start")(builder)
    for field, value in table.fields:
        getattr(schema, f"{kind}Add{field}")(builder, value)
    place = int(getattr(schema, f"{kind}End")(builder))
    return bytes(builder.Bytes[builder.Head() :]), place
