"""ROI_ALIGN and ROI_POOLING: regions of a feature map, each brought to the same size.

Regions [regions, 4] are boxes of an image, laid on its feature map [batch, height,
width, channels] (or channels first), which is smaller by a ratio for each axis. The
result is [regions, height, width, channels], in float32 or rounded to codes once.
Quantised regions count eighths of a pixel.

A run raises `OperationFailedError` if a region ends before it begins or reaches out of
the feature map, or a batch index is not an image's.

Source: 1.3/types.hal (ROI_ALIGN, ROI_POOLING); NN common/cpu_operations/RoiAlign.cpp
and RoiPooling.cpp.
"""

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import (
    NCHW_TO_NHWC,
    Array,
    BoundOperation,
    OperationFailedError,
)
from asyncnn.hal.types import OperationType
from asyncnn.kernels.detection.boxes import (
    Integers,
    Reals,
    require_batch_indices,
    require_boxes,
    to_float32,
)
from asyncnn.kernels.kernel import Inputs, Outputs, Prepare, PreparedKernel, stateless
from asyncnn.kernels.numerics import code_limits, round_half_away
from asyncnn.kernels.rounding import (
    multiply_by_quantized_multiplier,
    quantize_multiplier,
)


class RegionExtent(NamedTuple):
    """Where regions begin and end along one axis of the feature map, in its pixels."""

    begin: Reals
    end: Reals


class Regions:
    """The regions of ROI_ALIGN and ROI_POOLING.

    Their inputs 0, 1, 2, 5, 6 and the last are ``feature_map: T [N, H, W, C]``,
    ``regions: R [regions, 4]`` as x1, y1, x2, y2 in the image, ``batch_indices: int32
    [regions]``, the ratios of image to feature map in height and width, and nchw.

    :raises ValueNeededError: if a scalar is not known yet.
    """

    def __init__(self, operation: BoundOperation) -> None:
        self._operation = operation
        self._operand = operation.input(1)
        self._nchw = operation.boolean(len(operation.inputs) - 1)
        shape = operation.image_shape(self._nchw)
        self._images, self.height, self.width, self.channels = shape
        ratios = np.array([operation.real(6), operation.real(5)] * 2, np.float32)
        self._scaling = np.float32(1) / ratios
        dtype = self._operand.dtype
        step = np.finfo(dtype if dtype.kind == "f" else np.float32).eps
        edge = np.array([self.width, self.height], np.float32)
        # A corner on the far edge may have been rounded up.
        self._limits = edge * np.float32(1 + step)

    def channels_last(self, images: Array) -> Array:
        """Return a [N, H, W, C] view of a feature map or an output."""
        return images.transpose(NCHW_TO_NHWC) if self._nchw else images

    def feature_maps(self, inputs: Inputs) -> Array:
        """Return the feature maps [N, H, W, C] with each pixel's channels together."""
        return np.ascontiguousarray(self.channels_last(inputs[0]))

    def locate(self, inputs: Inputs) -> tuple[RegionExtent, RegionExtent]:
        """Return where the regions lie along the height and the width.

        :raises OperationFailedError: if a region ends before it begins or reaches out
            of the feature map, or a batch index is not an image's.
        """
        corners = to_float32(inputs[1], self._operand)
        require_boxes(self._operation, corners)
        require_batch_indices(self._operation, inputs[2], self._images)
        placed = corners * self._scaling
        outside = (corners[:, :2] < 0) | ~(placed[:, 2:] <= self._limits)
        if outside.any():
            first = corners[outside.any(axis=1)][0].tolist()
            raise OperationFailedError(
                f"{self._operation.type.name}: region {first} reaches out of the "
                f"feature map of {self.height} by {self.width}"
            )
        x1, y1, x2, y2 = placed.T
        return RegionExtent(y1, y2), RegionExtent(x1, x2)


_MAX_SAMPLES = 2**28
"""Samples of one region in all channels, all computed at once: a gibibyte of them."""

