"""Padding of all axes.

Source: 1.3/types.hal (PAD, PAD_V2); AIDL feature level 7 (MIRROR_PAD).
"""

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.checks import quantization_is_kept, rank_is_kept
from asyncnn.hal.operations.shapes import integers, require, require_shape
from asyncnn.hal.operations.signature import (
    AIDL_V3,
    F16,
    F32,
    FLOAT16,
    FLOAT32,
    I32,
    INT32,
    Q8,
    Q8S,
    UP_TO_4,
    V1_1,
    V1_2,
    V1_3,
    Argument,
    Layout,
    OperationSignature,
    Requirement,
    Usage,
    row,
    rows,
)
from asyncnn.hal.operations.spatial import zero_point_is_new
from asyncnn.hal.types import OperationType

REFLECT = 0
"""Mode of MIRROR_PAD that leaves out the element at the border."""

SYMMETRIC = 1
"""Mode of MIRROR_PAD that repeats the element at the border."""


def paddings_of(operation: BoundOperation) -> list[tuple[int, int]]:
    """Return (before, after) of each axis, read from input 1.

    :raises OperationFailedError: if there is no pair for each axis, or one is negative.
    """
    rank = len(operation.shape(0))
    require_shape(operation, 1, (rank, 2), "paddings")
    flat = integers(operation, 1)
    require(operation, min(flat) >= 0, f"paddings {flat} are negative")
    return list(zip(flat[::2], flat[1::2], strict=True))


def _pad_shape(operation: BoundOperation) -> tuple[Shape]:
    pairs = zip(operation.shape(0), paddings_of(operation), strict=True)
    return (tuple(before + size + after for size, (before, after) in pairs),)


def _mirror_pad_shape(operation: BoundOperation) -> tuple[Shape]:
    mode = operation.integer(2)
    require(operation, mode in (REFLECT, SYMMETRIC), f"mode {mode} is neither 0 nor 1")
    margin = 1 if mode == REFLECT else 0
    for size, pair in zip(operation.shape(0), paddings_of(operation), strict=True):
        require(
            operation,
            max(pair) <= size - margin,
            f"padding {pair} exceeds what an axis of {size} can mirror",
        )
    return _pad_shape(operation)


def _paddings_fit_ranks(usage: Usage) -> Requirement | None:
    """Compare what is known of the [rank, 2] paddings with the input's rank."""
    paddings = usage.input("paddings").dimensions
    rank = len(usage.input("input").dimensions)
    if paddings and paddings[1] not in (0, 2):
        raise usage.error("paddings", f"has {paddings[1]} columns, expected 2")
    if paddings and rank and paddings[0] not in (0, rank):
        raise usage.error("paddings", f"has {paddings[0]} rows for rank {rank}")
    return None


SIGNATURES = (
    OperationSignature(
        OperationType.PAD,
        rows=rows(V1_1, F32, Q8) + rows(V1_2, F16) + rows(V1_3, Q8S),
        layouts=(
            Layout((Argument("input", ranks=UP_TO_4), Argument("paddings", I32))),
        ),
        shape=_pad_shape,
        checks=(zero_point_is_new,),
    ),
    OperationSignature(
        OperationType.PAD_V2,
        rows=(
            row(V1_2, T=F32, S=FLOAT32),
            row(V1_2, T=F16, S=FLOAT16),
            row(V1_2, T=Q8, S=INT32),
            row(V1_3, T=Q8S, S=INT32),
        ),
        layouts=(
            Layout(
                (
                    Argument("input", ranks=UP_TO_4),
                    Argument("paddings", I32),
                    Argument("value", "S"),
                )
            ),
        ),
        shape=_pad_shape,
    ),
    OperationSignature(
        OperationType.MIRROR_PAD,
        rows=rows(AIDL_V3, F16, F32, I32, Q8, Q8S),
        layouts=(
            Layout(
                (
                    Argument("input"),
                    Argument("paddings", I32, ranks=(2,)),
                    Argument("mode", INT32),
                )
            ),
        ),
        shape=_mirror_pad_shape,
        checks=(_paddings_fit_ranks, quantization_is_kept, rank_is_kept),
    ),
)
