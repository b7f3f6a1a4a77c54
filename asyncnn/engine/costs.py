"""What an operation takes: one estimate, for every engine and device.

It counts multiply-adds and bytes by an operation's type and shapes, and takes them at
the `Speeds` of whoever computes: LiteRT's were measured here, where they were.
A device declares its time and power for each operand type, relative to the CPU that
runs the reference kernels (`Capabilities`); `ModelCosts` are estimates for such.

Source: HAL 1.0 to 1.3/types.hal (Capabilities), and the HAL's runtime for which operand
type stands for an operation, and for IF and WHILE.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from asyncnn.extensions.regions import region_of
from asyncnn.hal.operands import QUANT8_TYPES, bodies_of, element_size_bytes, is_tensor
from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.performance import NO_PERFORMANCE_INFO, performance_of
from asyncnn.hal.types import (
    BASE_MAX,
    Capabilities,
    ExecutionPreference,
    Model,
    OperandType,
    Operation,
    OperationType,
    PerformanceInfo,
    Subgraph,
)

if TYPE_CHECKING:
    from asyncnn.tflite.tables import Graph


class TypeSpeeds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one kind of numbers, in each nanosecond of a thread.

    ``macs`` are multiply-adds, ``depthwise_macs`` depthwise convolutions', and
    ``bytes`` those that are read or written.
    """

    macs: float
    depthwise_macs: float
    bytes: float


class Speeds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Speeds of float and of 8-bit operations, and what it takes to begin one."""

    floats: TypeSpeeds
    integers: TypeSpeeds
    call_ns: float = 300.0


USUAL = Speeds(TypeSpeeds(50.0, 12.5, 4.0), TypeSpeeds(100.0, 25.0, 4.0))
"""Of LiteRT on the slower of usual CPUs, where nothing was measured."""

_OF_KERNELS = Speeds(TypeSpeeds(5.0, 5.0, 4.0), TypeSpeeds(5.0, 5.0, 4.0), 2000.0)
"""Of the reference kernels there; what counts is how their estimates compare."""

_CHANNELS = 8
"""That filters are applied to at once: images of three take as long."""

_DEEPEST = 32
"""Subgraphs that are nested deeper cost nothing: they may be nested without end."""

_FILTERED = frozenset(
    {
        OperationType.CONV_2D,
        OperationType.GROUPED_CONV_2D,
        OperationType.FULLY_CONNECTED,
    }
)

_RECURRENT = frozenset(
    {
        OperationType.LSTM,
        OperationType.RNN,
        OperationType.SVDF,
        OperationType.QUANTIZED_LSTM,
        OperationType.QUANTIZED_16BIT_LSTM,
        OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM,
        OperationType.UNIDIRECTIONAL_SEQUENCE_RNN,
        OperationType.BIDIRECTIONAL_SEQUENCE_LSTM,
        OperationType.BIDIRECTIONAL_SEQUENCE_RNN,
    }
)
"""Each row of the first input is multiplied with all weights."""


Choose = Callable[[PerformanceInfo], float]
"""Picks time or power."""


def estimated_ns(operation: BoundOperation, speeds: Speeds = USUAL) -> int:
    """Return about how long ``operation`` takes; all shapes are known."""
    inputs = [() if each is None else each.shape or () for each in operation.inputs]
    outputs = [each.shape or () for each in operation.outputs]
    element = operation.outputs[0].type
    return int(_of_shapes_ns(operation.type, inputs, outputs, element, speeds))


def _of_shapes_ns(
    type_: int,
    inputs: Sequence[Shape],
    outputs: Sequence[Shape],
    element: int,
    speeds: Speeds,
) -> float:
    """Return the same of the shapes alone, and the type of elements."""
    of_type = speeds.integers if element in QUANT8_TYPES else speeds.floats
    is_depthwise = type_ == OperationType.DEPTHWISE_CONV_2D
    speed = of_type.depthwise_macs if is_depthwise else of_type.macs
    elements = sum(map(math.prod, inputs)) + sum(map(math.prod, outputs))
    moving_ns = elements * max(1, element_size_bytes(element)) / of_type.bytes
    return speeds.call_ns + moving_ns + _multiply_adds(type_, inputs, outputs) / speed


_ALIKE = {
    "CONV_2D": OperationType.CONV_2D,
    "CONV_3D": OperationType.CONV_2D,
    "DEPTHWISE_CONV_2D": OperationType.DEPTHWISE_CONV_2D,
    "FULLY_CONNECTED": OperationType.FULLY_CONNECTED,
    "TRANSPOSE_CONV": OperationType.TRANSPOSE_CONV_2D,
    "BATCH_MATMUL": OperationType.BATCH_MATMUL,
}
"""Of TFLite's operators, those that take what operations do, not what they move."""


