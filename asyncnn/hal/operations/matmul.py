"""Matrix products.

Source: 1.3/types.hal (FULLY_CONNECTED); AIDL feature level 6 (BATCH_MATMUL).
"""

import math

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.convolution import (
    check_bias_scale,
    output_scale_rule_is_old,
)
from asyncnn.hal.operations.shapes import (
    require,
    require_shape,
    shape_of_rank,
    whole_quotient,
)
from asyncnn.hal.operations.signature import (
    AIDL_V2,
    BOOL,
    F16,
    F32,
    I32,
    INT32,
    Q8,
    Q8S,
    V1_0,
    V1_2,
    V1_3,
    Argument,
    Layout,
    OperationSignature,
    Requirement,
    Usage,
    arguments,
    row,
    rows,
)
from asyncnn.hal.types import OperationType


def _sizes_agree(usage: Usage) -> Requirement | None:
    """Compare what is known of [.., size] input, [units, size] weights and bias."""
    image = usage.input("input").dimensions
    weights = usage.input("weights").dimensions
    bias = usage.input("bias").dimensions
    if not (image and weights and bias):
        return None
    units, size = weights
    if size and math.prod(image) % size:
        raise usage.error("input", f"of {list(image)} is no multiple of {size} inputs")
    if units and bias[0] and units != bias[0]:
        raise usage.error("bias", f"has {bias[0]} elements for {units} units")
    return None


def _fully_connected_shape(operation: BoundOperation) -> tuple[Shape]:
    units, size = shape_of_rank(operation, 1, 2)
    elements = math.prod(shape_of_rank(operation, 0, 2, 3, 4))
    require(operation, units > 0, "the weights have no units")
    batches = whole_quotient(operation, elements, size, "number of input elements")
    require_shape(operation, 2, (units,), "bias")
    check_bias_scale(operation)
    return ((batches, units),)


def _batch_matmul_shape(operation: BoundOperation) -> tuple[Shape]:
    left = shape_of_rank(operation, 0, 2, 3, 4)
    right = shape_of_rank(operation, 1, len(left))
    lines, inner = left[:-3:-1] if operation.boolean(2) else left[-2:]
    other_inner, columns = right[:-3:-1] if operation.boolean(3) else right[-2:]
    require(
        operation,
        left[:-2] == right[:-2] and inner == other_inner and 0 not in left + right,
        f"matrices {list(left)} and {list(right)} do not multiply",
    )
    return ((*left[:-2], lines, columns),)


SIGNATURES = (
    OperationSignature(
        OperationType.FULLY_CONNECTED,
        rows=(
            row(V1_0, T=F32, B=F32),
            row(V1_2, T=F16, B=F16),
            row(V1_0, T=Q8, B=I32),
            row(V1_3, T=Q8S, B=I32),
        ),
        layouts=(
            Layout(
                (
                    Argument("input", ranks=(2, 3, 4)),
                    Argument("weights", ranks=(2,)),
                    Argument("bias", "B", ranks=(1,)),
                    Argument("activation", INT32),
                )
            ),
        ),
        shape=_fully_connected_shape,
        checks=(_sizes_agree, output_scale_rule_is_old("weights")),
    ),
    OperationSignature(
        OperationType.BATCH_MATMUL,
        rows=rows(AIDL_V2, F16, F32, I32, Q8S),
        layouts=(
            Layout(
                (
                    *arguments("T", "left", "right"),
                    *arguments(BOOL, "adjoint_left", "adjoint_right"),
                )
            ),
        ),
        shape=_batch_matmul_shape,
    ),
)
