"""Operations on each element alone, or on pairs of elements that broadcast.

Activations, arithmetic, comparison and logic; SOFTMAX stands with the activations as
its shape follows the same rule.

Source: 1.3/types.hal (RELU to SOFTMAX, ADD to PRELU, ABS to SQRT, EQUAL to SELECT);
AIDL feature level 7 for quantised RSQRT.
"""

import numpy as np

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.declaring import declare
from asyncnn.hal.operations.shapes import broadcast_inputs, same_as_input
from asyncnn.hal.operations.signature import (
    V1_2,
    AnyCheck,
    OperationSignature,
    Requirement,
    TypedCheck,
    Usage,
)


def _implied_axis_is_old(usage: Usage) -> Requirement | None:
    """Before 1.2 softmax knew two axes, or four as of an image."""
    rank = len(usage.input("input").dimensions)
    if usage.has("axis") or rank in (0, 2, 4):
        return None
    return Requirement(V1_2, f"rank {rank} is neither 2 nor 4")


def _softmax_shape(operation: BoundOperation) -> tuple[Shape]:
    operation.require_if_known(1, lambda beta: beta > 0, "beta is not positive")
    return same_as_input(operation)


def _output_scale_exceeds_product(usage: Usage) -> Requirement | None:
    first, second = usage.input("first"), usage.input("second")
    product = np.float32(first.scale) * np.float32(second.scale)
    if not np.float32(usage.output.scale) > product:
        raise usage.error(
            "output", f"has scale {usage.output.scale}, not above {product} of inputs"
        )
    return None


def _arithmetic(operation: str, *checks: AnyCheck) -> OperationSignature:
    """Declare an operation with a fused activation; both inputs broadcast."""
    arguments = "first second [1-4], activation: INT32"
    return declare(operation, arguments, broadcast_inputs, *checks)


def _comparison(name: str) -> OperationSignature:
    operation = f"{name} 1.2: B8 F16 F32 I32 Q8; 1.3: Q8S"
    return declare(operation, "first second -> output: B8", broadcast_inputs)


def _select_shape(operation: BoundOperation) -> tuple[Shape]:
    shape = operation.shape(0)
    operation.check_shape(1, shape, "if_true")
    operation.check_shape(2, shape, "if_false")
    return (shape,)


_RECTIFIED = "1.0: F32 Q8; 1.2: F16; 1.3: Q8S"
_COMPARABLE = "1.2: F16 F32 I32 Q8; 1.3: Q8S"
_FLOATS = "1.2: F16 F32"
_SCALED = "T/S {}: F16/FLOAT16 F32/FLOAT32"

SIGNATURES = (
    declare(f"RELU {_RECTIFIED}", "input [1-4]", same_as_input),
    declare(f"RELU1 {_RECTIFIED}", "input [1-4]", same_as_input),
    declare(f"RELU6 {_RECTIFIED}", "input [1-4]", same_as_input),
    declare(f"LOGISTIC {_RECTIFIED}", "input [1-4] -> output = unit", same_as_input),
    declare(
        "TANH 1.0: F32; 1.2: F16 Q8; 1.3: Q8S",
        "input [1-4] -> output = signed_unit",
        same_as_input,
    ),
    declare(f"ELU {_SCALED.format('1.3')}", "input, alpha: S", same_as_input),
    declare("HARD_SWISH 1.3: F16 F32 Q8 Q8S", "input", same_as_input),
    declare(
        "SOFTMAX T/S 1.0: F32/FLOAT32 Q8/FLOAT32; 1.2: F16/FLOAT16; 1.3: Q8S/FLOAT32",
        "input [1-4], beta: S | axis: INT32 @1.2 -> output = unit",
        _softmax_shape,
        _implied_axis_is_old,
    ),
    declare(
        f"LOG_SOFTMAX {_SCALED.format('1.2')}",
        "input, beta: S, axis: INT32",
        same_as_input,
    ),
    _arithmetic("ADD 1.0: F32 Q8; 1.2: F16; 1.3: Q8S I32"),
    _arithmetic("SUB 1.1: F32; 1.2: F16 Q8; 1.3: Q8S I32"),
    _arithmetic(
        "MUL 1.0: F32 Q8; 1.2: F16; 1.3: Q8S I32",
        TypedCheck("first", QUANT8_TYPES, _output_scale_exceeds_product),
    ),
    _arithmetic("DIV 1.1: F32; 1.2: F16; 1.3: I32"),
    declare(f"MAXIMUM {_COMPARABLE}", "first second", broadcast_inputs),
    declare(f"MINIMUM {_COMPARABLE}", "first second", broadcast_inputs),
    declare(f"POW {_FLOATS}", "base exponent", broadcast_inputs),
    declare("PRELU 1.2: F16 F32 Q8; 1.3: Q8S", "input alpha", broadcast_inputs),
    declare(f"ABS {_FLOATS}; 1.3: I32", "input", same_as_input),
    declare(f"EXP {_FLOATS}", "input", same_as_input),
    declare("FLOOR 1.0: F32; 1.2: F16", "input [1-4]", same_as_input),
    declare(f"LOG {_FLOATS}", "input", same_as_input),
    declare("NEG 1.2: F16 F32 I32", "input", same_as_input),
    declare(f"RSQRT {_FLOATS}; AIDL_V3: Q8 Q8S", "input", same_as_input),
    declare(f"SIN {_FLOATS}", "input", same_as_input),
    declare(f"SQRT {_FLOATS}", "input", same_as_input),
    _comparison("EQUAL"),
    _comparison("GREATER"),
    _comparison("GREATER_EQUAL"),
    _comparison("LESS"),
    _comparison("LESS_EQUAL"),
    _comparison("NOT_EQUAL"),
    declare("LOGICAL_AND 1.2: B8", "first second", broadcast_inputs),
    declare("LOGICAL_OR 1.2: B8", "first second", broadcast_inputs),
    declare("LOGICAL_NOT 1.2: B8", "input", same_as_input),
    declare(f"SELECT {_COMPARABLE}", "condition: B8, if_true if_false", _select_shape),
)
