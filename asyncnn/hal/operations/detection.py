"""Boxes around objects: proposals, refinement, suppression and key points.

A box is ``[x1, y1, x2, y2]``; quantised boxes count eighths of a pixel.

Source: 1.3/types.hal (AXIS_ALIGNED_BBOX_TRANSFORM, BOX_WITH_NMS_LIMIT,
DETECTION_POSTPROCESSING, GENERATE_PROPOSALS, HEATMAP_MAX_KEYPOINT).
"""

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.declaring import declare
from asyncnn.hal.operations.shapes import (
    data_dependent,
    image_shape,
    in_layout,
    require,
    require_if_known,
    require_shape,
    shape_of_rank,
    whole_quotient,
)
from asyncnn.hal.types import OperationType

_BOX = 4


def _transform_shape(operation: BoundOperation) -> tuple[Shape]:
    boxes, corners = shape_of_rank(operation, 0, 2)
    require(operation, corners == _BOX, f"boxes have {corners} numbers each, not 4")
    columns = shape_of_rank(operation, 1, 2)[1]
    classes = whole_quotient(operation, columns, _BOX, "number of delta columns")
    images = shape_of_rank(operation, 3, 2)[0]
    require(operation, classes > 0 and images > 0, "there are no classes or no images")
    require_shape(operation, 1, (boxes, columns), "deltas")
    require_shape(operation, 2, (boxes,), "batch_indices")
    require_shape(operation, 3, (images, 2), "image_info")
    return ((boxes, columns),)


def _suppression_shape(operation: BoundOperation) -> tuple[None, ...]:
    boxes, classes = shape_of_rank(operation, 0, 2)
    require(operation, classes > 1, f"{classes} classes leave none beside background")
    require_shape(operation, 1, (boxes, classes * _BOX), "boxes")
    require_shape(operation, 2, (boxes,), "batch_indices")
    return data_dependent(operation)


def _proposals_shape(operation: BoundOperation) -> tuple[None, ...]:
    nchw = operation.boolean(10)
    images, height, width, anchors = image_shape(operation, nchw)
    deltas = in_layout((images, height, width, anchors * _BOX), nchw)
    require_shape(operation, 1, deltas, "deltas")
    require_shape(operation, 2, (anchors, _BOX), "anchors")
    require_shape(operation, 3, (images, 2), "image_info")
    return data_dependent(operation)


def _detection_shape(operation: BoundOperation) -> tuple[Shape, ...]:
    images, anchors, classes = shape_of_rank(operation, 0, 3)
    require(operation, classes > 1, f"{classes} classes leave none beside background")
    encoding = shape_of_rank(operation, 1, 3)[2]
    require(operation, encoding >= _BOX, f"boxes are encoded in {encoding} numbers")
    require_shape(operation, 1, (images, anchors, encoding), "deltas")
    require_shape(operation, 2, (anchors, _BOX), "anchors")
    for index in range(3, 7):
        require_if_known(
            operation, index, lambda scale: scale > 0, "a scale is not above 0"
        )
    for index in (11, 12):
        require_if_known(
            operation, index, lambda limit: limit >= 0, "a threshold is negative"
        )
    detections = _positive(operation, 8, "max_detections")
    if operation.boolean(7):
        _positive(operation, 10, "max_detections_per_class")
    else:
        detections *= _positive(operation, 9, "max_classes_per_detection")
    found = images, detections
    return found, (*found, _BOX), found, (images,)


def _positive(operation: BoundOperation, index: int, name: str) -> int:
    value = operation.integer(index)
    require(operation, value > 0, f"{name} is {value}, not positive")
    return value


def _keypoint_shape(operation: BoundOperation) -> tuple[Shape, Shape]:
    nchw = operation.boolean(2)
    boxes, height, width, keypoints = image_shape(operation, nchw)
    require(
        operation,
        height == width >= 2,
        f"heat maps of {height} by {width} are not square, or smaller than 2",
    )
    require_shape(operation, 1, (boxes, _BOX), "boxes")
    return (boxes, keypoints), (boxes, keypoints, 2)


SIGNATURES = (
    declare(
        OperationType.AXIS_ALIGNED_BBOX_TRANSFORM,
        "B/T 1.2: F16/F16 F32/F32 Q16A/Q8; 1.3: Q16A/Q8S",
        "boxes: B = corners, deltas, batch_indices: I32, image_info: B = corners "
        "-> output: B = corners",
        _transform_shape,
    ),
    declare(
        OperationType.BOX_WITH_NMS_LIMIT,
        "T/B/S 1.2: F16/F16/FLOAT16 F32/F32/FLOAT32 Q8/Q16A/FLOAT32; "
        "1.3: Q8S/Q16A/FLOAT32",
        "scores, boxes: B = corners, batch_indices: I32, score_threshold: S, "
        "max_detections kernel: INT32, iou_threshold sigma nms_score_threshold: S "
        "-> scores, boxes: B = corners, classes batch_indices: I32",
        _suppression_shape,
    ),
    declare(
        OperationType.GENERATE_PROPOSALS,
        "T/A/B/S 1.2: F16/F16/F16/FLOAT16 F32/F32/F32/FLOAT32 Q8/Q16S/Q16A/FLOAT32; "
        "1.3: Q8S/Q16S/Q16A/FLOAT32",
        "scores deltas, anchors: A = anchors, image_info: B = corners, "
        "height_ratio width_ratio: S, max_before_nms max_after_nms: INT32, "
        "iou_threshold min_size: S, nchw: BOOL "
        "-> scores, boxes: B = corners, batch_indices: I32",
        _proposals_shape,
    ),
    declare(
        OperationType.DETECTION_POSTPROCESSING,
        "T/S 1.2: F16/FLOAT16 F32/FLOAT32",
        "scores deltas anchors, scale_y scale_x scale_h scale_w: S, regular_nms: BOOL, "
        "max_detections max_classes_per_detection max_detections_per_class: INT32, "
        "score_threshold iou_threshold: S, background_is_class_0: BOOL "
        "-> scores boxes, classes count: I32",
        _detection_shape,
    ),
    declare(
        OperationType.HEATMAP_MAX_KEYPOINT,
        "T/B 1.2: F16/F16 F32/F32 Q8/Q16A; 1.3: Q8S/Q16A",
        "heatmaps, boxes: B = corners, nchw: BOOL -> scores, keypoints: B = corners",
        _keypoint_shape,
    ),
)
