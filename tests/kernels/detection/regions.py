"""What tests of ROI_ALIGN and ROI_POOLING share: cases in every type and layout."""

from typing import NamedTuple

import numpy as np

from asyncnn.hal.operations.bound import Array
from tests.kernels.detection.cases import described, encoded, scalar
from tests.kernels.operations import I32, compute, tensor

NCHW = (0, 3, 1, 2)
NHWC = (0, 2, 3, 1)


class Case(NamedTuple):
    """Regions ``boxes`` of images that are ``ratios`` as high and wide as ``maps``."""

    maps: Array
    boxes: Array
    images: Array
    ratios: tuple[float, float]


def random_case(seed: int, ratios=(2.0, 4.0), regions: int = 6) -> Case:
    """Return regions anywhere in two images; some are points, some the whole map."""
    generator = np.random.default_rng(seed)
    height, width = (int(n) for n in generator.integers(1, 9, 2))
    maps = generator.integers(-64, 64, (2, height, width, 3)) / 32
    edges = np.array([width * ratios[1], height * ratios[0]])
    corners = generator.integers(0, np.floor(edges * 8) + 1, (regions, 2, 2)) / 8
    corners.sort(axis=1)
    corners[0, 0], corners[0, 1] = 0, np.floor(edges * 8) / 8
    corners[1, 1] = corners[1, 0]
    boxes = corners.reshape(regions, 4)
    return Case(maps, boxes, generator.integers(0, 2, regions), ratios)


def resample(
    operation, kind, case, size, *options, nchw=False, scales=(1 / 32, 1 / 32)
):
    """Run either operation; return the output's description and its array as NHWC."""
    maps = case.maps.transpose(NCHW) if nchw else case.maps
    shape = (len(case.boxes), *size, case.maps.shape[3])
    shape = tuple(shape[axis] for axis in NCHW) if nchw else shape
    output = described(kind.values, shape, scales[1])
    array = compute(
        operation,
        [
            encoded(kind.values, maps, scales[0]),
            encoded(kind.boxes, case.boxes),
            tensor(I32, case.images),
            *size,
            *(scalar(kind, ratio) for ratio in case.ratios),
            *options,
            nchw,
        ],
        output,
    )
    return output, array.transpose(NHWC) if nchw else array


ILLEGAL = {
    "negative image": ([0, 0, 1, 1], -1, "image -1"),
    "no such image": ([0, 0, 1, 1], 2, "image 2"),
    "x reversed": ([2, 0, 1, 1], 0, "ends before it begins"),
    "y reversed": ([0, 2, 1, 1], 0, "ends before it begins"),
    "behind the width": ([0, 0, 16.5, 1], 0, "reaches out"),
    "behind the height": ([0, 0, 1, 6.25], 0, "reaches out"),
    "before the image": ([-0.125, 0, 1, 1], 0, "reaches out"),
    "no number": ([0, 0, np.nan, 1], 0, "ends before it begins"),
}
"""A box and an image index that fit no map of 3 by 4 pixels, and what is said."""


def illegal_case(name: str) -> Case:
    box, image, _ = ILLEGAL[name]
    maps = np.zeros((2, 3, 4, 1))
    return Case(maps, np.array([box], np.float64), np.array([image]), (2.0, 4.0))
