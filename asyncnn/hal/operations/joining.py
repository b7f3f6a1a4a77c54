"""Operations that join tensors, cut them into several, slice and pad them.

Source: 1.3/types.hal (CONCATENATION, SPLIT, SLICE, STRIDED_SLICE, PAD, PAD_V2); AIDL
feature level 6 (PACK) and 7 (MIRROR_PAD).
"""

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.declaring import declare
from asyncnn.hal.operations.reshaping import zero_point_is_new
from asyncnn.hal.operations.shapes import quantization_is_kept, rank_is_kept
from asyncnn.hal.operations.signature import (
    Q8,
    UP_TO_4,
    V1_2,
    Requirement,
    TypedCheck,
    Usage,
)


def _concatenation_shape(operation: BoundOperation) -> tuple[Shape]:
    count = len(operation.inputs) - 1
    first = operation.shape_of_rank(0, *UP_TO_4)
    axis = operation.integer(count)
    operation.require(
        0 <= axis < len(first), f"axis {axis} is outside rank {len(first)}"
    )
    total = first[axis]
    for index in range(1, count):
        shape = operation.shape_of_rank(index, len(first))
        operation.check_shape(
            index, (*first[:axis], shape[axis], *first[axis + 1 :]), f"input {index}"
        )
        total += shape[axis]
    return ((*first[:axis], total, *first[axis + 1 :]),)


def _pack_shape(operation: BoundOperation) -> tuple[Shape]:
    count = len(operation.inputs) - 1
    shape = operation.shape(1)
    axis = operation.integer(0)
    operation.require(
        0 <= axis <= len(shape), f"axis {axis} is outside rank {len(shape)}"
    )
    for index in range(2, count + 1):
        operation.check_shape(index, shape, f"input {index}")
    return ((*shape[:axis], count, *shape[axis:]),)


def _split_shape(operation: BoundOperation) -> tuple[Shape, ...]:
    shape = operation.shape(0)
    axis = operation.axis(1, len(shape))
    count = operation.integer(2)
    operation.require(
        count == len(operation.outputs),
        f"splits into {count}, but has {len(operation.outputs)} outputs",
    )
    part = operation.whole_quotient(shape[axis], count, f"axis {axis} of size")
    return ((*shape[:axis], part, *shape[axis + 1 :]),) * count


def _mixed_scales_are_new(usage: Usage) -> Requirement | None:
    output = usage.output
    for operand in usage.all("input"):
        if (operand.scale, operand.zero_point) != (output.scale, output.zero_point):
            return Requirement(V1_2, "an input is quantised unlike the output")
    return None


def _output_has_one_axis_more(usage: Usage) -> Requirement | None:
    ranks = {len(operand.dimensions) for operand in usage.all("input")} - {0}
    if usage.output.dimensions:
        ranks.add(len(usage.output.dimensions) - 1)
    if len(ranks) > 1:
        raise usage.error("input", "has a rank unlike the others, or the output's")
    return None


def slices_of(operation: BoundOperation) -> tuple[slice, ...]:
    """Return the slice that SLICE takes of each axis; a size of -1 goes to the end.

    :raises OperationFailedError: if one reaches out of the input.
    """
    shape = operation.shape(0)
    begins = operation.integers_of_length(1, len(shape))
    sizes = operation.integers_of_length(2, len(shape))
    slices = []
    for length, begin, size in zip(shape, begins, sizes, strict=True):
        end = length if size == -1 else begin + size
        operation.require(
            0 <= begin <= end <= length,
            f"{size} elements from {begin} on are not within an axis of {length}",
        )
        slices.append(slice(begin, end))
    return tuple(slices)


def strided_slices_of(
    operation: BoundOperation,
) -> tuple[tuple[slice, ...], tuple[int, ...]]:
    """Return the slice that STRIDED_SLICE takes of each axis, and the axes it drops.

    :raises OperationFailedError: if a stride is 0 or a dropped axis has not size 1.
    """
    shape = operation.shape_of_rank(0, *UP_TO_4)
    begins, ends, strides = (
        operation.integers_of_length(index, len(shape)) for index in (1, 2, 3)
    )
    begin_mask, end_mask, shrink_mask = (operation.integer(i) for i in (4, 5, 6))
    slices, dropped = [], []
    for axis, length in enumerate(shape):
        bit, stride = 1 << axis, strides[axis]
        operation.require(stride != 0, f"the stride of axis {axis} is 0")
        taken = slice(
            None if begin_mask & bit else begins[axis],
            None if end_mask & bit else ends[axis],
            stride,
        )
        slices.append(taken)
        if shrink_mask & bit:
            dropped.append(axis)
            operation.require(
                stride > 0 and _length(taken, length) == 1,
                f"axis {axis} cannot be dropped, its slice is not a single element",
            )
    return tuple(slices), tuple(dropped)


