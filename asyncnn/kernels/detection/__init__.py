"""Kernels for boxes around objects: refine, select, pool, and find key points in them.

They share ``boxes``: what a box is, what stored values stand for, and which boxes
survive one another. Loops go over boxes, classes, images and taps, never pixels.
"""

from asyncnn.hal.types import OperationType
from asyncnn.kernels.detection import (
    boxes,
    heatmap_max_keypoint,
    postprocessing,
    proposals,
    roi,
)
from asyncnn.kernels.kernel import Compute, Prepare

KERNELS: dict[OperationType, Prepare] = {
    **boxes.KERNELS,
    **heatmap_max_keypoint.KERNELS,
    **postprocessing.KERNELS,
    **roi.KERNELS,
}

DATA_DEPENDENT: dict[OperationType, Compute] = {
    **proposals.DATA_DEPENDENT,
}
