"""DETECTION_POSTPROCESSING: a fixed number of detections for each image.

Source: 1.3/types.hal (DETECTION_POSTPROCESSING).
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.hal.types import OperationType
from asyncnn.kernels.detection.boxes import (
    Integers,
    Reals,
    falling,
    hard,
    pick_boxes,
    pick_by_class,
)
from asyncnn.kernels.kernel import Inputs, Outputs, Prepare, PreparedKernel, stateless
from asyncnn.kernels.numerics import widen_float16

Detect: TypeAlias = Callable[[Reals, Reals], tuple[Integers, Integers]]
"""Finds box and class indices, given one image's scores and boxes."""


def _prepare(operation: BoundOperation) -> PreparedKernel:
    """Decode boxes from anchors and deltas, then suppress all but the best of them.

    The centre is ``anchor_center + anchor_size * (dy, dx) / (scale_y, scale_x)``, the
    size ``anchor_size * exp((dh, dw) / (scale_h, scale_w))``. Regular suppression
    treats each class by itself and keeps the best; else a box stands for its best
    class, suppression is done once, and each box is given out with its best classes.

    Inputs: ``scores: T [N, anchors, classes]``, class 0 being the background; ``deltas:
    T [N, anchors, 4 or more]`` as dy, dx, dh, dw, the rest being ignored; ``anchors: T
    [anchors, 4]`` as center_y, center_x, height, width. Scalars: scale_y, scale_x,
    scale_h, scale_w, regular_nms, max_detections, max_classes_per_detection (not
    regular), max_detections_per_class (regular), score_threshold, iou_threshold,
    background_is_class_0 (else class 1 is given out as 0).

    Outputs: ``scores: T [N, M]``, ``boxes: T [N, M, 4]`` as y1, x1, y2, x2, ``classes:
    int32 [N, M]``, all zero after the detections, and their number ``count: int32
    [N]``. ``M`` is max_detections, times max_classes_per_detection unless regular.

    float16 is computed in float32.
    """
    is_regular = operation.boolean(7)
    detect = (_detect_by_class if is_regular else _detect_by_box)(operation)
    scaling = np.array([operation.real(index) for index in range(3, 7)], np.float32)
    first_label = 0 if operation.boolean(13) else 1

    def run(inputs: Inputs, outputs: Outputs) -> None:
        for output in outputs:
            output.fill(0)
        scores, places = inputs[0], _decode(inputs[1], inputs[2], scaling)
        found_scores, found_boxes, found_classes, counts = outputs
        for image, boxes in enumerate(places):
            rows, labels = detect(scores[image], boxes)
            counts[image] = count = len(rows)
            found_scores[image, :count] = scores[image, rows, labels]
            found_boxes[image, :count] = boxes[rows]
            found_classes[image, :count] = labels - first_label

    return widen_float16(operation, stateless(run))


def _decode(deltas: Array, anchors: Array, scaling: Reals) -> Reals:
    """Return the corners [N, anchors, 4]."""
    centers, sizes = anchors[:, :2], anchors[:, 2:]
    middles = centers + sizes * deltas[..., :2] / scaling[:2]
    halves = sizes * np.exp(deltas[..., 2:4] / scaling[2:]) * np.float32(0.5)
    return np.concatenate([middles - halves, middles + halves], axis=-1)


def _detect_by_class(operation: BoundOperation) -> Detect:
    limit, limit_of_class = operation.integer(8), operation.integer(10)
    threshold, survives = operation.real(11), hard(operation.real(12))

    def detect(scores: Reals, boxes: Reals) -> tuple[Integers, Integers]:
        def pick(label: int, candidates: Integers) -> Integers:
            column = scores[:, label]
            return pick_boxes(column, boxes, candidates, limit_of_class, survives)

        return pick_by_class(scores, threshold, limit, pick)

    return detect


def _detect_by_box(operation: BoundOperation) -> Detect:
    limit, classes_of_box = operation.integer(8), operation.integer(9)
    threshold, survives = operation.real(11), hard(operation.real(12))

    def detect(scores: Reals, boxes: Reals) -> tuple[Integers, Integers]:
        best = scores[:, 1:].max(axis=1)
        candidates = np.flatnonzero(best > threshold)
        rows = pick_boxes(best, boxes, candidates, limit, survives)
        labels = falling(scores[rows, 1:])[:, :classes_of_box] + 1
        return np.repeat(rows, labels.shape[1]), labels.ravel()

    return detect


KERNELS: dict[OperationType, Prepare] = {
    OperationType.DETECTION_POSTPROCESSING: _prepare
}