def estimated_of_graph_ns(graph: "Graph", speeds: Speeds = USUAL) -> list[int]:
    """Return the same of each operator of a TFLite file, by its recorded shapes."""
    survey, integers, floats = graph.survey, speeds.integers, speeds.floats
    found = []
    for each in _taken(graph) if survey is None else survey.operators:
        size, of_type = (1, integers) if each.is_scaled else (4, floats)
        speed = of_type.depthwise_macs if each.is_depthwise else of_type.macs
        moving_ns = each.elements * size / of_type.bytes
        found.append(int(speeds.call_ns + moving_ns + each.macs / speed))
    return found


class _Taken(NamedTuple):
    """What an operator takes, as `ShortOperator` has it."""

    elements: float
    macs: float
    is_scaled: int
    is_depthwise: int


def _taken(graph: "Graph") -> list[_Taken]:
    found = []
    tensors = graph.tensors
    counts = [math.prod(each.shape) for each in tensors]
    for each in graph.operators:
        name, outputs = each.name, each.outputs
        inputs = [index for index in each.inputs if index >= 0]
        macs = float(counts[outputs[0]]) if inputs and outputs else 0.0
        is_recurrent = name.endswith(("LSTM", "RNN"))
        type_ = OperationType.LSTM if is_recurrent else _ALIKE.get(name)
        if type_ is not None and inputs and outputs:
            read = [tensors[index].shape for index in inputs]
            if name == "TRANSPOSE_CONV":  # the shape of the output comes first
                read[:3] = read[2::-1]
            elif name == "CONV_3D" and len(read) > 1:  # filters are [..., outputs]
                read[1] = read[1][-1:] + read[1][:-1]
            macs = _multiply_adds(type_, read, [tensors[outputs[0]].shape])
        elements = sum([counts[index] for index in (*inputs, *outputs)])
        is_scaled = bool(outputs) and bool(tensors[outputs[0]].scales)
        found.append(_Taken(elements, macs, is_scaled, name == "DEPTHWISE_CONV_2D"))
    return found


