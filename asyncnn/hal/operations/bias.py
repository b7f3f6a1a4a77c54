"""Scale rules that convolutions and FULLY_CONNECTED share.

An int32 bias is added to the accumulator of ``input * weights``, so that its scale is
the product of theirs.
"""

import numpy as np

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import BoundOperation
from asyncnn.hal.operations.shapes import require
from asyncnn.hal.operations.signature import (
    Q8,
    V1_2,
    Requirement,
    TypedCheck,
    Usage,
)

_TOLERATED_STEPS = 0.02
"""Error of one bias unit, in output steps, that does not show in the result."""


def output_scale_rule_is_old(weights: str) -> TypedCheck:
    """Return the check that before 1.2 limits the product of the input scales.

    ``weights`` names the second factor. The product has to be below the output scale.
    """

    def check(usage: Usage) -> Requirement | None:
        image, filter_ = usage.input("input"), usage.input(weights)
        product = np.float32(image.scale) * np.float32(filter_.scale)
        if np.float32(usage.output.scale) > product:
            return None
        return Requirement(V1_2, f"the output scale is not above {product} of inputs")

    return TypedCheck("input", frozenset({Q8}), check, until=V1_2)


def check_bias_scale(operation: BoundOperation) -> None:
    """Check the scale of a bias, input 2, against that of input 0 times input 1.

    :raises OperationFailedError: if the difference would show in the output.
    """
    image, weights, bias = (operation.input(i) for i in range(3))
    if weights.type not in QUANT8_TYPES:
        return
    product = image.scale * weights.scale
    require(
        operation,
        abs(product - bias.scale) <= _TOLERATED_STEPS * operation.outputs[0].scale,
        f"the bias has scale {bias.scale}, expected {product}",
    )
    require(
        operation,
        bias.zero_point == 0,
        f"the bias has zero point {bias.zero_point}, expected 0",
    )
