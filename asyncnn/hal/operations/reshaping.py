"""Operations that change the shape of a tensor or the order of its elements.

Those with a block size move elements between the spatial dimensions, depth and batch.

Source: 1.3/types.hal (RESHAPE, SQUEEZE, EXPAND_DIMS, TRANSPOSE, TILE, CHANNEL_SHUFFLE,
FILL, RANK, DEPTH_TO_SPACE, SPACE_TO_DEPTH, BATCH_TO_SPACE_ND, SPACE_TO_BATCH_ND); AIDL
feature level 6 (RESHAPE of int32) and 7 (REVERSE).
"""

import math

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.declaring import declare
from asyncnn.hal.operations.shapes import (
    in_layout,
    permuted,
    quantization_is_kept,
    rank_is_kept,
)
from asyncnn.hal.operations.signature import (
    Q8,
    UP_TO_4,
    V1_2,
    Requirement,
    TypedCheck,
    Usage,
)


def _reshape_shape(operation: BoundOperation) -> tuple[Shape]:
    source = operation.shape(0)
    operation.shape_of_rank(1, 1)
    target = operation.integers(1)
    operation.require(
        bool(target) and target.count(-1) <= 1 and min(target) >= -1,
        f"{target} is not a shape with at most one -1",
    )
    if -1 in target:
        known = -math.prod(target)
        target[target.index(-1)] = operation.whole_quotient(
            math.prod(source), known, "number of elements"
        )
    operation.require(
        math.prod(target) == math.prod(source),
        f"{list(source)} does not reshape to {target}",
    )
    return (tuple(target),)


def _squeeze_shape(operation: BoundOperation) -> tuple[Shape]:
    shape = operation.shape_of_rank(0, *UP_TO_4)
    if operation.has(1):
        axes = operation.normalized_axes(1, len(shape))
    else:
        axes = {axis for axis, size in enumerate(shape) if size == 1}
    for axis in axes:
        operation.require(shape[axis] == 1, f"axis {axis} of {list(shape)} is not 1")
    kept = tuple(size for axis, size in enumerate(shape) if axis not in axes)
    return (kept or (1,),)


def _expand_dims_shape(operation: BoundOperation) -> tuple[Shape]:
    shape = operation.shape(0)
    axis = operation.axis(1, len(shape) + 1)
    return ((*shape[:axis], 1, *shape[axis:]),)


def _transpose_shape(operation: BoundOperation) -> tuple[Shape]:
    shape = operation.shape_of_rank(0, *UP_TO_4)
    if not operation.has(1):
        return (shape[::-1],)
    order = operation.integers_of_length(1, len(shape))
    operation.require(
        sorted(order) == list(range(len(shape))),
        f"{order} is not a permutation of the axes of {list(shape)}",
    )
    return (permuted(shape, tuple(order)),)


def _tile_shape(operation: BoundOperation) -> tuple[Shape]:
    shape = operation.shape(0)
    multiples = operation.integers_of_length(1, len(shape))
    operation.require(min(multiples) >= 0, f"{multiples} has a negative multiple")
    return (tuple(a * b for a, b in zip(shape, multiples, strict=True)),)


def _channel_shuffle_shape(operation: BoundOperation) -> tuple[Shape]:
    shape = operation.shape(0)
    axis = operation.axis(2, len(shape))
    operation.whole_quotient(shape[axis], operation.integer(1), f"axis {axis} of size")
    return (shape,)


def _reverse_shape(operation: BoundOperation) -> tuple[Shape]:
    shape = operation.shape(0)
    (axis,) = operation.integers_of_length(1, 1)
    operation.require(
        0 <= axis < len(shape), f"axis {axis} is outside rank {len(shape)}"
    )
    return (shape,)


def _fill_shape(operation: BoundOperation) -> tuple[Shape]:
    operation.shape_of_rank(0, 1)
    target = operation.integers(0)
    operation.require(
        bool(target) and min(target) >= 0, f"{target} is not a shape to fill"
    )
    return (tuple(target),)


def _axis_is_single(usage: Usage) -> Requirement | None:
    if usage.input("axis").dimensions not in ((), (0,), (1,)):
        raise usage.error("axis", "is not a tensor of one element")
    return None


def _block_size(operation: BoundOperation) -> int:
    size = operation.integer(1)
    operation.require(size > 0, f"block size {size} is not positive")
    return size


def _block_shape(operation: BoundOperation) -> tuple[int, int]:
    height, width = operation.integers_of_length(1, 2)
    operation.require(
        height > 0 and width > 0, f"block [{height}, {width}] is not positive"
    )
    return height, width