_WEIGHT_STEP = np.float32(1 / 255)
"""Quantised kernels round the weights of pixels to multiples of this."""


class _Samples(NamedTuple):
    """Where samples along one axis lie: between two pixels, ``fraction`` after one."""

    before: Integers
    after: Integers
    fraction: Reals
    per_bin: int

    @property
    def corners(self) -> tuple[tuple[Integers, Reals], tuple[Integers, Reals]]:
        """The two pixels of every sample and their weights."""
        return (self.before, 1 - self.fraction), (self.after, self.fraction)


_Weigh: TypeAlias = Callable[[Reals], Array]
"""Makes of weights what pixels are multiplied by."""

_Average: TypeAlias = Callable[[Array, int], Array]
"""Makes outputs of sums over so many samples."""


def _prepare(operation: BoundOperation) -> PreparedKernel:
    """Divide each region into height by width bins and average samples of each.

    Nothing is rounded to pixels: samples are spread evenly over the bin, and each is
    interpolated between the four pixels around it. A region is at least one pixel
    high and wide. A sample behind the last pixel has its value.

    Inputs beside `Regions`'s, of which there may be none: the scalars height and
    width, then height_samples and width_samples of a bin (0: one for each pixel begun).

    Output: ``T [regions, height, width, C]`` with a quantisation of its own; the
    weights of quantised pixels are rounded to 255ths and their integer sum is
    requantised with double rounding.
    """
    regions = Regions(operation)
    height, width = operation.integer(3), operation.integer(4)
    vertical_count, horizontal_count = operation.integer(7), operation.integer(8)
    samples = (height * max(vertical_count, 1)) * (width * max(horizontal_count, 1))
    operation.require(
        samples * regions.channels <= _MAX_SAMPLES,
        f"{vertical_count} by {horizontal_count} samples in a bin take too much memory",
    )
    zero = operation.input(0).zero_point
    weigh, average = _arithmetic(operation)

    def run(inputs: Inputs, outputs: Outputs) -> None:
        vertical, horizontal = regions.locate(inputs)
        images = regions.feature_maps(inputs)
        aligned = regions.channels_last(outputs[0])
        for region, image in enumerate(inputs[2]):
            rows = _spread(vertical, region, height, vertical_count, regions.height)
            columns = _spread(
                horizontal, region, width, horizontal_count, regions.width
            )
            sums = _sum_bins(images[image], rows, columns, weigh, zero)
            aligned[region] = average(sums, rows.per_bin * columns.per_bin)

    return stateless(run)


def _spread(
    extent: RegionExtent, region: int, outputs: int, count: int, length: int
) -> _Samples:
    """Place samples of one region along an axis of ``length`` pixels."""
    begin, one = extent.begin[region], np.float32(1)
    step = np.maximum(extent.end[region] - begin, one) / np.float32(outputs)
    count = count or int(np.ceil(step))
    distance = step / np.float32(count)
    starts = step * np.arange(outputs, dtype=np.float32) + begin + distance / 2
    places = starts[:, np.newaxis] + distance * np.arange(count, dtype=np.float32)
    below = np.floor(places.reshape(-1))
    before = np.minimum(below.astype(np.intp), length - 1)
    after = np.minimum(before + 1, length - 1)
    fraction = np.where(before < after, places.reshape(-1) - below, np.float32(0))
    return _Samples(before, after, fraction, count)


def _sum_bins(
    image: Array, rows: _Samples, columns: _Samples, weigh: _Weigh, zero: int
) -> Array:
    """Return the sums [height, width, C] over the samples of each bin.

    ``image`` is [H, W, C]; ``zero`` is subtracted from its pixels.
    """
    samples: Any = 0
    for (ys, weights_y), (xs, weights_x) in product(rows.corners, columns.corners):
        weights = weigh(np.multiply.outer(weights_y, weights_x))[..., np.newaxis]
        pixels = np.subtract(image[np.ix_(ys, xs)], zero, dtype=weights.dtype)
        samples = samples + weights * pixels
    channels = image.shape[2]
    lines = samples.reshape(-1, rows.per_bin, len(columns.before), channels).sum(axis=1)
    bins: Array = lines.reshape(len(lines), -1, columns.per_bin, channels).sum(axis=2)
    return bins


