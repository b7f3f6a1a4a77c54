"""Boxes around objects: proposals, refinement, suppression and key points.

A box is ``[x1, y1, x2, y2]``; quantised boxes count eighths of a pixel.

Source: 1.3/types.hal (AXIS_ALIGNED_BBOX_TRANSFORM, BOX_WITH_NMS_LIMIT,
DETECTION_POSTPROCESSING, GENERATE_PROPOSALS, HEATMAP_MAX_KEYPOINT).
"""

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.image import BOX_QUANTIZATION
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
from asyncnn.hal.operations.signature import (
    BOOL,
    F16,
    F32,
    FLOAT16,
    FLOAT32,
    I32,
    INT32,
    Q8,
    Q8S,
    Q16A,
    Q16S,
    V1_2,
    V1_3,
    Argument,
    Layout,
    OperationSignature,
    arguments,
    row,
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


_BOXES = Argument("boxes", "B", quantization=BOX_QUANTIZATION)
_IMAGE_INFO = Argument("image_info", "B", quantization=BOX_QUANTIZATION)
_BATCH_INDICES = Argument("batch_indices", I32)

SIGNATURES = (
    OperationSignature(
        OperationType.AXIS_ALIGNED_BBOX_TRANSFORM,
        rows=(
            row(V1_2, B=F16, T=F16),
            row(V1_2, B=F32, T=F32),
            row(V1_2, B=Q16A, T=Q8),
            row(V1_3, B=Q16A, T=Q8S),
        ),
        layouts=(
            Layout(
                (_BOXES, Argument("deltas"), _BATCH_INDICES, _IMAGE_INFO),
                (Argument("output", "B", quantization=BOX_QUANTIZATION),),
            ),
        ),
        shape=_transform_shape,
    ),
    OperationSignature(
        OperationType.BOX_WITH_NMS_LIMIT,
        rows=(
            row(V1_2, T=F16, B=F16, S=FLOAT16),
            row(V1_2, T=F32, B=F32, S=FLOAT32),
            row(V1_2, T=Q8, B=Q16A, S=FLOAT32),
            row(V1_3, T=Q8S, B=Q16A, S=FLOAT32),
        ),
        layouts=(
            Layout(
                (
                    Argument("scores"),
                    _BOXES,
                    _BATCH_INDICES,
                    Argument("score_threshold", "S"),
                    *arguments(INT32, "max_detections", "kernel"),
                    *arguments("S", "iou_threshold", "sigma", "nms_score_threshold"),
                ),
                (
                    Argument("scores"),
                    _BOXES,
                    Argument("classes", I32),
                    _BATCH_INDICES,
                ),
            ),
        ),
        shape=_suppression_shape,
    ),
    OperationSignature(
        OperationType.GENERATE_PROPOSALS,
        rows=(
            row(V1_2, T=F16, A=F16, B=F16, S=FLOAT16),
            row(V1_2, T=F32, A=F32, B=F32, S=FLOAT32),
            row(V1_2, T=Q8, A=Q16S, B=Q16A, S=FLOAT32),
            row(V1_3, T=Q8S, A=Q16S, B=Q16A, S=FLOAT32),
        ),
        layouts=(
            Layout(
                (
                    Argument("scores"),
                    Argument("deltas"),
                    Argument("anchors", "A", quantization={Q16S: (0.125, 0)}),
                    _IMAGE_INFO,
                    *arguments("S", "height_ratio", "width_ratio"),
                    *arguments(INT32, "max_before_nms", "max_after_nms"),
                    *arguments("S", "iou_threshold", "min_size"),
                    Argument("nchw", BOOL),
                ),
                (Argument("scores"), _BOXES, _BATCH_INDICES),
            ),
        ),
        shape=_proposals_shape,
    ),
    OperationSignature(
        OperationType.DETECTION_POSTPROCESSING,
        rows=(row(V1_2, T=F16, S=FLOAT16), row(V1_2, T=F32, S=FLOAT32)),
        layouts=(
            Layout(
                (
                    *arguments("T", "scores", "deltas", "anchors"),
                    *arguments("S", "scale_y", "scale_x", "scale_h", "scale_w"),
                    Argument("regular_nms", BOOL),
                    *arguments(
                        INT32,
                        "max_detections",
                        "max_classes_per_detection",
                        "max_detections_per_class",
                    ),
                    *arguments("S", "score_threshold", "iou_threshold"),
                    Argument("background_is_class_0", BOOL),
                ),
                (
                    *arguments("T", "scores", "boxes"),
                    *arguments(I32, "classes", "count"),
                ),
            ),
        ),
        shape=_detection_shape,
    ),
    OperationSignature(
        OperationType.HEATMAP_MAX_KEYPOINT,
        rows=(
            row(V1_2, T=F16, B=F16),
            row(V1_2, T=F32, B=F32),
            row(V1_2, T=Q8, B=Q16A),
            row(V1_3, T=Q8S, B=Q16A),
        ),
        layouts=(
            Layout(
                (Argument("heatmaps"), _BOXES, Argument("nchw", BOOL)),
                (
                    Argument("scores"),
                    Argument("keypoints", "B", quantization=BOX_QUANTIZATION),
                ),
            ),
        ),
        shape=_keypoint_shape,
    ),
)
