"""DETECTION_POSTPROCESSING against loops over anchors and classes."""

import numpy as np
import pytest

from asyncnn.hal.types import OperationType
from tests.kernels.detection.cases import (
    FLOAT_KINDS,
    distinct_scores,
    encoded,
    naive_hard_nms,
    positions,
    scalar,
)
from tests.kernels.operations import I32, TOLERANCE, compute_all, result

SCALING = (10.0, 8.0, 5.0, 4.0)
THRESHOLD, IOU = 0.0625, 0.25


def case(seed: int, images: int = 2, anchors: int = 8, classes: int = 4):
    generator = np.random.default_rng(seed)
    scores = distinct_scores(generator, (images, anchors, classes))
    deltas = generator.integers(-64, 64, (images, anchors, 5)) / 32
    centers = generator.integers(0, 32, (anchors, 2)) / 8
    sizes = generator.integers(8, 24, (anchors, 2)) / 8
    return scores, deltas, np.concatenate([centers, sizes], axis=1)


def detect(
    kind,
    scores,
    deltas,
    anchors,
    *,
    regular,
    limit=3,
    classes_of_box=1,
    limit_of_class=2,
    background=False,
):
    images = len(scores)
    length = limit if regular else limit * classes_of_box
    outputs = [
        result(kind.values, (images, length)),
        result(kind.values, (images, length, 4)),
        result(I32, (images, length)),
        result(I32, (images,)),
    ]
    return compute_all(
        OperationType.DETECTION_POSTPROCESSING,
        [
            *(encoded(kind.values, values) for values in (scores, deltas, anchors)),
            *(scalar(kind, scale) for scale in SCALING),
            regular,
            limit,
            classes_of_box,
            limit_of_class,
            scalar(kind, THRESHOLD),
            scalar(kind, IOU),
            background,
        ],
        outputs,
    )


def naive_boxes(deltas, anchors):
    boxes = []
    for (dy, dx, dh, dw, _), (y, x, height, width) in zip(deltas, anchors, strict=True):
        y, x = y + height * dy / SCALING[0], x + width * dx / SCALING[1]
        dy = height * np.exp(dh / SCALING[2]) / 2
        dx = width * np.exp(dw / SCALING[3]) / 2
        boxes.append([y - dy, x - dx, y + dy, x + dx])
    return boxes


def naive_regular(scores, boxes, limit, limit_of_class):
    """Return score, anchor and class of each detection."""
    found = []
    for label in range(1, scores.shape[1]):
        column = scores[:, label]
        candidates = [a for (a,) in positions(len(column)) if column[a] > THRESHOLD]
        picks = naive_hard_nms(column, boxes, candidates, limit_of_class, IOU)
        found += [(column[pick], pick, label) for pick in picks]
    return sorted(found, reverse=True)[:limit]


def naive_fast(scores, boxes, limit, classes_of_box):
    best = scores[:, 1:].max(axis=1)
    candidates = [a for (a,) in positions(len(best)) if best[a] > THRESHOLD]
    found = []
    for pick in naive_hard_nms(best, boxes, candidates, limit, IOU):
        of_box = [(scores[pick, c], pick, c) for c in range(1, scores.shape[1])]
        found += sorted(of_box, reverse=True)[:classes_of_box]
    return found


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("limits", [(3, 1), (3, 2), (2, 3), (8, 5), (1, 1)])
@pytest.mark.parametrize("regular", [False, True])
@pytest.mark.parametrize("kind", FLOAT_KINDS)
def test_detections_are_those_of_the_loops(kind, regular, limits, background) -> None:
    limit, other = limits
    scores, deltas, anchors = case(limit)
    found = detect(
        kind,
        scores,
        deltas,
        anchors,
        regular=regular,
        limit=limit,
        classes_of_box=other,
        limit_of_class=other,
        background=background,
    )
    naive = naive_regular if regular else naive_fast
    expected = [np.zeros(array.shape) for array in found]
    for image in range(len(scores)):
        boxes = naive_boxes(deltas[image], anchors)
        picks = naive(scores[image], boxes, limit, other)
        expected[3][image] = len(picks)
        for place, (score, anchor, label) in enumerate(picks):
            expected[0][image, place] = score
            expected[1][image, place] = boxes[anchor]
            expected[2][image, place] = label if background else label - 1
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_allclose(found[1], expected[1], **TOLERANCE[kind.values])
    np.testing.assert_array_equal(found[2], expected[2])
    np.testing.assert_array_equal(found[3], expected[3])


@pytest.mark.parametrize("regular", [False, True])
@pytest.mark.parametrize("kind", FLOAT_KINDS)
def test_with_scores_at_the_threshold_all_is_zero(kind, regular) -> None:
    scores, *rest = case(0)
    scores = np.full_like(scores, THRESHOLD)
    found = detect(kind, scores, *rest, regular=regular)
    assert not any(array.any() for array in found)


@pytest.mark.parametrize("regular", [False, True])
def test_without_anchors_all_is_zero(regular) -> None:
    found = detect(FLOAT_KINDS[0], *case(0, anchors=0), regular=regular)
    assert not any(array.any() for array in found)


@pytest.mark.parametrize("regular", [False, True])
def test_equal_scores_come_by_class(regular) -> None:
    scores, deltas, anchors = case(0, images=1, anchors=1)
    found = detect(
        FLOAT_KINDS[0],
        np.full_like(scores, 0.25),
        deltas,
        anchors,
        regular=regular,
        classes_of_box=3,
    )
    assert found[2][0, :3].tolist() == [0, 1, 2]
