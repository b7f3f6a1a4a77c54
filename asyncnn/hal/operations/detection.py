"""Boxes around objects: proposals, refinement, suppression and key points.

A box is ``[x1, y1, x2, y2]``; quantised boxes count eighths of a pixel.

Source: 1.3/types.hal (AXIS_ALIGNED_BBOX_TRANSFORM, BOX_WITH_NMS_LIMIT,
DETECTION_POSTPROCESSING, GENERATE_PROPOSALS, HEATMAP_MAX_KEYPOINT).
"""

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.declaring import declare
from asyncnn.hal.operations.shapes import data_dependent, in_layout

_BOX = 4


def _transform_shape(operation: BoundOperation) -> tuple[Shape]:
    boxes, corners = operation.shape_of_rank(0, 2)
    operation.require(corners == _BOX, f"boxes have {corners} numbers each, not 4")
    columns = operation.shape_of_rank(1, 2)[1]
    classes = operation.whole_quotient(columns, _BOX, "number of delta columns")
    images = operation.shape_of_rank(3, 2)[0]
    operation.require(classes > 0 and images > 0, "there are no classes or no images")
    operation.check_shape(1, (boxes, columns), "deltas")
    operation.check_shape(2, (boxes,), "batch_indices")
    operation.check_shape(3, (images, 2), "image_info")
    return ((boxes, columns),)


def _suppression_shape(operation: BoundOperation) -> tuple[None, ...]:
    boxes, classes = operation.shape_of_rank(0, 2)
    operation.require(classes > 1, f"{classes} classes leave none beside background")
    operation.check_shape(1, (boxes, classes * _BOX), "boxes")
    operation.check_shape(2, (boxes,), "batch_indices")
    return data_dependent(operation)


def _proposals_shape(operation: BoundOperation) -> tuple[None, ...]:
    nchw = operation.boolean(10)
    images, height, width, anchors = operation.image_shape(nchw)
    deltas = in_layout((images, height, width, anchors * _BOX), nchw)
    operation.check_shape(1, deltas, "deltas")
    operation.check_shape(2, (anchors, _BOX), "anchors")
    operation.check_shape(3, (images, 2), "image_info")
    return data_dependent(operation)


def _detection_shape(operation: BoundOperation) -> tuple[Shape, ...]:
    images, anchors, classes = operation.shape_of_rank(0, 3)
    operation.require(classes > 1, f"{classes} classes leave none beside background")
    encoding = operation.shape_of_rank(1, 3)[2]
    operation.require(encoding >= _BOX, f"boxes are encoded in {encoding} numbers")
    operation.check_shape(1, (images, anchors, encoding), "deltas")
    operation.check_shape(2, (anchors, _BOX), "anchors")
    for index in range(3, 7):
        operation.require_if_known(
            index, lambda scale: scale > 0, "a scale is not above 0"
        )
    for index in (11, 12):
        operation.require_if_known(
            index, lambda limit: limit >= 0, "a threshold is negative"
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
    operation.require(value > 0, f"{name} is {value}, not positive")
    return value


def _keypoint_shape(operation: BoundOperation) -> tuple[Shape, Shape]:
    nchw = operation.boolean(2)
    boxes, height, width, keypoints = operation.image_shape(nchw)
    operation.require(
        height == width >= 2,
        f"heat maps of {height} by {width} are not square, or smaller than 2",
    )
    operation.check_shape(1, (boxes, _BOX), "boxes")
    return (boxes, keypoints), (boxes, keypoints, 2)


SIGNATURES = (
    declare(
        "AXIS_ALIGNED_BBOX_TRANSFORM B/T 1.2: F16/F16 F32/F32 Q16A/Q8; 1.3: Q16A/Q8S",
        "boxes: B = corners, deltas, batch_indices: I32, image_info: B = corners "
        "-> output: B = corners",
        _transform_shape,
    ),
    declare(
        "BOX_WITH_NMS_LIMIT T/B/S 1.2: F16/F16/FLOAT16 F32/F32/FLOAT32 "
        "Q8/Q16A/FLOAT32; 1.3: Q8S/Q16A/FLOAT32",
        "scores, boxes: B = corners, batch_indices: I32, score_threshold: S, "
        "max_detections kernel: INT32, iou_threshold sigma nms_score_threshold: S "
        "-> scores, boxes: B = corners, classes batch_indices: I32",
        _suppression_shape,
    ),
    declare(
        "GENERATE_PROPOSALS T/A/B/S 1.2: F16/F16/F16/FLOAT16 F32/F32/F32/FLOAT32 "
        "Q8/Q16S/Q16A/FLOAT32; 1.3: Q8S/Q16S/Q16A/FLOAT32",
        "scores deltas, anchors: A = anchors, image_info: B = corners, "
        "height_ratio width_ratio: S, max_before_nms max_after_nms: INT32, "
        "iou_threshold min_size: S, nchw: BOOL "
        "-> scores, boxes: B = corners, batch_indices: I32",
        _proposals_shape,
    ),
    declare(
        "DETECTION_POSTPROCESSING T/S 1.2: F16/FLOAT16 F32/FLOAT32",
        "scores deltas anchors, scale_y scale_x scale_h scale_w: S, regular_nms: BOOL, "
        "max_detections max_classes_per_detection max_detections_per_class: INT32, "
        "score_threshold iou_threshold: S, background_is_class_0: BOOL "
        "-> scores boxes, classes count: I32",
        _detection_shape,
    ),
    declare(
        "HEATMAP_MAX_KEYPOINT T/B 1.2: F16/F16 F32/F32 Q8/Q16A; 1.3: Q8S/Q16A",
        "heatmaps, boxes: B = corners, nchw: BOOL -> scores, keypoints: B = corners",
        _keypoint_shape,
    ),
)
