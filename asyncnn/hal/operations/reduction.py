"""Reductions along axes.

Source: 1.3/types.hal (MEAN, REDUCE_ALL, REDUCE_ANY, REDUCE_MAX, REDUCE_MIN,
REDUCE_PROD, REDUCE_SUM, ARGMAX, ARGMIN).
"""

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.shapes import normalized_axes, shape_of_rank
from asyncnn.hal.operations.signature import (
    B8,
    BOOL,
    F16,
    F32,
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
    TypeRow,
    rows,
)
from asyncnn.hal.types import OperandType, OperationType


def _reduced_shape(operation: BoundOperation) -> tuple[Shape]:
    shape = shape_of_rank(operation, 0, *UP_TO_4)
    axes = normalized_axes(operation, 1, len(shape))
    if operation.integer(2) > 0:
        return (tuple(1 if i in axes else size for i, size in enumerate(shape)),)
    return (tuple(size for i, size in enumerate(shape) if i not in axes) or (1,),)


def _arg_shape(operation: BoundOperation) -> tuple[Shape]:
    shape = operation.shape(0)
    axis = operation.axis(1, len(shape))
    return (shape[:axis] + shape[axis + 1 :] or (1,),)


def _reduction(
    type_: OperationType, types: tuple[TypeRow, ...], flag: OperandType = BOOL
) -> OperationSignature:
    inputs = (
        Argument("input", ranks=UP_TO_4),
        Argument("axes", I32),
        Argument("keep_dims", flag),
    )
    return OperationSignature(
        type_, rows=types, layouts=(Layout(inputs),), shape=_reduced_shape
    )


def _arg(type_: OperationType) -> OperationSignature:
    inputs = Argument("input"), Argument("axis", INT32)
    return OperationSignature(
        type_,
        rows=rows(V1_2, F16, F32, I32, Q8) + rows(V1_3, Q8S),
        layouts=(Layout(inputs, (Argument("output", I32),)),),
        shape=_arg_shape,
    )


_ORDERED = rows(V1_2, F16, F32, Q8) + rows(V1_3, Q8S)

SIGNATURES = (
    _reduction(
        OperationType.MEAN,
        rows(V1_1, F32, Q8) + rows(V1_2, F16) + rows(V1_3, Q8S),
        flag=INT32,
    ),
    _reduction(OperationType.REDUCE_ALL, rows(V1_2, B8)),
    _reduction(OperationType.REDUCE_ANY, rows(V1_2, B8)),
    _reduction(OperationType.REDUCE_MAX, _ORDERED),
    _reduction(OperationType.REDUCE_MIN, _ORDERED),
    _reduction(OperationType.REDUCE_PROD, rows(V1_2, F16, F32)),
    _reduction(OperationType.REDUCE_SUM, rows(V1_2, F16, F32)),
    _arg(OperationType.ARGMAX),
    _arg(OperationType.ARGMIN),
)