def _multiply_adds(
    type_: int, inputs: Sequence[Shape], outputs: Sequence[Shape]
) -> float:
    if not inputs or not outputs:
        return 0.0
    first, output = inputs[0], math.prod(outputs[0])
    filters = inputs[1] if len(inputs) > 1 else ()
    if type_ in _FILTERED:  # filters are [outputs, ...]
        *taps, channels = filters[1:] or (1,)
        return output * math.prod(taps) * -(-channels // _CHANNELS) * _CHANNELS
    if type_ == OperationType.DEPTHWISE_CONV_2D:  # [1, height, width, outputs]
        return output * math.prod(filters[1:3])
    if type_ == OperationType.TRANSPOSE_CONV_2D:
        return math.prod(first) * math.prod(filters[:-1])
    if type_ == OperationType.BATCH_MATMUL:
        return output * max(first[-2:], default=1)
    if type_ in _RECURRENT:
        rows = math.prod(first[:-1])
        return rows * sum(map(math.prod, inputs[1:]))
    return output


def chosen_figure(preference: int) -> Choose:
    """Return what matters to a preference: power, or time."""
    if preference == ExecutionPreference.LOW_POWER:
        return lambda info: info.power_usage
    return lambda info: info.exec_time


class ModelCosts:
    """The costs of the operations of one model, for any device."""

    def __init__(self, model: Model) -> None:
        self._model = model
        main = model.main
        self._work = [_work_us(each, main) for each in main.operations]

    def of_main(self, capabilities: Capabilities, choose: Choose) -> tuple[float, ...]:
        """Return what each operation of the main subgraph costs on a device."""
        costs = _DeviceCosts(self._model, capabilities, choose)
        main = self._model.main
        return tuple(
            costs.of(main, operation, us, 0)
            for operation, us in zip(main.operations, self._work, strict=True)
        )


class _DeviceCosts:
    """The costs of one device; each referenced subgraph's are found once."""

    def __init__(
        self, model: Model, capabilities: Capabilities, choose: Choose
    ) -> None:
        self._model = model
        self._capabilities = capabilities
        self._choose = choose
        self._known: dict[int, float] = {}

    def of(
        self, subgraph: Subgraph, operation: Operation, work_us: float, depth: int
    ) -> float:
        """Return what an operation costs, with the subgraphs that it runs."""
        if operation.type not in (OperationType.IF, OperationType.WHILE):
            info = performance(self._model, subgraph, operation, self._capabilities)
            return work_us * self._choose(info)
        bodies = bodies_of(operation, subgraph.operands)
        inner = [self._of_referenced(number, depth) for number in bodies]
        own = self._capabilities.while_performance
        if operation.type == OperationType.IF:
            own, inner = self._capabilities.if_performance, [sum(inner) / 2]
        begin_us = _OF_KERNELS.call_ns / 1000
        return begin_us * self._choose(own) + sum(inner)

    def _of_referenced(self, number: int, depth: int) -> float:
        if number not in self._known:
            subgraph = self._model.referenced[number]
            self._known[number] = 0.0
            if depth < _DEEPEST:
                self._known[number] = sum(
                    self.of(subgraph, each, _work_us(each, subgraph), depth + 1)
                    for each in subgraph.operations
                )
        return self._known[number]


def performance(
    model: Model, subgraph: Subgraph, operation: Operation, capabilities: Capabilities
) -> PerformanceInfo:
    """Return what a device declares for the type of an operation's first tensor.

    That is its first operand if none is a tensor. As bad as can be for a type that the
    device does not list; but a region counts as one of float32, whatever it is given.
    """
    if operation.type > BASE_MAX and region_of(model) is not None:
        float32 = OperandType.TENSOR_FLOAT32
        return performance_of(capabilities.operand_performance, float32)
    operands = [subgraph.operands[index] for index in operation.inputs]
    tensors = [operand.type for operand in operands if is_tensor(operand.type)]
    type_ = next(iter([*tensors, *(operand.type for operand in operands)]), None)
    if model.relax_computation_float32_to_float16:
        if type_ == OperandType.TENSOR_FLOAT32:
            return capabilities.relaxed_float32_to_float16_performance_tensor
        if type_ == OperandType.FLOAT32:
            return capabilities.relaxed_float32_to_float16_performance_scalar
    try:
        known = OperandType(type_) if type_ is not None else OperandType.TENSOR_FLOAT32
    except ValueError:  # an extension's: nothing is declared of those
        return NO_PERFORMANCE_INFO
    if known is OperandType.SUBGRAPH:
        return NO_PERFORMANCE_INFO
    return performance_of(capabilities.operand_performance, known)


def _work_us(operation: Operation, subgraph: Subgraph) -> float:
    """Return what an operation takes the kernels; axes that are open count as 1."""

    def shapes(indexes: Sequence[int]) -> list[Shape]:
        dimensions = [subgraph.operands[index].dimensions for index in indexes]
        return [tuple(axis or 1 for axis in each) for each in dimensions]

    inputs, outputs = shapes(operation.inputs), shapes(operation.outputs)
    element = subgraph.operands[operation.outputs[0]].type if outputs else 0
    return _of_shapes_ns(operation.type, inputs, outputs, element, _OF_KERNELS) / 1000
