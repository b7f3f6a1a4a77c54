"""Operations that make images of another size: pooling, resizing, regions of interest.

Source: 1.3/types.hal (AVERAGE_POOL_2D, L2_POOL_2D, MAX_POOL_2D, RESIZE_BILINEAR,
RESIZE_NEAREST_NEIGHBOR, ROI_ALIGN, ROI_POOLING).
"""

import numpy as np

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.shapes import (
    image_shape,
    in_layout,
    require,
    require_if_known,
    require_shape,
    shape_of_rank,
)
from asyncnn.hal.operations.signature import (
    BOOL,
    F16,
    F32,
    FLOAT16,
    FLOAT32,
    I32,
    INT32,
    Q8,
    Q8S,
    Q16A,
    V1_0,
    V1_2,
    V1_3,
    Argument,
    Layout,
    OperationSignature,
    Quantization,
    TypeRow,
    arguments,
    row,
    rows,
)
from asyncnn.hal.operations.windows import pool_window
from asyncnn.hal.types import HalVersion, OperationType

_SLIDING = (
    *arguments(INT32, "stride_width", "stride_height"),
    *arguments(INT32, "filter_width", "filter_height", "activation"),
    Argument("nchw", BOOL, since=V1_2),
)
_EXPLICIT = ("padding_left", "padding_right", "padding_top", "padding_bottom")

_LAYOUTS = (
    Layout(
        (Argument("input"), Argument("padding_scheme", INT32), *_SLIDING),
        counts=(7, 8),
    ),
    Layout(
        (Argument("input"), *arguments(INT32, *_EXPLICIT), *_SLIDING),
        counts=(10, 11),
    ),
)


def _pool_shape(operation: BoundOperation) -> tuple[Shape]:
    window = pool_window(operation)
    batches, _, _, channels = image_shape(operation, window.nchw)
    require(operation, channels > 0, "the input has no channels")
    shape = batches, window.height.output, window.width.output, channels
    return (in_layout(shape, window.nchw),)


def _pool(type_: OperationType, types: tuple[TypeRow, ...]) -> OperationSignature:
    return OperationSignature(type_, rows=types, layouts=_LAYOUTS, shape=_pool_shape)


_FLOATS = rows(V1_0, F32) + rows(V1_2, F16)
_ALL = _FLOATS + rows(V1_0, Q8) + rows(V1_3, Q8S)


BOX_QUANTIZATION: Quantization = {Q16A: (0.125, 0)}
"""Quantisation of box corners: eighths of a pixel."""

_RESIZE_INPUTS = (
    Argument("input"),
    *arguments("S", "width", "height"),
    Argument("nchw", BOOL, since=V1_2),
    *arguments(BOOL, "align_corners", "half_pixel_centers", since=V1_3),
)


def _resize_rows(first: HalVersion) -> tuple[TypeRow, ...]:
    """``S`` is an integer for a size in pixels, a float for a factor."""
    return (
        row(first, T=F32, S=INT32),
        row(V1_2, T=F32, S=FLOAT32),
        row(V1_2, T=F16, S=INT32),
        row(V1_2, T=F16, S=FLOAT16),
        row(V1_2, T=Q8, S=INT32),
        row(V1_2, T=Q8, S=FLOAT32),
        row(V1_3, T=Q8S, S=INT32),
        row(V1_3, T=Q8S, S=FLOAT32),
    )


_ROI_ROWS = (
    row(V1_2, T=F32, R=F32, S=FLOAT32),
    row(V1_2, T=F16, R=F16, S=FLOAT16),
    row(V1_2, T=Q8, R=Q16A, S=FLOAT32),
    row(V1_3, T=Q8S, R=Q16A, S=FLOAT32),
)
"""``R`` is the type of the regions."""

_REGIONS = (
    Argument("input"),
    Argument("regions", "R", quantization=BOX_QUANTIZATION),
    Argument("batch_indices", I32),
    *arguments(INT32, "height", "width"),
    *arguments("S", "height_ratio", "width_ratio"),
)


def _new_length(operation: BoundOperation, index: int, length: int) -> int:
    """Return the length that scalar ``index`` gives, by itself or as a factor."""
    value = operation.value(index).reshape(())
    if operation.input(index).type != INT32:
        value = np.floor(np.float32(length) * np.float32(value))
    require(operation, bool(0 < value < 2**31), f"{value} is no output length")
    return int(value)


def _resize_shape(operation: BoundOperation) -> tuple[Shape]:
    nchw = operation.boolean(3, False)
    batches, height, width, channels = image_shape(operation, nchw)
    require(operation, 0 not in (height, width, channels), "the image is empty")
    require_if_known(
        operation,
        5,
        lambda half_pixel: not (half_pixel and operation.boolean(4, False)),
        "half_pixel_centers excludes align_corners",
    )
    lines = _new_length(operation, 2, height)
    columns = _new_length(operation, 1, width)
    return (in_layout((batches, lines, columns, channels), nchw),)


def _region_shape(operation: BoundOperation) -> tuple[Shape]:
    nchw = operation.boolean(len(operation.inputs) - 1)
    *_, channels = image = image_shape(operation, nchw)
    require(operation, 0 not in image, f"image {list(image)} is empty")
    regions, corners = shape_of_rank(operation, 1, 2)
    require(operation, corners == 4, f"regions have {corners} numbers each, not 4")
    require_shape(operation, 2, (regions,), "batch_indices")
    height, width = operation.integer(3), operation.integer(4)
    require(operation, height > 0 and width > 0, f"output [{height}, {width}] is empty")
    for index in (5, 6):
        require_if_known(
            operation, index, lambda ratio: ratio > 0, "a ratio is not above 0"
        )
    return (in_layout((regions, height, width, channels), nchw),)


def _align_shape(operation: BoundOperation) -> tuple[Shape]:
    for index in (7, 8):
        require_if_known(
            operation, index, lambda count: count >= 0, "a sampling count is negative"
        )
    return _region_shape(operation)


SIGNATURES = (
    _pool(OperationType.AVERAGE_POOL_2D, _ALL),
    _pool(OperationType.L2_POOL_2D, _FLOATS),
    _pool(OperationType.MAX_POOL_2D, _ALL),
    OperationSignature(
        OperationType.RESIZE_BILINEAR,
        rows=_resize_rows(V1_0),
        layouts=(Layout(_RESIZE_INPUTS, counts=(3, 4, 5, 6)),),
        shape=_resize_shape,
    ),
    OperationSignature(
        OperationType.RESIZE_NEAREST_NEIGHBOR,
        rows=_resize_rows(V1_2),
        layouts=(Layout(_RESIZE_INPUTS, counts=(4, 5, 6)),),
        shape=_resize_shape,
    ),
    OperationSignature(
        OperationType.ROI_ALIGN,
        rows=_ROI_ROWS,
        layouts=(
            Layout(
                (
                    *_REGIONS,
                    *arguments(INT32, "height_samples", "width_samples"),
                    Argument("nchw", BOOL),
                )
            ),
        ),
        shape=_align_shape,
    ),
    OperationSignature(
        OperationType.ROI_POOLING,
        rows=_ROI_ROWS,
        layouts=(Layout((*_REGIONS, Argument("nchw", BOOL))),),
        shape=_region_shape,
    ),
)
