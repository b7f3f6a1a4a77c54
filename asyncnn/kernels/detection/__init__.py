"""Kernels for boxes around objects: refine, select, pool, and find key points in them.

One operation per module. They share `boxes` (what a box is), `suppression` (which boxes
survive one another), `regions` (where boxes lie on a feature map) and `numbers` (what
stored values stand for). Loops go over boxes, classes, images and taps, never pixels.
"""

from asyncnn.hal.types import OperationType
from asyncnn.kernels.detection import (
    bbox_transform,
    heatmap_max_keypoint,
    nms_limit,
    postprocessing,
    proposals,
    roi_align,
    roi_pooling,
)
from asyncnn.kernels.kernel import Compute, Prepare

KERNELS: dict[OperationType, Prepare] = {
    **bbox_transform.KERNELS,
    **heatmap_max_keypoint.KERNELS,
    **postprocessing.KERNELS,
    **roi_align.KERNELS,
    **roi_pooling.KERNELS,
}

DATA_DEPENDENT: dict[OperationType, Compute] = {
    **nms_limit.DATA_DEPENDENT,
    **proposals.DATA_DEPENDENT,
}
