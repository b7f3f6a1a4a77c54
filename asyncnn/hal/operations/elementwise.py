"""Operations on each element alone, or on pairs of elements that broadcast.

Activations, arithmetic, comparison and logic; SOFTMAX stands with the activations as
its shape follows the same rule.

Source: 1.3/types.hal (RELU to SOFTMAX, ADD to PRELU, ABS to SQRT, EQUAL to SELECT);
AIDL feature level 7 for quantised RSQRT.
"""

import numpy as np

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.shapes import (
    broadcast_inputs,
    require_if_known,
    require_shape,
    same_as_input,
)
from asyncnn.hal.operations.signature import (
    AIDL_V3,
    B8,
    F16,
    F32,
    FLOAT16,
    FLOAT32,
    I32,
    INT32,
    Q8,
    Q8S,
    UP_TO_4,
    V1_0,
    V1_1,
    V1_2,
    V1_3,
    AnyCheck,
    Argument,
    Layout,
    OperationSignature,
    Quantization,
    Requirement,
    TypedCheck,
    TypeRow,
    Usage,
    arguments,
    row,
    rows,
)
from asyncnn.hal.types import OperationType

UNIT_RANGE: Quantization = {Q8: (1 / 256, 0), Q8S: (1 / 256, -128)}
"""Quantisation of results in [0, 1)."""

SIGNED_UNIT_RANGE: Quantization = {Q8: (1 / 128, 128), Q8S: (1 / 128, 0)}
"""Quantisation of results in [-1, 1)."""

_RECTIFIED = rows(V1_0, F32, Q8) + rows(V1_2, F16) + rows(V1_3, Q8S)


def _activation(
    type_: OperationType,
    types: tuple[TypeRow, ...] = _RECTIFIED,
    quantization: Quantization | None = None,
) -> OperationSignature:
    output = Argument("output", quantization=quantization)
    return OperationSignature(
        type_,
        rows=types,
        layouts=(Layout((Argument("input", ranks=UP_TO_4),), (output,)),),
        shape=same_as_input,
    )


def _implied_axis_is_old(usage: Usage) -> Requirement | None:
    """Before 1.2 softmax knew two axes, or four as of an image."""
    rank = len(usage.input("input").dimensions)
    if usage.has("axis") or rank in (0, 2, 4):
        return None
    return Requirement(V1_2, f"rank {rank} is neither 2 nor 4")


def _softmax_shape(operation: BoundOperation) -> tuple[Shape]:
    require_if_known(operation, 1, lambda beta: beta > 0, "beta is not positive")
    return same_as_input(operation)


_FLOATS = rows(V1_2, F16, F32)


def _output_scale_exceeds_product(usage: Usage) -> Requirement | None:
    first, second = usage.input("first"), usage.input("second")
    product = np.float32(first.scale) * np.float32(second.scale)
    if not np.float32(usage.output.scale) > product:
        raise usage.error(
            "output", f"has scale {usage.output.scale}, not above {product} of inputs"
        )
    return None


def _arithmetic(
    type_: OperationType, types: tuple[TypeRow, ...], *checks: AnyCheck
) -> OperationSignature:
    """Declare an operation with a fused activation; both inputs broadcast."""
    inputs = arguments("T", "first", "second", ranks=UP_TO_4)
    return OperationSignature(
        type_,
        rows=types,
        layouts=(Layout((*inputs, Argument("activation", INT32))),),
        shape=broadcast_inputs,
        checks=checks,
    )


def _binary(
    type_: OperationType, types: tuple[TypeRow, ...], first: str, second: str
) -> OperationSignature:
    return OperationSignature(
        type_,
        rows=types,
        layouts=(Layout(arguments("T", first, second)),),
        shape=broadcast_inputs,
    )


def _unary(
    type_: OperationType, types: tuple[TypeRow, ...], ranks: tuple[int, ...] = ()
) -> OperationSignature:
    return OperationSignature(
        type_,
        rows=types,
        layouts=(Layout((Argument("input", ranks=ranks),)),),
        shape=same_as_input,
    )


_COMPARABLE = rows(V1_2, F16, F32, I32, Q8) + rows(V1_3, Q8S)


_COMPARED = rows(V1_2, B8, F16, F32, I32, Q8) + rows(V1_3, Q8S)


def _comparison(type_: OperationType) -> OperationSignature:
    return OperationSignature(
        type_,
        rows=_COMPARED,
        layouts=(Layout(arguments("T", "first", "second"), (Argument("output", B8),)),),
        shape=broadcast_inputs,
    )


def _logic(type_: OperationType) -> OperationSignature:
    return OperationSignature(
        type_,
        rows=rows(V1_2, B8),
        layouts=(Layout(arguments("T", "first", "second")),),
        shape=broadcast_inputs,
    )


