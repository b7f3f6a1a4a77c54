"""What operations and moves are expected to cost, as far as it is known beforehand.

A device declares its time and power for each operand type, relative to the CPU
(`Capabilities`). What an operation takes on the CPU is estimated of its operands: its
multiplications, the bytes that it touches, and something for beginning it. Estimates
are in microseconds of a usual CPU; what counts is how they compare.

Source: HAL 1.0 to 1.3/types.hal (Capabilities), and the HAL's runtime for which operand
type stands for an operation, and for IF and WHILE.
"""

import math
from collections.abc import Callable, Sequence

from asyncnn.hal.operands import element_size_bytes, is_tensor
from asyncnn.hal.performance import NO_PERFORMANCE_INFO, performance_of
from asyncnn.hal.types import (
    Capabilities,
    ExecutionPreference,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    PerformanceInfo,
    Subgraph,
)

BEGIN_US = 2.0
"""To begin an operation."""

MULTIPLICATIONS_PER_US = 5000.0
BYTES_PER_US = 4000.0

STEP_US = 25.0
"""To hand a partition to a device of this process, and to be told of its end."""

REMOTE_STEP_US = 120.0
"""The same, with a device of another process."""

MOVED_BYTES_PER_US = 10_000.0
"""To leave an intermediate tensor for another device: it is shared, and not copied."""

_DEEPEST = 32
"""Subgraphs that are nested deeper cost nothing: they may be nested without end."""

Choose = Callable[[PerformanceInfo], float]
"""Picks time or power."""

_CONVOLUTIONS = frozenset(
    {
        OperationType.CONV_2D,
        OperationType.GROUPED_CONV_2D,
        OperationType.TRANSPOSE_CONV_2D,
        OperationType.FULLY_CONNECTED,
    }
)
"""Each output element takes the elements of one of the filters: axis 0 counts these."""

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


def chosen_figure(preference: int) -> Choose:
    """Return what matters to a preference: power, or time."""
    if preference == ExecutionPreference.LOW_POWER:
        return lambda info: info.power_usage
    return lambda info: info.exec_time


def size_bytes(operand: Operand) -> int:
    """Return the bytes of an operand, 1 standing for axes that are open."""
    return _elements(operand) * max(1, element_size_bytes(operand.type))


def moving_us(operand: Operand) -> float:
    """Return what it costs to leave an operand for another device."""
    return size_bytes(operand) / MOVED_BYTES_PER_US


def step_us(*, is_remote: bool) -> float:
    """Return what each partition of a device costs beside its operations."""
    return REMOTE_STEP_US if is_remote else STEP_US


class ModelCosts:
    """The costs of the operations of one model, for any device."""

    def __init__(self, model: Model) -> None:
        self._model = model
        operations = model.main.operations
        self._work = [_work_us(each, model.main.operands) for each in operations]

    def of_main(self, capabilities: Capabilities, choose: Choose) -> tuple[float, ...]:
        """Return what each operation of the main subgraph costs on a device."""
        costs = _DeviceCosts(self._model, capabilities, choose)
        main = self._model.main
        return tuple(
            costs.of(main, operation, us, 0)
            for operation, us in zip(main.operations, self._work, strict=True)
        )


class _DeviceCosts:
    """The costs of one device; those of each referenced subgraph are found once."""

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
        inner = [
            self._of_referenced(subgraph.operands[index].location.offset, depth)
            for index in operation.inputs
            if subgraph.operands[index].lifetime == OperandLifeTime.SUBGRAPH
        ]
        own = self._capabilities.while_performance
        if operation.type == OperationType.IF:
            own, inner = self._capabilities.if_performance, [sum(inner) / 2]
        return BEGIN_US * self._choose(own) + sum(inner)

    def _of_referenced(self, number: int, depth: int) -> float:
        if number not in self._known:
            subgraph = self._model.referenced[number]
            self._known[number] = 0.0
            if depth < _DEEPEST:
                self._known[number] = sum(
                    self.of(
                        subgraph, each, _work_us(each, subgraph.operands), depth + 1
                    )
                    for each in subgraph.operations
                )
        return self._known[number]


def performance(
    model: Model, subgraph: Subgraph, operation: Operation, capabilities: Capabilities
) -> PerformanceInfo:
    """Return what a device declares for the type of an operation's first tensor.

    That is its first operand if none is a tensor. As bad as can be for a type that the
    device does not list.
    """
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


def _work_us(operation: Operation, operands: Sequence[Operand]) -> float:
    inputs = [operands[index] for index in operation.inputs]
    outputs = [operands[index] for index in operation.outputs]
    touched = sum(map(size_bytes, inputs)) + sum(map(size_bytes, outputs))
    multiplications = _multiplications(operation.type, inputs, outputs)
    return BEGIN_US + touched / BYTES_PER_US + multiplications / MULTIPLICATIONS_PER_US


def _multiplications(
    type_: int, inputs: Sequence[Operand], outputs: Sequence[Operand]
) -> float:
    if not inputs or not outputs:
        return 0.0
    results = _elements(outputs[0])
    if type_ in _CONVOLUTIONS and len(inputs) > 1:
        filters = inputs[1].dimensions
        return results * _elements(inputs[1]) / max(1, filters[0] if filters else 1)
    if type_ == OperationType.DEPTHWISE_CONV_2D and len(inputs) > 1:
        filters = inputs[1].dimensions
        return results * _elements(inputs[1]) / max(1, filters[-1] if filters else 1)
    if type_ == OperationType.BATCH_MATMUL:
        shape = inputs[0].dimensions
        return results * max(1, shape[-1] if shape else 1)
    if type_ in _RECURRENT:
        shape = inputs[0].dimensions
        rows = _elements(inputs[0]) / max(1, shape[-1] if shape else 1)
        return rows * sum(map(_elements, inputs[1:]))
    return 0.0


def _elements(operand: Operand) -> int:
    return math.prod(axis or 1 for axis in operand.dimensions)
