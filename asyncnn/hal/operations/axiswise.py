"""Operations along axes: normalise, reduce, rank; and those that convert the dtype.

Source: 1.3/types.hal (L2_NORMALIZATION, LOCAL_RESPONSE_NORMALIZATION,
INSTANCE_NORMALIZATION, REDUCE_*, MEAN, ARGMAX, ARGMIN, TOPK_V2, QUANTIZE, DEQUANTIZE,
CAST).
"""

from itertools import product

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.declaring import declare
from asyncnn.hal.operations.shapes import same_as_input
from asyncnn.hal.operations.signature import (
    UP_TO_4,
    V1_2,
    OperationSignature,
    Requirement,
    Usage,
)


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
    operation.require_if_known(1, lambda radius: radius >= 0, "the radius is negative")
    return same_as_input(operation)


def _reduced_shape(operation: BoundOperation) -> tuple[Shape]:
    shape = operation.shape_of_rank(0, *UP_TO_4)
    axes = operation.normalized_axes(1, len(shape))
    if operation.integer(2) > 0:
        return (tuple(1 if i in axes else size for i, size in enumerate(shape)),)
    return (tuple(size for i, size in enumerate(shape) if i not in axes) or (1,),)


def _arg_shape(operation: BoundOperation) -> tuple[Shape]:
    shape = operation.shape(0)
    axis = operation.axis(1, len(shape))
    return (shape[:axis] + shape[axis + 1 :] or (1,),)


def _reduction(operation: str, flag: str = "BOOL") -> OperationSignature:
    arguments = f"input [1-4], axes: I32, keep_dims: {flag}"
    return declare(operation, arguments, _reduced_shape)


_ORDERED = "1.2: F16 F32 Q8; 1.3: Q8S"
_SELECTED = "1.2: F16 F32 I32 Q8; 1.3: Q8S"
_ARG = "input, axis: INT32 -> output: I32"
_CAST = tuple(product(("F16", "F32", "I32", "Q8"), repeat=2))

SIGNATURES = (
    declare(
        "QUANTIZE T/U 1.2: F16/Q8 F32/Q8; 1.3: F16/Q8S F32/Q8S",
        "input -> output: U",
        same_as_input,
    ),
    declare(
        "DEQUANTIZE T/U 1.0: Q8/F32; 1.2: Q8/F16 Q8SYM/F16 Q8SYM/F32 Q8PC/F16 "
        "Q8PC/F32; 1.3: Q8S/F16 Q8S/F32",
        "input [1-4] -> output: U",
        same_as_input,
    ),
    declare(
        f"CAST T/U 1.2: {' '.join(map('/'.join, _CAST))}; "
        "1.3: B8/B8 Q16A/Q16A Q16S/Q16S Q8S/Q8S Q8SYM/Q8SYM",
        "input -> output: U",
        same_as_input,
        _dimensions_are_kept,
    ),
    declare(
        "L2_NORMALIZATION 1.0: F32; 1.2: F16 Q8; 1.3: Q8S",
        "input [1-4] | axis: INT32 @1.2 -> output = signed_unit",
        same_as_input,
        _implied_axis_is_old,
    ),
    declare(
        "LOCAL_RESPONSE_NORMALIZATION T/S 1.0: F32/FLOAT32; 1.2: F16/FLOAT16",
        "input [1-4], radius: INT32, bias alpha beta: S | axis: INT32 @1.2",
        _local_response_shape,
        _implied_axis_is_old,
    ),
    declare(
        "INSTANCE_NORMALIZATION T/S 1.2: F16/FLOAT16 F32/FLOAT32",
        "input, gamma beta epsilon: S, nchw: BOOL",
        lambda operation: (operation.shape_of_rank(0, 4),),
    ),
    _reduction("MEAN 1.1: F32 Q8; 1.2: F16; 1.3: Q8S", "INT32"),
    _reduction("REDUCE_ALL 1.2: B8"),
    _reduction("REDUCE_ANY 1.2: B8"),
    _reduction(f"REDUCE_MAX {_ORDERED}"),
    _reduction(f"REDUCE_MIN {_ORDERED}"),
    _reduction("REDUCE_PROD 1.2: F16 F32"),
    _reduction("REDUCE_SUM 1.2: F16 F32"),
    declare(f"ARGMAX {_SELECTED}", _ARG, _arg_shape),
    declare(f"ARGMIN {_SELECTED}", _ARG, _arg_shape),
)