def _select_shape(operation: BoundOperation) -> tuple[Shape]:
    shape = operation.shape(0)
    require_shape(operation, 1, shape, "if_true")
    require_shape(operation, 2, shape, "if_false")
    return (shape,)


SIGNATURES = (
    _activation(OperationType.RELU),
    _activation(OperationType.RELU1),
    _activation(OperationType.RELU6),
    _activation(OperationType.LOGISTIC, quantization=UNIT_RANGE),
    _activation(
        OperationType.TANH,
        rows(V1_0, F32) + rows(V1_2, F16, Q8) + rows(V1_3, Q8S),
        SIGNED_UNIT_RANGE,
    ),
    OperationSignature(
        OperationType.ELU,
        rows=(row(V1_3, T=F16, S=FLOAT16), row(V1_3, T=F32, S=FLOAT32)),
        layouts=(Layout((Argument("input"), Argument("alpha", "S"))),),
        shape=same_as_input,
    ),
    OperationSignature(
        OperationType.HARD_SWISH,
        rows=rows(V1_3, F16, F32, Q8, Q8S),
        layouts=(Layout((Argument("input"),)),),
        shape=same_as_input,
    ),
    OperationSignature(
        OperationType.SOFTMAX,
        rows=(
            row(V1_0, T=F32, S=FLOAT32),
            row(V1_0, T=Q8, S=FLOAT32),
            row(V1_2, T=F16, S=FLOAT16),
            row(V1_3, T=Q8S, S=FLOAT32),
        ),
        layouts=(
            Layout(
                (
                    Argument("input", ranks=UP_TO_4),
                    Argument("beta", "S"),
                    Argument("axis", INT32, since=V1_2),
                ),
                (Argument("output", quantization=UNIT_RANGE),),
                counts=(2, 3),
            ),
        ),
        shape=_softmax_shape,
        checks=(_implied_axis_is_old,),
    ),
    OperationSignature(
        OperationType.LOG_SOFTMAX,
        rows=(row(V1_2, T=F16, S=FLOAT16), row(V1_2, T=F32, S=FLOAT32)),
        layouts=(
            Layout((Argument("input"), Argument("beta", "S"), Argument("axis", INT32))),
        ),
        shape=same_as_input,
    ),
    _arithmetic(
        OperationType.ADD,
        rows(V1_0, F32, Q8) + rows(V1_2, F16) + rows(V1_3, Q8S, I32),
    ),
    _arithmetic(
        OperationType.SUB,
        rows(V1_1, F32) + rows(V1_2, F16, Q8) + rows(V1_3, Q8S, I32),
    ),
    _arithmetic(
        OperationType.MUL,
        rows(V1_0, F32, Q8) + rows(V1_2, F16) + rows(V1_3, Q8S, I32),
        TypedCheck("first", QUANT8_TYPES, _output_scale_exceeds_product),
    ),
    _arithmetic(
        OperationType.DIV,
        rows(V1_1, F32) + rows(V1_2, F16) + rows(V1_3, I32),
    ),
    _binary(OperationType.MAXIMUM, _COMPARABLE, "first", "second"),
    _binary(OperationType.MINIMUM, _COMPARABLE, "first", "second"),
    _binary(OperationType.POW, _FLOATS, "base", "exponent"),
    _binary(
        OperationType.PRELU,
        rows(V1_2, F16, F32, Q8) + rows(V1_3, Q8S),
        "input",
        "alpha",
    ),
    _unary(OperationType.ABS, _FLOATS + rows(V1_3, I32)),
    _unary(OperationType.EXP, _FLOATS),
    _unary(OperationType.FLOOR, rows(V1_0, F32) + rows(V1_2, F16), UP_TO_4),
    _unary(OperationType.LOG, _FLOATS),
    _unary(OperationType.NEG, _FLOATS + rows(V1_2, I32)),
    _unary(OperationType.RSQRT, _FLOATS + rows(AIDL_V3, Q8, Q8S)),
    _unary(OperationType.SIN, _FLOATS),
    _unary(OperationType.SQRT, _FLOATS),
    *map(
        _comparison,
        (
            OperationType.EQUAL,
            OperationType.GREATER,
            OperationType.GREATER_EQUAL,
            OperationType.LESS,
            OperationType.LESS_EQUAL,
            OperationType.NOT_EQUAL,
        ),
    ),
    _logic(OperationType.LOGICAL_AND),
    _logic(OperationType.LOGICAL_OR),
    OperationSignature(
        OperationType.LOGICAL_NOT,
        rows=rows(V1_2, B8),
        layouts=(Layout((Argument("input"),)),),
        shape=same_as_input,
    ),
    OperationSignature(
        OperationType.SELECT,
        rows=rows(V1_2, F16, F32, I32, Q8) + rows(V1_3, Q8S),
        layouts=(
            Layout((Argument("condition", B8), *arguments("T", "if_true", "if_false"))),
        ),
        shape=_select_shape,
    ),
)