def _depth_to_space_shape(operation: BoundOperation) -> tuple[Shape]:
    nchw = operation.boolean(2, False)
    batches, height, width, channels = operation.image_shape(nchw)
    block = _block_size(operation)
    depth = operation.whole_quotient(channels, block * block, "channel count")
    return (in_layout((batches, height * block, width * block, depth), nchw),)


def _space_to_depth_shape(operation: BoundOperation) -> tuple[Shape]:
    nchw = operation.boolean(2, False)
    batches, height, width, channels = operation.image_shape(nchw)
    block = _block_size(operation)
    lines = operation.whole_quotient(height, block, "height")
    columns = operation.whole_quotient(width, block, "width")
    return (in_layout((batches, lines, columns, channels * block * block), nchw),)


def _batch_to_space_shape(operation: BoundOperation) -> tuple[Shape]:
    nchw = operation.boolean(2, False)
    batches, height, width, channels = operation.image_shape(nchw)
    block = _block_shape(operation)
    images = operation.whole_quotient(batches, block[0] * block[1], "batch count")
    shape = images, height * block[0], width * block[1], channels
    return (in_layout(shape, nchw),)


def _space_to_batch_shape(operation: BoundOperation) -> tuple[Shape]:
    nchw = operation.boolean(3, False)
    batches, height, width, channels = operation.image_shape(nchw)
    block = _block_shape(operation)
    operation.check_shape(2, (2, 2), "paddings")
    top, bottom, left, right = paddings = operation.integers(2)
    operation.require(min(paddings) >= 0, f"paddings {paddings} are negative")
    lines = operation.whole_quotient(top + height + bottom, block[0], "padded height")
    columns = operation.whole_quotient(left + width + right, block[1], "padded width")
    return (in_layout((batches * block[0] * block[1], lines, columns, channels), nchw),)


def _zero_point_is_new(usage: Usage) -> Requirement | None:
    zero_point = usage.input("input").zero_point
    if zero_point:
        return Requirement(V1_2, f"zero point {zero_point} of the input")
    return None


zero_point_is_new = TypedCheck("input", frozenset({Q8}), _zero_point_is_new, until=V1_2)
"""Before 1.2, padding wrote stored zeros, which had to mean zero."""


_SINCE_1_0 = "1.0: F32 Q8; 1.2: F16; 1.3: Q8S"
_SINCE_1_1 = "1.1: F32 Q8; 1.2: F16; 1.3: Q8S"
_SINCE_1_2 = "1.2: F16 F32 I32 Q8; 1.3: Q8S"
_BLOCK_SIZE = "input, block_size: INT32 | nchw: BOOL @1.2"

SIGNATURES = (
    declare(
        f"RESHAPE {_SINCE_1_0}; AIDL_V2: I32", "input [1-4], shape: I32", _reshape_shape
    ),
    declare(f"SQUEEZE {_SINCE_1_1}", "input [1-4], axes?: I32", _squeeze_shape),
    declare(f"EXPAND_DIMS {_SINCE_1_2}", "input, axis: INT32", _expand_dims_shape),
    declare(
        f"TRANSPOSE {_SINCE_1_1}", "input [1-4], permutation?: I32", _transpose_shape
    ),
    declare(f"TILE {_SINCE_1_2}", "input, multiples: I32", _tile_shape),
    declare(
        "CHANNEL_SHUFFLE 1.2: F16 F32 Q8; 1.3: Q8S",
        "input [1-4], groups axis: INT32",
        _channel_shuffle_shape,
    ),
    declare(
        "REVERSE AIDL_V3: F16 F32 I32 Q8 Q8S",
        "input, axis: I32",
        _reverse_shape,
        _axis_is_single,
        quantization_is_kept,
        rank_is_kept,
    ),
    declare(
        "FILL T/S 1.3: F16/FLOAT16 F32/FLOAT32 I32/INT32",
        "shape: I32, value: S",
        _fill_shape,
    ),
    declare(
        "RANK 1.3: F16 F32 I32 B8 Q8 Q8S Q8SYM Q8PC Q16S Q16A",
        "input -> output: INT32",
        lambda operation: ((),),
    ),
    declare(f"DEPTH_TO_SPACE {_SINCE_1_0}", _BLOCK_SIZE, _depth_to_space_shape),
    declare(f"SPACE_TO_DEPTH {_SINCE_1_0}", _BLOCK_SIZE, _space_to_depth_shape),
    declare(
        f"BATCH_TO_SPACE_ND {_SINCE_1_1}",
        "input, block_shape: I32 | nchw: BOOL @1.2",
        _batch_to_space_shape,
    ),
    declare(
        f"SPACE_TO_BATCH_ND {_SINCE_1_1}",
        "input, block_shape paddings: I32 | nchw: BOOL @1.2",
        _space_to_batch_shape,
        zero_point_is_new,
    ),
)
