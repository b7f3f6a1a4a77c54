from collections.abc import Mapping

import pytest

from asyncnn.hal.operations import infer_shapes
from asyncnn.hal.operations.bound import (
    BoundOperand,
    BoundOperation,
    OperationFailedError,
    Shape,
)
from asyncnn.hal.operations.signature import I32, Q8, Q16A
from asyncnn.hal.types import OperationType
from tests.hal.operations.building import Given, shapes

BOXES, CLASSES, IMAGES, ANCHORS = 5, 3, 2, 4

TRANSFORM = [(BOXES, 4), (BOXES, CLASSES * 4), (BOXES,), (IMAGES, 2)]
SUPPRESSION = [
    (BOXES, CLASSES),
    (BOXES, CLASSES * 4),
    (BOXES,),
    *[0.5, 10, 0, 0.5, 0.5, 0.5],
]
PROPOSALS = [
    (IMAGES, 6, 7, ANCHORS),
    (IMAGES, 6, 7, ANCHORS * 4),
    (ANCHORS, 4),
    (IMAGES, 2),
    *[1.0, 1.0, 10, 5, 0.5, 1.0, False],
]
DETECTION = [
    (IMAGES, BOXES, CLASSES),
    (IMAGES, BOXES, 7),
    (BOXES, 4),
    *[1.0, 1.0, 1.0, 1.0, True, 8, 2, 3, 0.5, 0.5, False],
]
KEYPOINTS = [(BOXES, 6, 6, 17), (BOXES, 4), False]


def changed(inputs: list[Given], changes: Mapping[int, Given]) -> list[Given]:
    return [changes.get(i, given) for i, given in enumerate(inputs)]


def test_a_box_is_moved_for_each_class() -> None:
    expected = ((BOXES, CLASSES * 4),)
    assert shapes(OperationType.AXIS_ALIGNED_BBOX_TRANSFORM, TRANSFORM) == expected
    none = [(0, 4), (0, 8), (0,), (1, 2)]
    assert shapes(OperationType.AXIS_ALIGNED_BBOX_TRANSFORM, none) == ((0, 8),)


@pytest.mark.parametrize(
    ("type_", "inputs", "outputs"),
    [
        (OperationType.BOX_WITH_NMS_LIMIT, SUPPRESSION, 4),
        (OperationType.GENERATE_PROPOSALS, PROPOSALS, 3),
        (
            OperationType.GENERATE_PROPOSALS,
            changed(PROPOSALS, {0: (2, 4, 6, 7), 1: (2, 16, 6, 7), 10: True}),
            3,
        ),
    ],
)
def test_only_data_tell_how_many_boxes_remain(
    type_: OperationType, inputs: list[Given], outputs: int
) -> None:
    assert shapes(type_, inputs, outputs) == (None,) * outputs


@pytest.mark.parametrize(
    ("changes", "detections"), [({}, 8), ({7: False}, 16), ({7: False, 10: 0}, 16)]
)
def test_limits_tell_how_many_detections_there_are(
    changes: Mapping[int, Given], detections: int
) -> None:
    inputs = changed(DETECTION, changes)
    assert shapes(OperationType.DETECTION_POSTPROCESSING, inputs, 4) == (
        (IMAGES, detections),
        (IMAGES, detections, 4),
        (IMAGES, detections),
        (IMAGES,),
    )


@pytest.mark.parametrize(
    "changes", [{}, {0: (BOXES, 17, 6, 6), 2: True}], ids=["nhwc", "nchw"]
)
def test_each_heat_map_gives_a_point(changes: Mapping[int, Given]) -> None:
    expected: tuple[Shape, ...] = (BOXES, 17), (BOXES, 17, 2)
    inputs = changed(KEYPOINTS, changes)
    assert shapes(OperationType.HEATMAP_MAX_KEYPOINT, inputs, 2) == expected


TYPES = {
    "transform": (OperationType.AXIS_ALIGNED_BBOX_TRANSFORM, TRANSFORM, 1),
    "suppression": (OperationType.BOX_WITH_NMS_LIMIT, SUPPRESSION, 4),
    "proposals": (OperationType.GENERATE_PROPOSALS, PROPOSALS, 3),
    "detection": (OperationType.DETECTION_POSTPROCESSING, DETECTION, 4),
    "keypoints": (OperationType.HEATMAP_MAX_KEYPOINT, KEYPOINTS, 2),
}


@pytest.mark.parametrize(
    ("name", "index", "wrong", "message"),
    [
        ("transform", 0, (BOXES, 5), "boxes have 5 numbers"),
        ("transform", 1, (BOXES, 11), "11 is not divisible by 4"),
        ("transform", 1, (6, 12), "deltas has shape"),
        ("transform", 1, (BOXES, 0), "no classes"),
        ("transform", 2, (6,), "batch_indices has shape"),
        ("transform", 3, (IMAGES, 3), "image_info has shape"),
        ("suppression", 0, (BOXES, 1), "1 classes leave none"),
        ("suppression", 1, (BOXES, 4), "boxes has shape"),
        ("suppression", 2, (6,), "batch_indices has shape"),
        ("proposals", 1, (IMAGES, 6, 7, ANCHORS), "deltas has shape"),
        ("proposals", 2, (3, 4), "anchors has shape"),
        ("proposals", 3, (1, 2), "image_info has shape"),
        ("detection", 0, (IMAGES, BOXES, 1), "1 classes leave none"),
        ("detection", 1, (IMAGES, BOXES, 3), "encoded in 3 numbers"),
        ("detection", 2, (BOXES, 5), "anchors has shape"),
        ("detection", 3, 0.0, "a scale is not above 0"),
        ("detection", 8, 0, "max_detections is 0"),
        ("detection", 10, 0, "max_detections_per_class is 0"),
        ("detection", 12, -0.5, "a threshold is negative"),
        ("keypoints", 0, (BOXES, 6, 5, 17), "heat maps of 6 by 5"),
        ("keypoints", 0, (BOXES, 1, 1, 17), "heat maps of 1 by 1"),
        ("keypoints", 1, (BOXES, 2), "boxes has shape"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    name: str, index: int, wrong: Given, message: str
) -> None:
    type_, inputs, outputs = TYPES[name]
    with pytest.raises(OperationFailedError, match=message):
        shapes(type_, changed(inputs, {index: wrong}), outputs)


@pytest.mark.parametrize(
    ("scale", "zero_point", "argument"),
    [(0.25, 0, "boxes"), (0.125, 1, "boxes"), (0.125, 0, "output")],
)
def test_quantised_boxes_count_eighths_of_a_pixel(
    scale: float, zero_point: int, argument: str
) -> None:
    operation = BoundOperation(
        OperationType.AXIS_ALIGNED_BBOX_TRANSFORM,
        (
            BoundOperand(Q16A, (BOXES, 4), scale, zero_point),
            BoundOperand(Q8, (BOXES, 4), 0.1, 3),
            BoundOperand(I32, (BOXES,)),
            BoundOperand(Q16A, (IMAGES, 2), 0.125, 0),
        ),
        (BoundOperand(Q16A, None, 0.5, 0),),
    )
    with pytest.raises(OperationFailedError, match=f"{argument} has scale"):
        infer_shapes(operation)
