"""Operations on each element alone, or on pairs of elements that broadcast.

Source: 1.3/types.hal (ADD, SUB, MUL, DIV, MAXIMUM, MINIMUM, POW, PRELU, ABS, EXP,
FLOOR, LOG, NEG, RSQRT, SIN, SQRT); AIDL feature level 7 for quantised RSQRT.
"""

import numpy as np

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.shapes import broadcast_inputs, same_as_input
from asyncnn.hal.operations.signature import (
    AIDL_V3,
    F16,
    F32,
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
    Requirement,
    TypedCheck,
    TypeRow,
    Usage,
    arguments,
    rows,
)
from asyncnn.hal.types import OperationType

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

SIGNATURES = (
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
)
