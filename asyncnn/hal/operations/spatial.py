"""Moving blocks of elements between height and width, and the batch or channels.

Source: 1.3/types.hal (DEPTH_TO_SPACE, SPACE_TO_DEPTH, BATCH_TO_SPACE_ND,
SPACE_TO_BATCH_ND).
"""

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.shapes import (
    image_shape,
    in_layout,
    integers,
    integers_of_length,
    require,
    require_shape,
    whole_quotient,
)
from asyncnn.hal.operations.signature import (
    BOOL,
    F16,
    F32,
    I32,
    INT32,
    Q8,
    Q8S,
    V1_0,
    V1_1,
    V1_2,
    V1_3,
    Argument,
    Layout,
    OperationSignature,
    Requirement,
    TypedCheck,
    TypeRow,
    Usage,
    rows,
)
from asyncnn.hal.types import HalVersion, OperationType


def _rows_since(first: HalVersion) -> tuple[TypeRow, ...]:
    return rows(first, F32, Q8) + rows(V1_2, F16) + rows(V1_3, Q8S)


_NCHW = Argument("nchw", BOOL, since=V1_2)


def _block_size(operation: BoundOperation) -> int:
    size = operation.integer(1)
    require(operation, size > 0, f"block size {size} is not positive")
    return size


def _block_shape(operation: BoundOperation) -> tuple[int, int]:
    height, width = integers_of_length(operation, 1, 2)
    require(
        operation,
        height > 0 and width > 0,
        f"block [{height}, {width}] is not positive",
    )
    return height, width


def _depth_to_space_shape(operation: BoundOperation) -> tuple[Shape]:
    nchw = operation.boolean(2, False)
    batches, height, width, channels = image_shape(operation, nchw)
    block = _block_size(operation)
    depth = whole_quotient(operation, channels, block * block, "channel count")
    return (in_layout((batches, height * block, width * block, depth), nchw),)


def _space_to_depth_shape(operation: BoundOperation) -> tuple[Shape]:
    nchw = operation.boolean(2, False)
    batches, height, width, channels = image_shape(operation, nchw)
    block = _block_size(operation)
    lines = whole_quotient(operation, height, block, "height")
    columns = whole_quotient(operation, width, block, "width")
    return (in_layout((batches, lines, columns, channels * block * block), nchw),)


def _batch_to_space_shape(operation: BoundOperation) -> tuple[Shape]:
    nchw = operation.boolean(2, False)
    batches, height, width, channels = image_shape(operation, nchw)
    block = _block_shape(operation)
    images = whole_quotient(operation, batches, block[0] * block[1], "batch count")
    shape = images, height * block[0], width * block[1], channels
    return (in_layout(shape, nchw),)


def _space_to_batch_shape(operation: BoundOperation) -> tuple[Shape]:
    nchw = operation.boolean(3, False)
    batches, height, width, channels = image_shape(operation, nchw)
    block = _block_shape(operation)
    require_shape(operation, 2, (2, 2), "paddings")
    top, bottom, left, right = paddings = integers(operation, 2)
    require(operation, min(paddings) >= 0, f"paddings {paddings} are negative")
    lines = whole_quotient(operation, top + height + bottom, block[0], "padded height")
    columns = whole_quotient(operation, left + width + right, block[1], "padded width")
    return (in_layout((batches * block[0] * block[1], lines, columns, channels), nchw),)


def _zero_point_is_new(usage: Usage) -> Requirement | None:
    zero_point = usage.input("input").zero_point
    if zero_point:
        return Requirement(V1_2, f"zero point {zero_point} of the input")
    return None


zero_point_is_new = TypedCheck("input", frozenset({Q8}), _zero_point_is_new, until=V1_2)
"""Before 1.2, padding wrote stored zeros, which had to mean zero."""


SIGNATURES = (
    OperationSignature(
        OperationType.DEPTH_TO_SPACE,
        rows=_rows_since(V1_0),
        layouts=(
            Layout(
                (Argument("input"), Argument("block_size", INT32), _NCHW),
                counts=(2, 3),
            ),
        ),
        shape=_depth_to_space_shape,
    ),
    OperationSignature(
        OperationType.SPACE_TO_DEPTH,
        rows=_rows_since(V1_0),
        layouts=(
            Layout(
                (Argument("input"), Argument("block_size", INT32), _NCHW),
                counts=(2, 3),
            ),
        ),
        shape=_space_to_depth_shape,
    ),
    OperationSignature(
        OperationType.BATCH_TO_SPACE_ND,
        rows=_rows_since(V1_1),
        layouts=(
            Layout(
                (Argument("input"), Argument("block_shape", I32), _NCHW),
                counts=(2, 3),
            ),
        ),
        shape=_batch_to_space_shape,
    ),
    OperationSignature(
        OperationType.SPACE_TO_BATCH_ND,
        rows=_rows_since(V1_1),
        layouts=(
            Layout(
                (
                    Argument("input"),
                    Argument("block_shape", I32),
                    Argument("paddings", I32),
                    _NCHW,
                ),
                counts=(3, 4),
            ),
        ),
        shape=_space_to_batch_shape,
        checks=(zero_point_is_new,),
    ),
)
