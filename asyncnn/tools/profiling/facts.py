"""What is known of an operation without measuring: kernel, rounding, bytes."""

import math
from collections.abc import Iterable, Sequence

import msgspec

from asyncnn.engine.delegation import Step
from asyncnn.engine.plan import Plan
from asyncnn.engine.workspace import MeasuringScratch
from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation, Shape
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.kernels import registry
from asyncnn.kernels.numerics import same_quantization

_CODES = QUANT8_TYPES | {
    OperandType.TENSOR_QUANT16_ASYMM,
    OperandType.TENSOR_QUANT16_SYMM,
    OperandType.TENSOR_QUANT8_SYMM,
}
_HALVES = frozenset({OperandType.TENSOR_FLOAT16, OperandType.FLOAT16})

_TWICE = frozenset(
    {
        *(OperationType.CONV_2D, OperationType.DEPTHWISE_CONV_2D),
        *(OperationType.GROUPED_CONV_2D, OperationType.TRANSPOSE_CONV_2D),
        *(OperationType.BATCH_MATMUL, OperationType.ROI_ALIGN),
        *(OperationType.ADD, OperationType.SUB, OperationType.MUL),
        OperationType.PRELU,
    }
)
"""Sums and products of codes that kernels round as fixed-point hardware does."""

_RECURRENT = frozenset(
    {OperationType.QUANTIZED_LSTM, OperationType.QUANTIZED_16BIT_LSTM}
)

_MOVING_FAMILIES = ("joining", "reshaping")
_MOVING = frozenset(
    {
        *(OperationType.MAX_POOL_2D, OperationType.TOPK_V2, OperationType.SELECT),
        *(OperationType.REDUCE_MAX, OperationType.REDUCE_MIN),
        *(OperationType.MAXIMUM, OperationType.MINIMUM),
        *(OperationType.EMBEDDING_LOOKUP, OperationType.HASHTABLE_LOOKUP),
        OperationType.RESIZE_NEAREST_NEIGHBOR,
    }
)
"""What only moves codes, unless the results are quantised in another way."""


class Facts(msgspec.Struct, frozen=True):
    """Bytes that an operation moves, and the shapes of its outputs."""

    input_bytes: int
    output_bytes: int
    weight_bytes: int
    shapes: tuple[Shape | None, ...]


def facts_of_part(part: Step) -> Facts:
    """Return the facts of an operation whose shapes are all known."""
    reads = [each for each in part.operation.inputs if each is not None]
    writes = part.operation.outputs
    return Facts(
        sum(_bytes(each) for each in reads if each.value is None),
        sum(map(_bytes, writes)),
        sum(_bytes(each) for each in reads if each.value is not None),
        tuple(each.shape for each in writes),
    )


def facts_of_run(
    plan: Plan,
    step: Step,
    inputs: Sequence[Array | None],
    outputs: Sequence[Array | None],
) -> Facts:
    """Return the facts of a step by the arrays that it has worked on."""
    constants = plan.constants.keys()
    read = dict(zip(step.inputs, inputs, strict=True))
    weights = [array for index, array in read.items() if index in constants]
    others = [array for index, array in read.items() if index not in constants]
    return Facts(
        _total(others),
        _total(outputs),
        _total(weights),
        tuple(None if array is None else array.shape for array in outputs),
    )


def _bytes(operand: BoundOperand) -> int:
    return math.prod(operand.shape or ()) * operand.dtype.itemsize


def _total(arrays: Iterable[Array | None]) -> int:
    return sum(array.nbytes for array in arrays if array is not None)


def temporary_bytes(plan: Plan, part: Step) -> int:
    """Return the bytes of its results in the arena, and of its kernel's scratch."""
    outputs = zip(part.outputs, part.operation.outputs, strict=True)
    own = sum(_bytes(made) for index, made in outputs if index in plan.arena.offsets)
    if part.kernel is None:
        return own
    scratch = MeasuringScratch()
    part.kernel(scratch)
    return own + scratch.transient_bytes + scratch.persistent_bytes


def rounding_of(operation: BoundOperation, *, by_engine: bool) -> str:
    """Say how results are rounded to codes or float16, or what they are otherwise.

    Source: the kernels' own words, and docs/accelerated.md for LiteRT.
    """
    output = operation.outputs[0]
    type_ = output.type
    if type_ in _HALVES:
        return "at segment's end" if by_engine else "once, to even"
    if type_ not in _CODES:
        return "exact" if output.dtype.kind in "iub" else output.dtype.name
    read = [
        each for each in operation.inputs if each is not None and each.type in _CODES
    ]
    family = registry.family_of(operation.type)
    is_moving = operation.type in _MOVING or family in _MOVING_FAMILIES
    if is_moving and all(same_quantization(each, output) for each in read):
        return "none"
    if by_engine:
        return "once, to even"
    if operation.type in _RECURRENT:
        return "each step"
    return "twice" if operation.type in _TWICE else "once, away"


def kernel_of(step: Step) -> str:
    """Return the name of the kernel of a step that no other engine computes."""
    name = registry.family_of(step.operation.type)
    return f"{name}, anew" if step.kernel is None and name else name