def _length(taken: slice, length: int) -> int:
    return len(range(*taken.indices(length)))


def _slice_shape(operation: BoundOperation) -> tuple[Shape]:
    return (tuple(taken.stop - taken.start for taken in slices_of(operation)),)


def _strided_slice_shape(operation: BoundOperation) -> tuple[Shape]:
    slices, dropped = strided_slices_of(operation)
    pairs = zip(slices, operation.shape(0), strict=True)
    lengths = [_length(taken, length) for taken, length in pairs]
    kept = tuple(size for axis, size in enumerate(lengths) if axis not in dropped)
    return (kept or (1,),)


REFLECT = 0
"""Mode of MIRROR_PAD that leaves out the element at the border."""

SYMMETRIC = 1
"""Mode of MIRROR_PAD that repeats the element at the border."""


def paddings_of(operation: BoundOperation) -> list[tuple[int, int]]:
    """Return (before, after) of each axis, read from input 1.

    :raises OperationFailedError: if there is no pair for each axis, or one is negative.
    """
    rank = len(operation.shape(0))
    operation.check_shape(1, (rank, 2), "paddings")
    flat = operation.integers(1)
    operation.require(min(flat) >= 0, f"paddings {flat} are negative")
    return list(zip(flat[::2], flat[1::2], strict=True))


def _pad_shape(operation: BoundOperation) -> tuple[Shape]:
    pairs = zip(operation.shape(0), paddings_of(operation), strict=True)
    return (tuple(before + size + after for size, (before, after) in pairs),)


def _mirror_pad_shape(operation: BoundOperation) -> tuple[Shape]:
    mode = operation.integer(2)
    operation.require(mode in (REFLECT, SYMMETRIC), f"mode {mode} is neither 0 nor 1")
    margin = 1 if mode == REFLECT else 0
    for size, pair in zip(operation.shape(0), paddings_of(operation), strict=True):
        operation.require(
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


_SINCE_1_1 = "1.1: F32 Q8; 1.2: F16; 1.3: Q8S"
_SINCE_1_2 = "1.2: F16 F32 I32 Q8; 1.3: Q8S"

SIGNATURES = (
    declare(
        "CONCATENATION 1.0: F32 Q8; 1.2: F16; 1.3: Q8S",
        "input+ [1-4], axis: INT32",
        _concatenation_shape,
        TypedCheck("input", frozenset({Q8}), _mixed_scales_are_new, until=V1_2),
    ),
    declare(
        "PACK AIDL_V2: F16 F32 I32 Q8 Q8S",
        "axis: INT32, input+",
        _pack_shape,
        quantization_is_kept,
        _output_has_one_axis_more,
    ),
    declare(f"SPLIT {_SINCE_1_2}", "input, axis count: INT32 -> output+", _split_shape),
    declare(f"SLICE {_SINCE_1_2}", "input, begin size: I32", _slice_shape),
    declare(
        f"STRIDED_SLICE {_SINCE_1_1}",
        "input [1-4], begin end strides: I32, "
        "begin_mask end_mask shrink_axis_mask: INT32",
        _strided_slice_shape,
    ),
    declare(
        f"PAD {_SINCE_1_1}", "input [1-4], paddings: I32", _pad_shape, zero_point_is_new
    ),
    declare(
        "PAD_V2 T/S 1.2: F32/FLOAT32 F16/FLOAT16 Q8/INT32; 1.3: Q8S/INT32",
        "input [1-4], paddings: I32, value: S",
        _pad_shape,
    ),
    declare(
        "MIRROR_PAD AIDL_V3: F16 F32 I32 Q8 Q8S",
        "input, paddings: I32 [2], mode: INT32",
        _mirror_pad_shape,
        _paddings_fit_ranks,
        quantization_is_kept,
        rank_is_kept,
    ),
)
