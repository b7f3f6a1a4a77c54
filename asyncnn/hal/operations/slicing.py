"""Cutting a box out of a tensor.

Source: 1.3/types.hal (SLICE, STRIDED_SLICE).
"""

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.shapes import integers_of_length, require, shape_of_rank
from asyncnn.hal.operations.signature import (
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
    arguments,
    rows,
)
from asyncnn.hal.types import OperationType


def slices_of(operation: BoundOperation) -> tuple[slice, ...]:
    """Return the slice that SLICE takes of each axis; a size of -1 goes to the end.

    :raises OperationFailedError: if one reaches out of the input.
    """
    shape = operation.shape(0)
    begins = integers_of_length(operation, 1, len(shape))
    sizes = integers_of_length(operation, 2, len(shape))
    slices = []
    for length, begin, size in zip(shape, begins, sizes, strict=True):
        end = length if size == -1 else begin + size
        require(
            operation,
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
    shape = shape_of_rank(operation, 0, *UP_TO_4)
    begins, ends, strides = (
        integers_of_length(operation, index, len(shape)) for index in (1, 2, 3)
    )
    begin_mask, end_mask, shrink_mask = (operation.integer(i) for i in (4, 5, 6))
    slices, dropped = [], []
    for axis, length in enumerate(shape):
        bit, stride = 1 << axis, strides[axis]
        require(operation, stride != 0, f"the stride of axis {axis} is 0")
        taken = slice(
            None if begin_mask & bit else begins[axis],
            None if end_mask & bit else ends[axis],
            stride,
        )
        slices.append(taken)
        if shrink_mask & bit:
            dropped.append(axis)
            require(
                operation,
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


SIGNATURES = (
    OperationSignature(
        OperationType.SLICE,
        rows=rows(V1_2, F16, F32, I32, Q8) + rows(V1_3, Q8S),
        layouts=(Layout((Argument("input"), *arguments(I32, "begin", "size"))),),
        shape=_slice_shape,
    ),
    OperationSignature(
        OperationType.STRIDED_SLICE,
        rows=rows(V1_1, F32, Q8) + rows(V1_2, F16) + rows(V1_3, Q8S),
        layouts=(
            Layout(
                (
                    Argument("input", ranks=UP_TO_4),
                    *arguments(I32, "begin", "end", "strides"),
                    *arguments(INT32, "begin_mask", "end_mask", "shrink_axis_mask"),
                )
            ),
        ),
        shape=_strided_slice_shape,
    ),
)
