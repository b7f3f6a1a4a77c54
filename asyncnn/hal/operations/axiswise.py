"""Operations along axes: normalise, reduce, rank; and those that convert the dtype.

Source: 1.3/types.hal (L2_NORMALIZATION, LOCAL_RESPONSE_NORMALIZATION,
INSTANCE_NORMALIZATION, REDUCE_*, MEAN, ARGMAX, ARGMIN, TOPK_V2, QUANTIZE, DEQUANTIZE,
CAST).
"""

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.elementwise import SIGNED_UNIT_RANGE
from asyncnn.hal.operations.shapes import (
    normalized_axes,
    require_if_known,
    same_as_input,
    shape_of_rank,
)
from asyncnn.hal.operations.signature import (
    B8,
    BOOL,
    F16,
    F32,
    FLOAT16,
    FLOAT32,
    I32,
    INT32,
    Q8,
    Q8PC,
    Q8S,
    Q8SYM,
    Q16A,
    Q16S,
    UP_TO_4,
    V1_0,
    V1_1,
    V1_2,
    V1_3,
    Argument,
    Layout,
    OperationSignature,
    Requirement,
    TypeRow,
    Usage,
    arguments,
    row,
    rows,
)
from asyncnn.hal.types import OperandType, OperationType

_OUTPUT = (Argument("output", "U"),)


def _dimensions_are_kept(usage: Usage) -> Requirement | None:
    source, target = usage.input("input").dimensions, usage.output.dimensions
    if source and target and 0 not in target and source != target:
        raise usage.error(
            "output", f"has dimensions {list(target)}, the input {list(source)}"
        )
    return None


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
    OperationSignature(
        OperationType.QUANTIZE,
        rows=(
            row(V1_2, T=F16, U=Q8),
            row(V1_2, T=F32, U=Q8),
            row(V1_3, T=F16, U=Q8S),
            row(V1_3, T=F32, U=Q8S),
        ),
        layouts=(Layout((Argument("input"),), _OUTPUT),),
        shape=same_as_input,
    ),
    OperationSignature(
        OperationType.DEQUANTIZE,
        rows=(
            row(V1_0, T=Q8, U=F32),
            row(V1_2, T=Q8, U=F16),
            *(row(V1_2, T=t, U=u) for t in (Q8SYM, Q8PC) for u in (F16, F32)),
            *(row(V1_3, T=Q8S, U=u) for u in (F16, F32)),
        ),
        layouts=(Layout((Argument("input", ranks=UP_TO_4),), _OUTPUT),),
        shape=same_as_input,
    ),
    OperationSignature(
        OperationType.CAST,
        rows=(
            *(
                row(V1_2, T=t, U=u)
                for t in (F16, F32, I32, Q8)
                for u in (F16, F32, I32, Q8)
            ),
            *(row(V1_3, T=t, U=t) for t in (B8, Q16A, Q16S, Q8S, Q8SYM)),
        ),
        layouts=(Layout((Argument("input"),), _OUTPUT),),
        shape=same_as_input,
        checks=(_dimensions_are_kept,),
    ),
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
