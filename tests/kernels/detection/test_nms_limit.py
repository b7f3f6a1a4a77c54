"""BOX_WITH_NMS_LIMIT against greedy loops, for every kernel and type."""

import numpy as np
import pytest

from asyncnn.hal.operations.bound import OperationFailedError
from asyncnn.hal.types import OperationType
from tests.kernels.detection.cases import (
    KINDS,
    assert_stores,
    compute_known,
    decoded,
    described,
    encoded,
    naive_iou,
    random_boxes,
    scalar,
)
from tests.kernels.detection.cases import distinct_scores as scores_of
from tests.kernels.operations import I32, Q8, Q8S, result, tensor

HARD, LINEAR, GAUSSIAN = range(3)
IOU, SIGMA = 0.25, 0.5
IMAGES = np.array([0, 0, 0, 0, 0, 3, 3, 1, 1, 1])


def case(seed: int, classes: int = 4):
    generator = np.random.default_rng(seed)
    count = len(IMAGES)
    boxes = random_boxes(generator, count * classes, 8).reshape(count, classes, 4)
    return scores_of(generator, (count, classes)), boxes


def suppress(
    kind,
    scores,
    boxes,
    images=IMAGES,
    *,
    kernel=HARD,
    threshold=0.0625,
    limit=-1,
    lowest=0.03125,
):
    scores, boxes = np.asarray(scores), np.asarray(boxes)
    outputs = [
        described(kind.values, (0,), 1 / 256),
        described(kind.boxes, (0, 4), 0.125),
        result(I32, (0,)),
        result(I32, (0,)),
    ]
    arrays = compute_known(
        OperationType.BOX_WITH_NMS_LIMIT,
        [
            encoded(kind.values, scores, 1 / 256),
            encoded(kind.boxes, boxes.reshape(len(boxes), boxes.shape[1] * 4)),
            tensor(I32, images),
            scalar(kind, threshold),
            limit,
            kernel,
            *(scalar(kind, value) for value in (IOU, SIGMA, lowest)),
        ],
        outputs,
    )
    return outputs, arrays


def weakened(kernel: int, overlap: float) -> float:
    if kernel == GAUSSIAN:
        return np.exp(-(overlap**2) / SIGMA)
    if overlap < IOU:
        return 1
    return 1 - overlap if kernel == LINEAR else 0


def naive_picks(scores, boxes, rows, label, kernel, threshold, limit, lowest):
    """Return pairs of score and row for one class of one image."""
    alive = {row: scores[row, label] for row in rows if scores[row, label] > threshold}
    picks = []
    while alive and len(picks) != limit:
        best = max(alive, key=lambda row: alive[row])
        picks.append((alive.pop(best), best))
        for row in list(alive):
            overlap = naive_iou(boxes[row, label], boxes[best, label])
            alive[row] *= weakened(kernel, overlap)
            if alive[row] < lowest:
                del alive[row]
    return picks


def naive(scores, boxes, images, kernel, threshold, limit, lowest):
    """Return score, box, class and image of each pick."""
    found = []
    for image in dict.fromkeys(images.tolist()):
        rows = np.flatnonzero(images == image)
        of_image = [
            (score, label, row)
            for label in range(1, scores.shape[1])
            for score, row in naive_picks(
                scores, boxes, rows, label, kernel, threshold, limit, lowest
            )
        ]
        of_image = sorted(of_image, reverse=True)[: None if limit < 0 else limit]
        of_image.sort(key=lambda pick: (pick[1], -pick[0]))
        found += [(s, boxes[row, c], c, image) for s, c, row in of_image]
    return found


@pytest.mark.parametrize("limit", [-1, 0, 1, 4])
@pytest.mark.parametrize("kernel", [HARD, LINEAR, GAUSSIAN])
@pytest.mark.parametrize("kind", KINDS)
def test_picks_are_those_of_the_greedy_loop(kind, kernel, limit) -> None:
    for seed in range(3):
        scores, boxes = case(seed)
        outputs, arrays = suppress(kind, scores, boxes, kernel=kernel, limit=limit)
        expected = naive(scores, boxes, IMAGES, kernel, 0.0625, limit, 0.03125)
        assert [len(array) for array in arrays] == [len(expected)] * 4
        assert arrays[2].tolist() == [label for _, _, label, _ in expected]
        assert arrays[3].tolist() == [image for *_, image in expected]
        places = np.array([box for _, box, _, _ in expected]).reshape(-1, 4)
        np.testing.assert_array_equal(decoded(outputs[1], arrays[1]), places)
        assert_stores(outputs[0], arrays[0], np.array([pick[0] for pick in expected]))


@pytest.mark.parametrize("kernel", [HARD, LINEAR, GAUSSIAN])
def test_signed_scores_are_the_unsigned_ones_less_128(kernel) -> None:
    unsigned, signed = (
        suppress(kind, *case(5), kernel=kernel)[1]
        for kind in KINDS
        if kind.values in (Q8, Q8S)
    )
    np.testing.assert_array_equal(unsigned[0], signed[0].astype(np.int16) + 128)
    for one, other in zip(unsigned[1:], signed[1:], strict=True):
        np.testing.assert_array_equal(one, other)


def test_hard_suppression_keeps_zero_scores_if_no_score_is_too_low() -> None:
    boxes = np.tile([0.0, 0, 1, 1], (2, 2, 1))
    _, arrays = suppress(
        KINDS[0], [[0, 0.5], [0, 0.25]], boxes, [0, 0], kernel=HARD, lowest=0.0
    )
    assert arrays[0].tolist() == [0.5, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_no_boxes_give_no_boxes(kind) -> None:
    _, arrays = suppress(kind, np.empty((0, 3)), np.empty((0, 3, 4)), [])
    assert [array.shape for array in arrays] == [(0,), (0, 4), (0,), (0,)]


@pytest.mark.parametrize("kind", KINDS)
def test_scores_at_the_threshold_give_no_boxes(kind) -> None:
    boxes = np.tile([0.0, 0, 1, 1], (2, 2, 1))
    _, arrays = suppress(kind, np.full((2, 2), 0.25), boxes, [0, 1], threshold=0.25)
    assert [array.shape for array in arrays] == [(0,), (0, 4), (0,), (0,)]


def test_the_background_is_never_picked() -> None:
    boxes = np.tile([0.0, 0, 1, 1], (1, 2, 1))
    _, arrays = suppress(KINDS[0], [[0.5, 0.25]], boxes, [7])
    assert (arrays[2].tolist(), arrays[3].tolist()) == ([1], [7])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kernel": 3}, "3 is not a kernel"),
        ({"images": [-1]}, "negative"),
        ({"boxes": [[[0, 0, 1, 1], [1, 0, 0, 1]]]}, "ends before"),
        ({"boxes": [[[0, 0, 1, 1]]]}, "boxes has shape"),
        ({"images": [0, 0]}, "batch_indices has shape"),
    ],
)
def test_illegal_operands_fail(wrong, message) -> None:
    legal = {
        "scores": [[0.25, 0.5]],
        "boxes": [[[0, 0, 1, 1], [0, 0, 1, 1]]],
        "images": [0],
    }
    with pytest.raises(OperationFailedError, match=message):
        suppress(KINDS[0], **legal | wrong)
