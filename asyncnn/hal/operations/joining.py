"""Operations that join several tensors into one, or cut one into several.

Source: 1.3/types.hal (CONCATENATION, SPLIT); AIDL feature level 6 (PACK).
"""

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.checks import quantization_is_kept
from asyncnn.hal.operations.shapes import (
    require,
    require_shape,
    shape_of_rank,
    whole_quotient,
)
from asyncnn.hal.operations.signature import (
    AIDL_V2,
    F16,
    F32,
    I32,
    INT32,
    Q8,
    Q8S,
    UP_TO_4,
    V1_0,
    V1_2,
    V1_3,
    Argument,
    Layout,
    OperationSignature,
    Requirement,
    TypedCheck,
    Usage,
    rows,
)
from asyncnn.hal.types import OperationType


def _concatenation_shape(operation: BoundOperation) -> tuple[Shape]:
    count = len(operation.inputs) - 1
    first = shape_of_rank(operation, 0, *UP_TO_4)
    axis = operation.integer(count)
    require(
        operation, 0 <= axis < len(first), f"axis {axis} is outside rank {len(first)}"
    )
    total = first[axis]
    for index in range(1, count):
        shape = shape_of_rank(operation, index, len(first))
        require_shape(
            operation,
            index,
            (*first[:axis], shape[axis], *first[axis + 1 :]),
            f"input {index}",
        )
        total += shape[axis]
    return ((*first[:axis], total, *first[axis + 1 :]),)


def _pack_shape(operation: BoundOperation) -> tuple[Shape]:
    count = len(operation.inputs) - 1
    shape = operation.shape(1)
    axis = operation.integer(0)
    require(
        operation, 0 <= axis <= len(shape), f"axis {axis} is outside rank {len(shape)}"
    )
    for index in range(2, count + 1):
        require_shape(operation, index, shape, f"input {index}")
    return ((*shape[:axis], count, *shape[axis:]),)


def _split_shape(operation: BoundOperation) -> tuple[Shape, ...]:
    shape = operation.shape(0)
    axis = operation.axis(1, len(shape))
    count = operation.integer(2)
    require(
        operation,
        count == len(operation.outputs),
        f"splits into {count}, but has {len(operation.outputs)} outputs",
    )
    part = whole_quotient(operation, shape[axis], count, f"axis {axis} of size")
    return ((*shape[:axis], part, *shape[axis + 1 :]),) * count


def _mixed_scales_are_new(usage: Usage) -> Requirement | None:
    output = usage.output
    for operand in usage.all("input"):
        if (operand.scale, operand.zero_point) != (output.scale, output.zero_point):
            return Requirement(V1_2, "an input is quantised unlike the output")
    return None


def _output_has_one_axis_more(usage: Usage) -> Requirement | None:
    ranks = {len(operand.dimensions) for operand in usage.all("input")} - {0}
    if usage.output.dimensions:
        ranks.add(len(usage.output.dimensions) - 1)
    if len(ranks) > 1:
        raise usage.error("input", "has a rank unlike the others, or the output's")
    return None


SIGNATURES = (
    OperationSignature(
        OperationType.CONCATENATION,
        rows=rows(V1_0, F32, Q8) + rows(V1_2, F16) + rows(V1_3, Q8S),
        layouts=(
            Layout(
                (
                    Argument("input", ranks=UP_TO_4, at_least=1),
                    Argument("axis", INT32),
                )
            ),
        ),
        shape=_concatenation_shape,
        checks=(
            TypedCheck("input", frozenset({Q8}), _mixed_scales_are_new, until=V1_2),
        ),
    ),
    OperationSignature(
        OperationType.PACK,
        rows=rows(AIDL_V2, F16, F32, I32, Q8, Q8S),
        layouts=(Layout((Argument("axis", INT32), Argument("input", at_least=1))),),
        shape=_pack_shape,
        checks=(quantization_is_kept, _output_has_one_axis_more),
    ),
    OperationSignature(
        OperationType.SPLIT,
        rows=rows(V1_2, F16, F32, I32, Q8) + rows(V1_3, Q8S),
        layouts=(
            Layout(
                (Argument("input"), Argument("axis", INT32), Argument("count", INT32)),
                (Argument("output", at_least=1),),
            ),
        ),
        shape=_split_shape,
    ),
)
