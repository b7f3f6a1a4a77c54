"""ROI_POOLING: regions of a feature map, each pooled to the same size.

Source: 1.3/types.hal (ROI_POOLING).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.hal.types import OperationType
from asyncnn.kernels.detection.numbers import Integers
from asyncnn.kernels.detection.regions import Extent, Regions
from asyncnn.kernels.kernel import Inputs, Outputs, Prepare, PreparedKernel, stateless
from asyncnn.kernels.numerics.quantized import round_half_away


class _Bins(NamedTuple):
    """The bins [regions, outputs] along one axis: first and last pixels.

    Bins that lie behind the feature map are empty; theirs is its last pixel.
    """

    first: Integers
    last: Integers
    empty: NDArray[np.bool_]


def _prepare(operation: BoundOperation) -> PreparedKernel:
    """Divide each region into height by width bins and take the maximum of each.

    Corners are rounded to whole pixels, both ends being part of the region. A bin
    begins at its lower bound rounded down and ends at its upper bound rounded up, so
    that bins may overlap; one without pixels in the feature map gives real zero.

    Inputs: ``feature_map: T [N, H, W, C]``; ``regions: R [regions, 4]`` as x1, y1, x2,
    y2 in the image; ``batch_indices: int32 [regions]``. Scalars: height, width,
    height_ratio and width_ratio (image to feature map), nchw.

    Output: ``T [regions, height, width, C]`` with the quantisation of the feature map.
    Quantised regions count eighths of a pixel.

    The run raises `OperationFailedError` if a region ends before it begins or reaches
    out of the feature map, or a batch index is not that of an image.

    Source: 1.3/types.hal (ROI_POOLING); NN common/cpu_operations/RoiPooling.cpp.
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


def _divide(extent: Extent, outputs: int, length: int) -> _Bins:
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
    OperationType.ROI_POOLING: _prepare,
}
