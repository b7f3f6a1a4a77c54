"""Writes the graphs of a TFLite file anew, for a run that can be stopped in between.

LiteRT gets no file but one of asyncnn's: tensors, operators and options are copied out
of the records that were checked, and barriers put between parts of the main graph.
Weights stay where the file has them: they lie apart (`graph_file`).
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from asyncnn.devices.litert.cuts import barriers
from asyncnn.devices.litert.graph_file import GraphFile
from asyncnn.devices.litert.tflite_graph import (
    Constant,
    CopiedOptions,
    WrittenGraph,
    WrittenOperator,
    WrittenTensor,
)
from asyncnn.devices.litert.writer import write_graphs
from asyncnn.engine.array_memory import address_of
from asyncnn.engine.costs import Speeds, estimated_of_operator_ns
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array, Shape
from asyncnn.tflite import flatbuffer
from asyncnn.tflite import tables as tflite
from asyncnn.tflite.runnable import quantized_axis
from asyncnn.tflite.tables import BUILTIN_OPTIONS, Contents

_MOST_TABLE_BYTES = 512
_MOST_VECTOR = 1 << 12
_VECTORS = {
    "ReshapeOptions": {0: 4},
    "SqueezeOptions": {0: 4},
    "BucketizeOptions": {0: 4},
}
"""Fields that refer to vectors, and the bytes of an element."""

_REFERRING = frozenset({"VarHandleOptions", "ConcatEmbeddingsOptions"})
"""Tables of options that refer to something else."""


def region_file(
    contents: Contents,
    input_shapes: Sequence[Shape],
    speeds: Speeds,
    *,
    output_shape: Shape | None = None,
) -> GraphFile:
    """Return the file of graphs that were checked (`asyncnn.tflite.runnable`).

    ``input_shapes`` are those of the main graph's inputs. All its outputs are said to
    have ``output_shape`` if it is given; there are no barriers then.

    :raises InvalidArgumentError: if options are damaged.
    """
    main = contents.graphs[0]
    shapes = dict(zip(main.inputs, input_shapes, strict=True))
    divides = output_shape is None
    if output_shape is not None:
        shapes |= dict.fromkeys(main.outputs, output_shape)
    first = WrittenGraph()
    written = [
        _written(
            graph,
            WrittenGraph(first) if graph.index else first,
            shapes,
            speeds,
            divides,
        )
        for graph in contents.graphs
    ]
    return write_graphs(written)


def _written(
    source: tflite.Graph,
    graph: WrittenGraph,
    shapes: dict[int, Shape],
    speeds: Speeds,
    divides: bool,
) -> tuple[WrittenGraph, list[WrittenTensor], list[WrittenTensor]]:
    is_main = not source.index
    dense = {
        each.outputs[0]: source.tensors[each.inputs[0]].stored
        for each in source.operators
        if each.name == "DENSIFY"
    }
    for each in source.tensors:
        shape = shapes.get(each.index) if is_main else None
        graph.tensors.append(
            _tensor(graph, each, shape, dense.get(each.index, each.stored))
        )
    operators = [each for each in source.operators if each.name != "DENSIFY"]
    if is_main and divides:
        _add_divided(graph, source, operators, speeds)
    else:
        graph.operators += [_operator(each, each.inputs) for each in operators]
    ends = source.inputs, source.outputs
    inputs, outputs = ([graph.tensors[index] for index in end] for end in ends)
    return graph, inputs, outputs


def _tensor(
    graph: WrittenGraph, tensor: tflite.Tensor, shape: Shape | None, data: Array | None
) -> WrittenTensor:
    buffer = None
    if data is not None and data.size:
        key = address_of(data), data.nbytes, data.dtype
        buffer = graph.shared_buffer(key, Constant(data, data.dtype, None))
    count = len(tensor.scales)
    return WrittenTensor(
        len(graph.tensors),
        tensor.type,
        tensor.shape if shape is None else shape,
        tensor.scales[0] if count == 1 else 0.0,
        tensor.zero_points[0] if tensor.zero_points else 0,
        np.asarray(tensor.scales, "<f4").tobytes() if count > 1 else b"",
        quantized_axis(tensor),
        buffer,
    )


class _Timed(NamedTuple):
    cost_ns: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def _add_divided(
    graph: WrittenGraph,
    source: tflite.Graph,
    operators: Sequence[tflite.Operator],
    speeds: Speeds,
) -> None:
    """Add operators, and copies of what crosses a barrier, which those behind read.

    Operators of constants alone are no part of it: weights stay weights.
    """
    constant = {each.number for each in graph.tensors if each.buffer is not None}
    timed: list[_Timed] = []
    for each in operators:
        varying = tuple(i for i in each.inputs if i >= 0 and i not in constant)
        if varying:
            cost_ns = estimated_of_operator_ns(source, each, speeds)
            timed.append(_Timed(cost_ns, varying, each.outputs))
        else:
            constant.update(each.outputs)
            timed.append(_Timed(0, (), ()))
    edges = set(barriers(timed)) if timed else set()
    last = {index: at for at, each in enumerate(timed) for index in each.inputs}
    alive = list(source.inputs)
    renamed: dict[int, int] = {}
    for at, (each, own) in enumerate(zip(operators, timed, strict=True)):
        alive = [index for index in alive if last.get(index, -1) >= at]
        for index in alive if at in edges else ():
            before = graph.tensors[renamed.get(index, index)]
            graph.operator("BITCAST", [before], [graph.like(before)], version=1)
            renamed[index] = graph.tensors[-1].number
        inputs = [renamed.get(index, index) for index in each.inputs]
        graph.operators.append(_operator(each, inputs))
        alive += own.outputs


def _operator(operator: tflite.Operator, inputs: Sequence[int]) -> WrittenOperator:
    return WrittenOperator(
        operator.name,
        tuple(inputs),
        operator.outputs,
        _options(operator),
        operator.version,
        operator.intermediates,
    )


def _options(operator: tflite.Operator) -> CopiedOptions | None:
    """Copy the table of options, with the vectors that it refers to.

    :raises InvalidArgumentError: if it is no such table.
    """
    data, table = operator.data, operator.options_place()
    number, _ = operator.kind_of_options()
    if not number or not table:
        return None
    kind = BUILTIN_OPTIONS[number]
    vtable = table - flatbuffer.int32(data, table)[0]
    if vtable < 0 or kind in _REFERRING:
        raise InvalidArgumentError(f"operator {operator.index} has unknown options")
    sizes = struct.unpack_from("<2H", data, vtable)
    whole = [bytes(data[at : at + n]) for at, n in zip((vtable, table), sizes)]  # noqa: B905
    offsets = struct.unpack_from(f"<{max(sizes[0] // 2 - 2, 0)}H", data, vtable + 4)
    if (
        [*map(len, whole)] != [*sizes]
        or sizes[0] % 2
        or not 4 <= min(sizes) <= max(sizes) <= _MOST_TABLE_BYTES
        or any(offset and not 4 <= offset < sizes[1] for offset in offsets)
    ):
        raise InvalidArgumentError(f"operator {operator.index} has damaged options")
    vectors = []
    for slot, width in _VECTORS.get(kind, {}).items():
        offset = offsets[slot] if slot < len(offsets) else 0
        if not offset:
            continue
        start, count = flatbuffer.vector(data, table + offset)
        elements = bytes(data[start : start + width * count])
        if count > _MOST_VECTOR or len(elements) < width * count:
            raise InvalidArgumentError(f"operator {operator.index} has long options")
        vectors.append((offset, elements, count))
    return CopiedOptions(number, whole[0], whole[1], table % 8, tuple(vectors))
