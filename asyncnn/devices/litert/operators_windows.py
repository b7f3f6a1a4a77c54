"""Filters that slide over images: padding and layout in TFLite, and pools.

Padding that is neither of TFLite's two schemes is added by an operator of its own,
except where the average counts elements, and NCHW images are transposed before and
after.
"""

import math
from collections.abc import Sequence

import numpy as np

from asyncnn.devices.litert.operation_writer import (
    CODES,
    FLOATS,
    OperationWriter,
    Reordered,
    Rule,
    Write,
)
from asyncnn.devices.litert.tflite_graph import FLOAT32, WrittenTensor, options
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.operations.sliding_windows import SAME as HAL_SAME
from asyncnn.hal.operations.sliding_windows import (
    Padding,
    Window,
    padding_for_scheme,
    pool_window,
)
from asyncnn.hal.types import OperationType

SAME, VALID = 0, 1
"""Padding schemes by the schema's numbers."""

_MAX_STEP = 2**14
"""Largest stride, dilation or filter: LiteRT keeps them in 16 bits."""

_MAX_TOUCHES = 2**24
"""Most pairs of a tap and an output pixel: XNNPACK has a pointer for each of them."""


def scheme_of(axes: Sequence[Window]) -> int | None:
    """Return the scheme of TFLite that pads all axes like this, None if none does."""
    if all(
        axis.before == 0
        and axis.output == (axis.input - axis.extent) // axis.stride + 1
        for axis in axes
    ):
        return VALID
    for axis in axes:
        before, _ = padding_for_scheme(
            HAL_SAME, axis.input, axis.filter, axis.stride, axis.dilation
        )
        if axis.before != before or axis.output != -(-axis.input // axis.stride):
            return None
    return SAME


def needed_padding(axis: Window) -> Padding:
    """Return what has to be added to ``axis``, without what no filter touches."""
    reached = (axis.output - 1) * axis.stride + axis.extent
    return axis.before, max(reached - axis.before - axis.input, 0)


def check_steps(
    writer: OperationWriter, axes: Sequence[Window], *, spreads: bool = False
) -> None:
    """Check what LiteRT has int32 or memory for; a transpose ``spreads`` its input."""
    pixels = math.prod([axis.output for axis in axes])
    touched = math.prod([axis.input for axis in axes]) if spreads else pixels
    touches = touched * math.prod([axis.filter for axis in axes])
    writer.require(
        touches == pixels or touches <= _MAX_TOUCHES,
        "a filter that touches too many elements",
    )
    writer.require(
        max([max(a.stride, a.dilation, a.filter) for a in axes]) <= _MAX_STEP,
        "a stride, dilation or filter above {}",
        _MAX_STEP,
    )


def padded_image(
    writer: OperationWriter, image: WrittenTensor, axes: Sequence[Window]
) -> tuple[WrittenTensor, int]:
    """Return the image, padded if it has to be, and the scheme that is left."""
    scheme = scheme_of(axes)
    if scheme is not None:
        return image, scheme
    height, width = map(needed_padding, axes)
    return writer.padded(image, [(0, 0), height, width, (0, 0)]), VALID


def _pool(name: str) -> Write:
    def write(writer: OperationWriter) -> None:
        window = pool_window(writer.operation)
        axes = window.height, window.width
        check_steps(writer, axes)
        writer.require_kept_quantization()
        images = Reordered.nhwc(writer, writer.input(0), nchw=window.nchw)
        image, scheme = images.source, scheme_of(axes)
        if scheme is None:
            writer.require(name == "MAX_POOL_2D", "padding that is no scheme of TFLite")
            image, scheme = _padded_with_lowest(writer, image, axes), VALID
        result = images.target()
        table = options(
            "Pool2DOptions",
            Padding=scheme,
            StrideW=window.width.stride,
            StrideH=window.height.stride,
            FilterWidth=window.width.filter,
            FilterHeight=window.height.filter,
            FusedActivationFunction=writer.activation_code(window.activation),
        )
        writer.emit(name, [image], result, table)
        images.finish(result)

    return write


def _padded_with_lowest(
    writer: OperationWriter, image: WrittenTensor, axes: Sequence[Window]
) -> WrittenTensor:
    """Pad with what no maximum is taken of, as each window touches the image."""
    lowest: Array = (
        np.array([-np.inf], np.float32)
        if image.type == FLOAT32
        else np.array([-128], np.int8)
    )
    value = writer.graph.constant(image.type, lowest, image.quantization)
    paddings = [(0, 0), *map(needed_padding, axes), (0, 0)]
    return writer.padded(image, paddings, value)


RULES: dict[OperationType, Rule] = {
    OperationType.AVERAGE_POOL_2D: Rule(
        _pool("AVERAGE_POOL_2D"),
        (*FLOATS, *CODES),
        "AVERAGE_POOL_2D",
        "padding that is no scheme of TFLite: it must not be counted",
    ),
    OperationType.L2_POOL_2D: Rule(
        _pool("L2_POOL_2D"),
        FLOATS,
        "L2_POOL_2D",
        "padding that is no scheme of TFLite: it must not be counted",
    ),
    OperationType.MAX_POOL_2D: Rule(
        _pool("MAX_POOL_2D"),
        (*FLOATS, *CODES),
        "MAX_POOL_2D, after PADV2 with the lowest value if no scheme fits",
    ),
}
