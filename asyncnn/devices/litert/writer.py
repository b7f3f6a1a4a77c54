"""Writes a segment of a plan as a TFLite file, in memory.

`write_graph` gives the bytes of a model of one subgraph whose inputs and outputs are
those of the segment, in its order, shapes and dtypes. Every operation of the segment
has to be claimed (`asyncnn.devices.litert.claims`).

A barrier before a step divides what LiteRT runs as one node: every tensor that crosses
it is copied by an operator that XNNPACK does not take, so that the operators before and
after it become separate nodes, between which a run can be stopped.

Format: the TFLite schema, version 3 (file identifier TFL3); buffers start at multiples
of 16 bytes, as the schema demands.
"""

from collections.abc import Collection, Sequence
from typing import Any

import flatbuffers  # type: ignore[import-untyped]
import numpy as np
import tflite  # type: ignore[import-untyped]

from asyncnn.devices.litert.claims import write_operation
from asyncnn.devices.litert.operand_tensors import OperandTensors
from asyncnn.devices.litert.tflite_graph import (
    Constant,
    Graph,
    Operator,
    Options,
    Tensor,
)
from asyncnn.engine.delegation import Segment
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operations.bound import BoundOperand, Shape

MAX_FILE_BYTES = 2**31 - 2**20
"""Most bytes of a file: offsets within it have 31 bits."""

_IDENTIFIER = b"TFL3"
_SCHEMA_VERSION = 3
_BUFFER_ALIGNMENT = 16
_BYTES_PER_TABLE = 256
_MAX_DEPRECATED_CODE = 127


def write_graph(segment: Segment, barriers: Collection[int] = ()) -> memoryview:
    """Return the TFLite file of ``segment``; the public Interpreter wants `bytes`.

    ``barriers`` are positions in ``segment.steps``: what a step at or after such a
    position reads of earlier ones passes a barrier.

    :raises GeneralFailureError: if an operation is not claimed, or the constants do not
        fit into one file.
    """
    graph, inputs, outputs = _graph_of(segment, frozenset(barriers))
    total = sum(constant.size_bytes for constant in graph.constants)
    if total > MAX_FILE_BYTES:
        raise GeneralFailureError(
            f"{total} bytes of constants do not fit into a TFLite file, "
            f"which holds {MAX_FILE_BYTES} at most"
        )
    return _File(graph, total).finish(inputs, outputs)


