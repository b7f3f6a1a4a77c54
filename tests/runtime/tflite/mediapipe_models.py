"""Small TFLite files of the structure of MediaPipe's models, with random weights.

Each has the layers of its model, and its custom operators where that has them; sizes
and depths are smaller.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from tests.runtime.tflite.cases import F32, const
from tests.runtime.tflite.files import T, flex
from tests.runtime.tflite.mediapipe_formulas import (
    SAME,
    VALID,
    box_matrix,
    crop_matrix,
    transformed_image,
    transformed_landmarks,
)
from tests.runtime.tflite.mediapipe_layers import RELU, Graph, Layers


def selfie_segmentation() -> Graph:
    """Halves of MobileNet with squeezes, halves up again; weights of float16."""
    net = Layers(1, 64, 64, 3, is_half=True)

    def squeezed(x: T) -> T:
        y = net.conv(net.pool("AVERAGE_POOL_2D", x, x.shape[1]), 8, activation=RELU)
        return net.same("MUL", x, net.same("LOGISTIC", net.conv(y, x.shape[3])))

    def block(x: T, depth: int, stride: int) -> T:
        y = net.same("HARD_SWISH", net.conv(x, 2 * depth))
        y = net.same("HARD_SWISH", net.depthwise(y, 5, stride))
        y = net.conv(squeezed(y), depth)
        return net.same("ADD", x, y) if stride == 1 else y

    first = net.same("HARD_SWISH", net.conv(net.image, 8, 3, 2))
    second = block(first, 16, 2)
    x = block(block(second, 24, 2), 24, 1)
    for skip in (second, first):
        x = net.resize(net.conv(x, skip.shape[3]), *skip.shape[1:3])
        x = squeezed(net.same("ADD", skip, x))
        x = net.same("HARD_SWISH", net.depthwise(x))
    mask = net.transposed(x, 1, 2, VALID, spread=5.0)
    return net.graph(net.same("LOGISTIC", mask))


def hair_segmentation() -> Graph:
    """An encoder whose pools keep their places, for the decoder to put values there."""
    net = Layers(2, 64, 64, 4)

    def block(x: T, dilation: int = 1) -> T:
        y = net.prelu(net.conv(x, x.shape[3] // 2))
        y = net.prelu(net.conv(y, x.shape[3] // 2, 3, dilation=dilation))
        return net.prelu(net.same("ADD", net.conv(y, x.shape[3]), x))

    first = net.prelu(net.conv(net.image, 8, 3, 2))
    x, first_places = net.maxima(first)
    second = block(net.prelu(net.conv(x, 16)))
    x, second_places = net.maxima(second)
    for dilation in (1, 2, 4):
        x = block(x, dilation)
    x = net.unpool(x, second_places)
    x = block(net.same("ADD", second, x))
    x = net.unpool(net.conv(x, 8), first_places)
    x = block(net.add("CONCATENATION", [x, first], 1, 32, 32, 16, Axis=3))
    return net.graph(net.transposed(x, 2, 4, SAME))


MARKS = 12
MARK_PLACES = [(x, y, 0.0) for y in (18, 30, 42) for x in (18, 26, 34, 42)]
"""Where landmarks of a face of 64 x 64 pixels are, in the mean of all images."""


def face_landmarks(version: int) -> Graph:
    """A mesh, and twice attention: a region is cut out, turned, and looked at again."""
    net = Layers(2 + version, 64, 64, 3)

    def residual(x: T) -> T:
        return net.prelu(net.same("ADD", net.conv(net.depthwise(x), x.shape[3]), x))

    features = net.prelu(net.conv(net.image, 8, 3, 2))
    features = net.conv(net.depthwise(residual(features), stride=2), 12)
    features = residual(net.prelu(features))
    x = net.pool("MAX_POOL_2D", residual(features), 2)
    x = residual(net.prelu(net.conv(x, 16)))
    places = np.array(MARK_PLACES) + np.random.default_rng(7).uniform(-2, 2, (12, 3))
    mesh = net.dense(x, T.constant(places.reshape(-1), F32), spread=1.5)
    face = net.same("LOGISTIC", net.dense(x, net.bias(1)))
    regions = [[0, 1, 4, 5, 9], [2, 3, 6, 7, 10]]
    attend = (_attended_1, _attended_2)[version - 1]
    return net.graph(mesh, face, *(attend(net, features, mesh, r) for r in regions))


SIDE, CROP, RATIO = 16, 8, 4.0
"""Pixels along features of a face and of a region; and those of the image for one."""


def _region(net: Layers, x: T) -> T:
    """Add the second head, which finds landmarks of a region within it."""
    x = net.prelu(net.conv(net.prelu(net.conv(x, 16, 3)), 8, 3, 2))
    grid = [(x, y, 0.5) for y in (2.0, 6.0) for x in (1.0, 4.0, 7.0)]
    return net.dense(x, T.constant(np.reshape(grid, -1), F32), spread=0.3)


def _attended_1(net: Layers, features: T, mesh: T, region: list[int]) -> T:
    options = {
        "dimensions": 3,
        "landmarks_range": 64,
        "left_rotation_idx": region[0],
        "right_rotation_idx": region[1],
        "bbox_size_multiplier": 1.25,
        "input_hw": [SIDE, SIDE],
        "output_hw": [CROP, CROP],
        "subset": region,
    }
    flat = net.add("RESHAPE", [mesh, const([1, 1, 1, -1])], 1, 1, 1, 3 * MARKS)
    (matrix,) = net.custom(
        "Landmarks2TransformMatrix",
        [flat],
        [(1, 4, 4)],
        flex(options),
        lambda marks: [box_matrix(marks, options)[None]],
    )
    (cut,) = net.custom(
        "TransformTensorBilinear",
        [features, matrix],
        [(1, CROP, CROP, features.shape[3])],
        flex({"mode": "bilinear", "output_size": [CROP, CROP]}),
        lambda *both: [transformed_image(*both, (CROP, CROP), centred=False)],
    )
    found = net.same("MUL", _region(net, cut), const(RATIO, F32))
    count = found.shape[1]
    found = net.add("RESHAPE", [found, const([1, 1, 1, -1])], 1, 1, 1, count)

    def formula(marks: np.ndarray, matrix: np.ndarray) -> list[np.ndarray]:
        points = marks.reshape(-1, 3)
        return [transformed_landmarks(points, matrix, RATIO).reshape(marks.shape)]

    return net.custom(
        "TransformLandmarks",
        [found, matrix],
        [found.shape],
        flex({"dimensions": 3, "scale": RATIO}),
        formula,
    )[0]


def _attended_2(net: Layers, features: T, mesh: T, region: list[int]) -> T:
    options = {
        "subset_idxs": region,
        "left_rotation_idx": region[0],
        "right_rotation_idx": region[1],
        "target_rotation_radians": 0.1,
        "output_height": CROP,
        "output_width": CROP,
        "scale_x": 1.25,
        "scale_y": 1.5,
    }
    marks = net.add("RESHAPE", [mesh, const([1, -1, 3])], 1, MARKS, 3)
    marks = net.same("MUL", marks, const(1 / RATIO, F32))
    (matrix,) = net.custom(
        "Landmarks2TransformMatrix",
        [marks],
        [(1, 4, 4)],
        flex(options),
        lambda marks: [crop_matrix(marks, options)[None]],
        version=2,
    )
    (cut,) = net.custom(
        "TransformTensorBilinear",
        [features, matrix],
        [(1, CROP, CROP, features.shape[3])],
        flex({"output_height": CROP, "output_width": CROP}),
        lambda *both: [transformed_image(*both, (CROP, CROP), centred=True)],
        version=2,
    )
    found = _region(net, cut)
    count = found.shape[1] // 3
    found = net.add("RESHAPE", [found, const([1, -1, 3])], 1, count, 3)
    (moved,) = net.custom(
        "TransformLandmarks",
        [found, matrix],
        [found.shape],
        b"",
        lambda *both: [transformed_landmarks(*both)],
        version=2,
    )
    return net.same("MUL", moved, const(RATIO, F32))


ANCHORS = ((16, 2), (8, 6))
"""Lines and columns of a grid, and how many anchors are at each of its places."""
MOST_FOUND = 24


def detector() -> Graph:
    """Blocks that pad channels, two scales of anchors, and the choice among boxes."""
    net = Layers(5, 64, 64, 3)

    def padded(x: T, around: list[list[int]]) -> T:
        sizes = [n + sum(more) for n, more in zip(x.shape, around, strict=True)]
        return net.add("PAD", [x, const(around)], *sizes)

    def block(x: T, depth: int, stride: int = 1) -> T:
        if stride == 1:
            y = net.depthwise(x)
        else:
            y = padded(x, [[0, 0], [0, 1], [0, 1], [0, 0]])
            y = net.depthwise(y, 3, stride, VALID)
            x = net.pool("MAX_POOL_2D", x, stride)
        if depth > x.shape[3]:
            x = padded(x, [[0, 0], [0, 0], [0, 0], [0, depth - x.shape[3]]])
        y = net.conv(y, depth)
        return net.same("ADD", y, x, FusedActivationFunction=RELU)

    x = block(net.conv(net.image, 8, 3, 2, activation=RELU), 8)
    large = block(block(x, 16, 2), 16)
    small = block(block(large, 24, 2), 24)
    up = net.resize(net.conv(small, 16), *large.shape[1:3])
    large = block(net.same("ADD", large, up), 16)
    return net.graph(*_detections(net, [large, small]))


def _detections(net: Layers, features: Sequence[T]) -> list[T]:
    """Add scores and boxes of all anchors, and the choice among them."""
    anchors, all_scores, all_boxes = [], [], []
    for x, (side, count) in zip(features, ANCHORS, strict=True):
        total = side * side * count
        for results, width in ((all_scores, 1), (all_boxes, 4)):
            y = net.conv(x, count * width, 3, spread=0.3)
            shape = (1, total, width)
            results.append(net.add("RESHAPE", [y, const(shape)], *shape))
        places = (np.indices((side, side)).reshape(2, -1).T + 0.5) / side
        for index in np.ndindex(side * side, count):
            size = (1.5 + index[1] / 2) / side
            anchors.append((*places[index[0]], size, size))
    total = len(anchors)
    scores = net.add("CONCATENATION", all_scores, 1, total, 1, Axis=1)
    boxes = net.add("CONCATENATION", all_boxes, 1, total, 4, Axis=1)
    options = {
        "max_detections": MOST_FOUND,
        "max_classes_per_detection": 1,
        "nms_score_threshold": 0.87,
        "nms_iou_threshold": 0.3,
        "num_classes": 1,
        "y_scale": 10.0,
        "x_scale": 10.0,
        "h_scale": 5.0,
        "w_scale": 5.0,
    }
    return net.custom(
        "TFLite_Detection_PostProcess",
        [boxes, net.same("LOGISTIC", scores), T.constant(anchors, F32)],
        [(1, MOST_FOUND, 4), (1, MOST_FOUND), (1, MOST_FOUND), (1,)],
        flex(options),
        None,
    )


GRAPHS: dict[str, Callable[[], Graph]] = {
    "selfie segmentation": selfie_segmentation,
    "hair segmentation": hair_segmentation,
    "face landmarks 1": partial(face_landmarks, 1),
    "face landmarks 2": partial(face_landmarks, 2),
    "detector": detector,
}
