"""Operations that make images of another size: pooling, resizing, regions of interest.

Source: 1.3/types.hal (AVERAGE_POOL_2D, L2_POOL_2D, MAX_POOL_2D, RESIZE_BILINEAR,
RESIZE_NEAREST_NEIGHBOR, ROI_ALIGN, ROI_POOLING).
"""

import numpy as np

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.declaring import declare
from asyncnn.hal.operations.shapes import in_layout
from asyncnn.hal.operations.signature import INT32
from asyncnn.hal.operations.sliding_windows import pool_window


def _pool_shape(operation: BoundOperation) -> tuple[Shape]:
    window = pool_window(operation)
    batches, _, _, channels = operation.image_shape(window.nchw)
    operation.require(channels > 0, "the input has no channels")
    shape = batches, window.height.output, window.width.output, channels
    return (in_layout(shape, window.nchw),)


def _new_length(operation: BoundOperation, index: int, length: int) -> int:
    """Return the length that scalar ``index`` gives, by itself or as a factor."""
    value = operation.value(index).reshape(())
    if operation.input(index).type != INT32:
        value = np.floor(np.float32(length) * np.float32(value))
    operation.require(bool(0 < value < 2**31), f"{value} is no output length")
    return int(value)


def _resize_shape(operation: BoundOperation) -> tuple[Shape]:
    nchw = operation.boolean(3, False)
    batches, height, width, channels = operation.image_shape(nchw)
    operation.require(0 not in (height, width, channels), "the image is empty")
    operation.require_if_known(
        5,
        lambda half_pixel: not (half_pixel and operation.boolean(4, False)),
        "half_pixel_centers excludes align_corners",
    )
    lines = _new_length(operation, 2, height)
    columns = _new_length(operation, 1, width)
    return (in_layout((batches, lines, columns, channels), nchw),)


def _region_shape(operation: BoundOperation) -> tuple[Shape]:
    nchw = operation.boolean(len(operation.inputs) - 1)
    *_, channels = image = operation.image_shape(nchw)
    operation.require(0 not in image, f"image {list(image)} is empty")
    regions, corners = operation.shape_of_rank(1, 2)
    operation.require(corners == 4, f"regions have {corners} numbers each, not 4")
    operation.check_shape(2, (regions,), "batch_indices")
    height, width = operation.integer(3), operation.integer(4)
    operation.require(height > 0 and width > 0, f"output [{height}, {width}] is empty")
    for index in (5, 6):
        operation.require_if_known(
            index, lambda ratio: ratio > 0, "a ratio is not above 0"
        )
    return (in_layout((regions, height, width, channels), nchw),)


def _align_shape(operation: BoundOperation) -> tuple[Shape]:
    for index in (7, 8):
        operation.require_if_known(
            index, lambda count: count >= 0, "a sampling count is negative"
        )
    return _region_shape(operation)


_SLIDING = (
    "stride_width stride_height filter_width filter_height activation: INT32 "
    "| nchw: BOOL @1.2"
)
_POOL = (
    f"input, padding_scheme {_SLIDING}",
    f"input, padding_left padding_right padding_top padding_bottom {_SLIDING}",
)
_POOLED = "1.0: F32; 1.2: F16; 1.0: Q8; 1.3: Q8S"

_RESIZED = (
    "T/S {}: F32/INT32; 1.2: F32/FLOAT32 F16/INT32 F16/FLOAT16 Q8/INT32 Q8/FLOAT32; "
    "1.3: Q8S/INT32 Q8S/FLOAT32"
)
"""``S`` is an integer for a size in pixels, a float for a factor."""

_SAMPLING = "nchw: BOOL @1.2 | align_corners: BOOL @1.3 | half_pixel_centers: BOOL @1.3"

_CUT = (
    "T/R/S 1.2: F32/F32/FLOAT32 F16/F16/FLOAT16 Q8/Q16A/FLOAT32; 1.3: Q8S/Q16A/FLOAT32"
)
"""``R`` is the type of the regions."""

_REGIONS = (
    "input, regions: R = corners, batch_indices: I32, height width: INT32, "
    "height_ratio width_ratio: S"
)

SIGNATURES = (
    declare(f"AVERAGE_POOL_2D {_POOLED}", _POOL, _pool_shape),
    declare("L2_POOL_2D 1.0: F32; 1.2: F16", _POOL, _pool_shape),
    declare(f"MAX_POOL_2D {_POOLED}", _POOL, _pool_shape),
    declare(
        f"RESIZE_BILINEAR {_RESIZED.format('1.0')}",
        f"input, width height: S | {_SAMPLING}",
        _resize_shape,
    ),
    declare(
        f"RESIZE_NEAREST_NEIGHBOR {_RESIZED.format('1.2')}",
        f"input, width height: S, {_SAMPLING}",
        _resize_shape,
    ),
    declare(
        f"ROI_ALIGN {_CUT}",
        f"{_REGIONS}, height_samples width_samples: INT32, nchw: BOOL",
        _align_shape,
    ),
    declare(f"ROI_POOLING {_CUT}", f"{_REGIONS}, nchw: BOOL", _region_shape),
)
