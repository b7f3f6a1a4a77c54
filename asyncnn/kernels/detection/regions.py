"""Regions of interest: boxes of an image, laid on its smaller feature map."""

from typing import NamedTuple

import numpy as np

from asyncnn.hal.operations.bound import Array, BoundOperation, OperationFailedError
from asyncnn.hal.operations.shapes import NCHW_TO_NHWC, image_shape
from asyncnn.kernels.detection.boxes import require_batch_indices, require_boxes
from asyncnn.kernels.detection.numbers import Reals, to_float32
from asyncnn.kernels.kernel import Inputs


class Extent(NamedTuple):
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
        shape = image_shape(operation, self._nchw)
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

    def locate(self, inputs: Inputs) -> tuple[Extent, Extent]:
        """Return where the regions lie along the height and the width.

        :raises OperationFailedError: if a region ends before it begins or reaches out
            of the feature map, or a batch index is not that of an image.
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
        return Extent(y1, y2), Extent(x1, x2)
