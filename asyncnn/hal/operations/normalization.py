"""Normalisation across channels, neighbours or an image.

Source: 1.3/types.hal (L2_NORMALIZATION, LOCAL_RESPONSE_NORMALIZATION,
INSTANCE_NORMALIZATION).
"""

from asyncnn.hal.operations.activation import SIGNED_UNIT_RANGE
from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.shapes import (
    require_if_known,
    same_as_input,
    shape_of_rank,
)
from asyncnn.hal.operations.signature import (
    BOOL,
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
    Requirement,
    Usage,
    arguments,
    row,
    rows,
)
from asyncnn.hal.types import OperationType


def _implied_axis_is_old(usage: Usage) -> Requirement | None:
    """Before 1.2 the last of exactly four axes was meant."""
    rank = len(usage.input("input").dimensions)
    if usage.has("axis") or rank == 4:
        return None
    return Requirement(V1_2, f"rank {rank} is not 4")


def _local_response_shape(operation: BoundOperation) -> tuple[Shape]:
    require_if_known(operation, 1, lambda radius: radius >= 0, "the radius is negative")
    return same_as_input(operation)


def _instance_shape(operation: BoundOperation) -> tuple[Shape]:
    return (shape_of_rank(operation, 0, 4),)


_AXIS = Argument("axis", INT32, since=V1_2)

SIGNATURES = (
    OperationSignature(
        OperationType.L2_NORMALIZATION,
        rows=rows(V1_0, F32) + rows(V1_2, F16, Q8) + rows(V1_3, Q8S),
        layouts=(
            Layout(
                (Argument("input", ranks=UP_TO_4), _AXIS),
                (Argument("output", quantization=SIGNED_UNIT_RANGE),),
                counts=(1, 2),
            ),
        ),
        shape=same_as_input,
        checks=(_implied_axis_is_old,),
    ),
    OperationSignature(
        OperationType.LOCAL_RESPONSE_NORMALIZATION,
        rows=(row(V1_0, T=F32, S=FLOAT32), row(V1_2, T=F16, S=FLOAT16)),
        layouts=(
            Layout(
                (
                    Argument("input", ranks=UP_TO_4),
                    Argument("radius", INT32),
                    *arguments("S", "bias", "alpha", "beta"),
                    _AXIS,
                ),
                counts=(5, 6),
            ),
        ),
        shape=_local_response_shape,
        checks=(_implied_axis_is_old,),
    ),
    OperationSignature(
        OperationType.INSTANCE_NORMALIZATION,
        rows=(row(V1_2, T=F16, S=FLOAT16), row(V1_2, T=F32, S=FLOAT32)),
        layouts=(
            Layout(
                (
                    Argument("input"),
                    *arguments("S", "gamma", "beta", "epsilon"),
                    Argument("nchw", BOOL),
                )
            ),
        ),
        shape=_instance_shape,
    ),
)
