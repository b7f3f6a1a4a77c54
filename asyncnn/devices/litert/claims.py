"""Which operations the accelerated engine computes: those that can be written.

An operation is claimed if it can be written, in a graph of its own, which costs
microseconds, as constants are not copied. What is claimed is computed within the HAL's
tolerance: floats in float32, float16 likewise; codes at most one step from the kernels,
which follow one stated rounding. What maxima, minima and rectifiers make of NaN is left
open, as the HAL leaves it.
"""

from collections.abc import Sequence

from asyncnn.devices.litert import (
    operators_axiswise,
    operators_convolution,
    operators_elementwise,
    operators_layout,
    operators_recurrent,
    operators_windows,
)
from asyncnn.devices.litert.operand_tensors import NotWrittenError, OperandTensors
from asyncnn.devices.litert.operation_writer import (
    OperationWriter,
    Rule,
    check_operands,
)
from asyncnn.devices.litert.tflite_graph import WrittenGraph, WrittenTensor
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operations.bound import BoundOperation, ValueNeededError
from asyncnn.hal.types import OperationType

RULES: dict[OperationType, Rule] = {
    **operators_axiswise.RULES,
    **operators_convolution.RULES,
    **operators_elementwise.RULES,
    **operators_layout.RULES,
    **operators_recurrent.RULES,
    **operators_windows.RULES,
}
"""How each operation is written that is claimed in some form."""


_SLOWER = "LiteRT has only plain kernels, slower than those here by far"
_DATA = "the shapes of its results depend on data"
_STATE = "TFLite keeps its state in variables, the HAL in operands"
_NOTHING = "it computes nothing of what comes with the request"
_RARE = "rare, and not written"
_IN_C = "a kernel in C computes it, in the same job"
_NO_OPERATOR = "TFLite has no such operator"

NOT_CLAIMED: dict[OperationType, str] = {
    OperationType.LOGICAL_AND: _IN_C,
    OperationType.LOGICAL_OR: _IN_C,
    OperationType.LOGICAL_NOT: _IN_C,
    OperationType.MIRROR_PAD: _SLOWER,
    OperationType.SIN: _SLOWER + ", and XNNPACK is wrong far from 0",
    OperationType.TOPK_V2: "of equal elements LiteRT puts another one first",
    OperationType.FILL: _NOTHING,
    OperationType.RANK: _NOTHING,
    OperationType.RANDOM_MULTINOMIAL: "it draws other numbers",
    OperationType.IF: "control flow stays with the engine",
    OperationType.WHILE: "control flow stays with the engine",
    OperationType.BOX_WITH_NMS_LIMIT: _DATA,
    OperationType.GENERATE_PROPOSALS: _DATA,
    OperationType.DETECTION_POSTPROCESSING: _RARE,
    OperationType.AXIS_ALIGNED_BBOX_TRANSFORM: _NO_OPERATOR,
    OperationType.HEATMAP_MAX_KEYPOINT: _NO_OPERATOR,
    OperationType.ROI_ALIGN: _NO_OPERATOR,
    OperationType.ROI_POOLING: _NO_OPERATOR,
    OperationType.HASHTABLE_LOOKUP: _RARE,
    OperationType.LSH_PROJECTION: _RARE,
    OperationType.LSTM: _STATE,
    OperationType.RNN: _STATE,
    OperationType.SVDF: _STATE,
    OperationType.BIDIRECTIONAL_SEQUENCE_LSTM: _STATE,
    OperationType.BIDIRECTIONAL_SEQUENCE_RNN: _STATE,
    OperationType.UNIDIRECTIONAL_SEQUENCE_RNN: _STATE,
    OperationType.QUANTIZED_16BIT_LSTM: _RARE,
    OperationType.QUANTIZED_LSTM: _IN_C,
}
"""Why operations are left to the kernels in every form."""


class WrittenOperation:
    """``operation`` in a ``graph`` of its own, whose operands its numbers are.

    To write it again in the graph of its segment takes as long as claiming it. So it is
    added there as it is, where operands have the forms that it was written for: those
    in which the HAL stores them.
    """

    def __init__(self, operation: BoundOperation) -> None:
        self.graph = WrittenGraph()
        self.values = OperandTensors(self.graph)
        count = len(operation.inputs)
        self.inputs = range(count)
        self.outputs = range(count, count + len(operation.outputs))
        for index, operand in enumerate(operation.inputs):
            if operand is not None and operand.value is None:
                self.values.add_input(index, operand)

    def add_to(
        self,
        graph: WrittenGraph,
        values: OperandTensors,
        inputs: Sequence[int],
        outputs: Sequence[int],
    ) -> bool:
        """Add it to ``graph``; ``inputs`` and ``outputs`` number its operands there.

        False if that would not be what writing it there gives: an operand has another
        form, or more than one.
        """
        known: dict[int, WrittenTensor] = {}
        made: list[tuple[int, WrittenTensor]] = []
        for index in self.values.known():
            form = self.values.only_form(index)
            if form is None:
                return False
            if index in self.outputs:
                made.append((outputs[index - len(self.inputs)], form))
                continue
            there = values.only_form(inputs[index])
            if there is None or there.type != form.type:
                return False
            known[form.number] = there
        tensors = graph.append(self.graph, known)
        for index, form in made:
            values.put(index, tensors[form.number])
        return True


def claims(operation: BoundOperation) -> bool:
    """Return whether TFLite can say ``operation``, whose shapes are all known."""
    return refusal(operation) is None


def refusal(operation: BoundOperation) -> str | None:
    """Return why ``operation`` is not claimed; None if it is."""
    try:
        written(operation)
    except GeneralFailureError as error:
        return str(error)
    return None


def written(operation: BoundOperation) -> WrittenOperation:
    """Return ``operation``, whose shapes are all known, in a graph of its own.

    :raises GeneralFailureError: if it is not claimed.
    """
    rule = _checked_rule(operation)
    made = WrittenOperation(operation)
    parts = made.graph, made.values, operation, made.inputs, made.outputs
    _write(rule, OperationWriter(*parts))
    return made


def write_operation(
    graph: WrittenGraph,
    values: OperandTensors,
    operation: BoundOperation,
    inputs: Sequence[int],
    outputs: Sequence[int],
) -> None:
    """Add ``operation`` to ``graph``; ``inputs`` and ``outputs`` number its operands.

    :raises GeneralFailureError: if it is not claimed.
    """
    rule = _checked_rule(operation)
    _write(rule, OperationWriter(graph, values, operation, inputs, outputs))


def _write(rule: Rule, writer: OperationWriter) -> None:
    try:
        rule.write(writer)
    except ValueNeededError:
        name = writer.operation.type.name
        raise NotWrittenError(
            f"{name}: a parameter that comes with the request"
        ) from None


def _checked_rule(operation: BoundOperation) -> Rule:
    rule = _rule_of(operation)
    check_operands(operation, rule)
    return rule


def _rule_of(operation: BoundOperation) -> Rule:
    if not isinstance(operation.type, OperationType):
        raise NotWrittenError(f"{operation.type.name} is an extension's")
    if operation.type in RULES:
        return RULES[operation.type]
    reason = NOT_CLAIMED.get(operation.type, "it is unknown")
    raise NotWrittenError(f"{operation.type.name} is not claimed: {reason}")
