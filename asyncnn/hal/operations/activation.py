"""Activations, element-wise and along an axis.

Source: 1.3/types.hal (RELU, RELU1, RELU6, LOGISTIC, TANH, ELU, HARD_SWISH, SOFTMAX,
LOG_SOFTMAX).
"""

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.shapes import require_if_known, same_as_input
from asyncnn.hal.operations.signature import (
    F16,
    F32,
    FLOAT16,
    FLOAT32,
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
    Quantization,
    Requirement,
    TypeRow,
    Usage,
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
)