def _graph_of(
    segment: Segment, barriers: frozenset[int]
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


class _File:
    """Builds the flatbuffer; what is referred to has to be written first.

    Shapes, quantisation and options that occur again are referred to again: writing
    small tables is what most of the time goes to.
    """

    def __init__(self, graph: Graph, constant_bytes: int) -> None:
        tables = len(graph.tensors) + len(graph.operators) + 2 * len(graph.constants)
        # Large enough from the start: growing would copy all that is there.
        self._builder = flatbuffers.Builder(
            constant_bytes + _BYTES_PER_TABLE * (tables + 8)
        )
        self._graph = graph
        self._shapes: dict[Shape, Any] = {}
        self._quantizations: dict[object, int] = {}
        self._tables: dict[Options, int] = {}

    def finish(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> memoryview:
        """Return the file whose subgraph has these inputs and outputs."""
        builder, graph = self._builder, self._graph
        buffers = [self._empty_buffer(), *map(self._buffer, graph.constants)]
        named = {tensor.number for tensor in (*inputs, *outputs)}
        tensors = [
            self._tensor(tensor, is_named=tensor.number in named)
            for tensor in graph.tensors
        ]
        codes: dict[tuple[str, int], int] = {}
        operators = [self._operator(operator, codes) for operator in graph.operators]
        subgraph = self._subgraph(
            self._offsets(tensors),
            self._integers([tensor.number for tensor in inputs]),
            self._integers([tensor.number for tensor in outputs]),
            self._offsets(operators),
        )
        code_vector = self._offsets([self._code(*code) for code in codes])
        subgraphs = self._offsets([subgraph])
        buffer_vector = self._offsets(buffers)
        tflite.ModelStart(builder)
        tflite.ModelAddVersion(builder, _SCHEMA_VERSION)
        tflite.ModelAddOperatorCodes(builder, code_vector)
        tflite.ModelAddSubgraphs(builder, subgraphs)
        tflite.ModelAddBuffers(builder, buffer_vector)
        builder.Finish(tflite.ModelEnd(builder), _IDENTIFIER)
        # `Output` would copy the file.
        return memoryview(builder.Bytes)[builder.Head() :]

    def _empty_buffer(self) -> int:
        tflite.BufferStart(self._builder)
        return int(tflite.BufferEnd(self._builder))

    def _buffer(self, constant: Constant) -> int:
        builder = self._builder
        data = constant.data()
        builder.Prep(_BUFFER_ALIGNMENT, data.size)
        vector = builder.CreateNumpyVector(data)
        tflite.BufferStart(builder)
        tflite.BufferAddData(builder, vector)
        return int(tflite.BufferEnd(builder))

    def _tensor(self, tensor: Tensor, *, is_named: bool) -> int:
        builder = self._builder
        name = builder.CreateString(f"tensor_{tensor.number}") if is_named else None
        shape = self._shapes.get(tensor.shape)
        if shape is None:
            shape = self._shapes[tensor.shape] = self._integers(tensor.shape)
        quantization = self._quantization(tensor)
        tflite.TensorStart(builder)
        tflite.TensorAddShape(builder, shape)
        tflite.TensorAddType(builder, getattr(tflite.TensorType, tensor.type))
        tflite.TensorAddBuffer(
            builder, 0 if tensor.buffer is None else tensor.buffer + 1
        )
        if name is not None:
            tflite.TensorAddName(builder, name)
        if quantization is not None:
            tflite.TensorAddQuantization(builder, quantization)
        tflite.TensorAddHasRank(builder, True)
        return int(tflite.TensorEnd(builder))

    def _quantization(self, tensor: Tensor) -> int | None:
        scales = tensor.scales or ((tensor.scale,) if tensor.scale else ())
        if not scales:
            return None
        key = scales, tensor.zero_point, tensor.axis
        if key not in self._quantizations:
            self._quantizations[key] = self._new_quantization(*key)
        return self._quantizations[key]

    def _new_quantization(
        self, scales: tuple[float, ...], zero_point: int, axis: int
    ) -> int:
        builder = self._builder
        zero_points = np.full(len(scales), zero_point, np.int64)
        scale_vector = builder.CreateNumpyVector(np.array(scales, np.float32))
        zero_vector = builder.CreateNumpyVector(zero_points)
        tflite.QuantizationParametersStart(builder)
        tflite.QuantizationParametersAddScale(builder, scale_vector)
        tflite.QuantizationParametersAddZeroPoint(builder, zero_vector)
        tflite.QuantizationParametersAddQuantizedDimension(builder, axis)
        return int(tflite.QuantizationParametersEnd(builder))

    def _operator(self, operator: Operator, codes: dict[tuple[str, int], int]) -> int:
        builder = self._builder
        code = codes.setdefault((operator.name, operator.version), len(codes))
        inputs = self._integers(operator.inputs)
        outputs = self._integers(operator.outputs)
        table = None
        if operator.options is not None:
            table = self._tables.get(operator.options)
            if table is None:
                table = self._options(operator.options)
                self._tables[operator.options] = table
        tflite.OperatorStart(builder)
        tflite.OperatorAddOpcodeIndex(builder, code)
        tflite.OperatorAddInputs(builder, inputs)
        tflite.OperatorAddOutputs(builder, outputs)
        if table is not None and operator.options is not None:
            kind = getattr(tflite.BuiltinOptions, operator.options.kind)
            tflite.OperatorAddBuiltinOptionsType(builder, kind)
            tflite.OperatorAddBuiltinOptions(builder, table)
        return int(tflite.OperatorEnd(builder))

    def _options(self, options: Options) -> int:
        builder, kind = self._builder, options.kind
        getattr(tflite, f"{kind}Start")(builder)
        for field, value in options.fields:
            getattr(tflite, f"{kind}Add{field}")(builder, value)
        return int(getattr(tflite, f"{kind}End")(builder))

    def _code(self, name: str, version: int) -> int:
        builder = self._builder
        number = getattr(tflite.BuiltinOperator, name)
        tflite.OperatorCodeStart(builder)
        tflite.OperatorCodeAddDeprecatedBuiltinCode(
            builder, min(number, _MAX_DEPRECATED_CODE)
        )
        tflite.OperatorCodeAddVersion(builder, version)
        tflite.OperatorCodeAddBuiltinCode(builder, number)
        return int(tflite.OperatorCodeEnd(builder))

    def _subgraph(self, tensors: int, inputs: int, outputs: int, operators: int) -> int:
        builder = self._builder
        name = builder.CreateString("main")
        tflite.SubGraphStart(builder)
        tflite.SubGraphAddTensors(builder, tensors)
        tflite.SubGraphAddInputs(builder, inputs)
        tflite.SubGraphAddOutputs(builder, outputs)
        tflite.SubGraphAddOperators(builder, operators)
        tflite.SubGraphAddName(builder, name)
        return int(tflite.SubGraphEnd(builder))

    def _integers(self, values: Sequence[int]) -> Any:
        return self._builder.CreateNumpyVector(np.array(values, np.int32))

    def _offsets(self, offsets: Sequence[int]) -> Any:
        builder = self._builder
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        return builder.EndVector()
