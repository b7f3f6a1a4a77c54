"""Which operations the accelerated engine computes: those that can be written.

`claims` writes the operation into a graph that is thrown away, which costs
microseconds, as constants are not copied. What is claimed is computed within the HAL's
tolerance: floats in float32, float16 likewise; codes at most one step from the kernels,
which follow one stated rounding. What maxima, minima and rectifiers make of NaN is left
open, as the HAL leaves it.
"""

from collections.abc import Sequence

from asyncnn.devices.litert import (
    operators_axiswise,
    operators_elementwise,
    operators_layout,
    operators_windows,
)
from asyncnn.devices.litert.graph import Graph
from asyncnn.devices.litert.operands import NotWrittenError, OperandTensors
from asyncnn.devices.litert.operation_writer import (
    OperationWriter,
    Rule,
    check_operands,
)
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operations.bound import BoundOperation, ValueNeededError
from asyncnn.hal.types import OperationType

RULES: dict[OperationType, Rule] = {
    **operators_axiswise.RULES,
    **operators_elementwise.RULES,
    **operators_layout.RULES,
    **operators_windows.RULES,
}
"""How each operation is written that is claimed in some form."""


def claims(operation: BoundOperation) -> bool:
    """Tell whether ``operation``, whose shapes are all known, is written in TFLite."""
    return refusal(operation) is None


def refusal(operation: BoundOperation) -> str | None:
    """Return why ``operation`` is not claimed; None if it is."""
    graph = Graph()
    values = OperandTensors(graph)
    inputs = range(len(operation.inputs))
    outputs = range(len(inputs), len(inputs) + len(operation.outputs))
    try:
        for index, operand in enumerate(operation.inputs):
            if operand is not None and operand.value is None:
                values.add_input(index, operand)
        write_operation(graph, values, operation, inputs, outputs)
    except GeneralFailureError as error:
        return str(error)
    return None


def write_operation(
    graph: Graph,
    values: OperandTensors,
    operation: BoundOperation,
    inputs: Sequence[int],
    outputs: Sequence[int],
) -> None:
    """Add ``operation`` to ``graph``; ``inputs`` and ``outputs`` number its operands.

    :raises GeneralFailureError: if it is not claimed.
    """
    rule = _rule_of(operation)
    check_operands(operation, rule)
    try:
        rule.write(OperationWriter(graph, values, operation, inputs, outputs))
    except ValueNeededError:
        name = operation.type.name
        raise NotWrittenError(
            f"{name}: a parameter that comes with the request"
        ) from None


def _rule_of(operation: BoundOperation) -> Rule:
    if isinstance(operation.type, OperationType) and operation.type in RULES:
        return RULES[operation.type]
    raise NotWrittenError(f"{operation.type.name} is not claimed")