def _arithmetic(operation: BoundOperation) -> tuple[_Weigh, _Average]:
    operand, output = operation.input(0), operation.outputs[0]
    if operand.type not in QUANT8_TYPES:
        return lambda weights: weights, lambda sums, count: sums / np.float32(count)

    def weigh(weights: Reals) -> Array:
        return round_half_away(weights / _WEIGHT_STEP).astype(np.int32)

    def average(sums: Array, count: int) -> Array:
        real = operand.scale * float(_WEIGHT_STEP) / output.scale / count
        steps = multiply_by_quantized_multiplier(sums, *quantize_multiplier(real))
        return np.clip(steps + output.zero_point, *code_limits(output.dtype))

    return weigh, average


class _Bins(NamedTuple):
    """The bins [regions, outputs] along one axis: first and last pixels.

    Bins that lie behind the feature map are empty; theirs is its last pixel.
    """

    first: Integers
    last: Integers
    empty: NDArray[np.bool_]


def _prepare_roi_pooling(operation: BoundOperation) -> PreparedKernel:
    """Divide each region into height by width bins and take the maximum of each.

    Corners are rounded to whole pixels, both ends being part of the region. A bin
    begins at its lower bound rounded down and ends at its upper bound rounded up, so
    that bins may overlap; one without pixels in the feature map gives real zero.

    Inputs beside `Regions`'s: the scalars height and width. The output ``T
    [regions, height, width, C]`` has the quantisation of the feature map.
    """
    regions = Regions(operation)
    height, width = operation.integer(3), operation.integer(4)
    zero = operation.input(0).zero_point

    def run(inputs: Inputs, outputs: Outputs) -> None:
        vertical, horizontal = regions.locate(inputs)
        rows = _divide(vertical, height, regions.height)
        columns = _divide(horizontal, width, regions.width)
        images = regions.feature_maps(inputs)
        pooled = regions.channels_last(outputs[0])
        for region, image in enumerate(inputs[2]):
            strip = _fold(images[image], 1, columns, region)
            pooled[region] = _fold(strip, 0, rows, region)
            pooled[region][rows.empty[region]] = zero
            pooled[region][:, columns.empty[region]] = zero

    return stateless(run)


def _divide(extent: RegionExtent, outputs: int, length: int) -> _Bins:
    """Divide all regions along an axis of the feature map, which has ``length``."""
    begin, end = (round_half_away(corner).astype(np.float32) for corner in extent)
    step = (end - begin + 1) / np.float32(outputs)
    bounds = step[:, np.newaxis] * np.arange(outputs + 1, dtype=np.float32)
    bounds += begin[:, np.newaxis]
    first = np.floor(bounds[:, :-1]).astype(np.intp)
    last = np.ceil(bounds[:, 1:]).astype(np.intp) - 1
    return _Bins(
        np.minimum(first, length - 1), np.minimum(last, length - 1), first >= length
    )


def _fold(image: Array, axis: int, bins: _Bins, region: int) -> Array:
    """Take the maximum of each of the region's bins along one axis.

    Short bins take their last pixel again where longer ones have more.
    """
    first, last = bins.first[region], bins.last[region]
    folded: Array = image.take(first, axis)
    for tap in range(1, int((last - first).max()) + 1):
        np.maximum(folded, image.take(np.minimum(first + tap, last), axis), out=folded)
    return folded


KERNELS: dict[OperationType, Prepare] = {
    OperationType.ROI_ALIGN: _prepare,
    OperationType.ROI_POOLING: _prepare_roi_pooling,
}
