"""Matrix products.

Source: 1.3/types.hal (FULLY_CONNECTED); AIDL feature level 6 (BATCH_MATMUL).
"""

import math

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.convolution import (
    check_bias_scale,
    output_scale_rule_is_old,
)
from asyncnn.hal.operations.declaring import declare
from asyncnn.hal.operations.signature import Requirement, Usage


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
    units, size = operation.shape_of_rank(1, 2)
    elements = math.prod(operation.shape_of_rank(0, 2, 3, 4))
    operation.require(units > 0, "the weights have no units")
    batches = operation.whole_quotient(elements, size, "number of input elements")
    operation.check_shape(2, (units,), "bias")
    check_bias_scale(operation)
    return ((batches, units),)


def _batch_matmul_shape(operation: BoundOperation) -> tuple[Shape]:
    left = operation.shape_of_rank(0, 2, 3, 4)
    right = operation.shape_of_rank(1, len(left))
    lines, inner = left[:-3:-1] if operation.boolean(2) else left[-2:]
    other_inner, columns = right[:-3:-1] if operation.boolean(3) else right[-2:]
    operation.require(
        left[:-2] == right[:-2] and inner == other_inner and 0 not in left + right,
        f"matrices {list(left)} and {list(right)} do not multiply",
    )
    return ((*left[:-2], lines, columns),)


SIGNATURES = (
    declare(
        "FULLY_CONNECTED T/B 1.0: F32/F32; 1.2: F16/F16; 1.0: Q8/I32; 1.3: Q8S/I32",
        "input [2-4], weights [2], bias: B [1], activation: INT32",
        _fully_connected_shape,
        _sizes_agree,
        output_scale_rule_is_old("weights"),
    ),
    declare(
        "BATCH_MATMUL AIDL_V2: F16 F32 I32 Q8S",
        "left right, adjoint_left adjoint_right: BOOL",
        _batch_matmul_shape,
    ),
)
