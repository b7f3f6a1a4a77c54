"""GENERATE_PROPOSALS against loops over locations and anchors."""

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
    distinct_scores,
    encoded,
    naive_hard_nms,
    naive_refined,
    positions,
    scalar,
)
from tests.kernels.operations import I32, Q8, Q8S, result

SIZES = np.array([[14.0, 20], [22.5, 12]])
ANCHORS = np.array([[-4, -2, 4.5, 2], [-3, -5, 3, 5.125], [-1, -1, 1, 1]])
RATIOS = (4.0, 5.5)
IOU = 0.25


def case(seed: int):
    generator = np.random.default_rng(seed)
    scores = distinct_scores(generator, (2, 4, 3, len(ANCHORS)))
    return scores, generator.integers(-24, 24, (2, 4, 3, len(ANCHORS) * 4)) / 32


def propose(
    kind, scores, deltas, *, anchors=ANCHORS, before=-1, after=-1, least=1.0, nchw=False
):
    order = (0, 3, 1, 2) if nchw else (0, 1, 2, 3)
    outputs = [
        described(kind.values, (0,), 1 / 256),
        described(kind.boxes, (0, 4), 0.125),
        result(I32, (0,)),
    ]
    arrays = compute_known(
        OperationType.GENERATE_PROPOSALS,
        [
            encoded(kind.values, scores.transpose(order), 1 / 256),
            encoded(kind.values, deltas.transpose(order), 1 / 32),
            encoded(kind.anchors, anchors),
            encoded(kind.boxes, SIZES[: len(scores)]),
            *(scalar(kind, ratio) for ratio in RATIOS),
            before,
            after,
            scalar(kind, IOU),
            scalar(kind, least),
            nchw,
        ],
        outputs,
    )
    return outputs, arrays


def is_usable(box, size, least) -> bool:
    x1, y1, x2, y2 = box
    large = x2 - x1 > least and y2 - y1 > least
    return large and (x1 + x2) / 2 < size[1] and (y1 + y2) / 2 < size[0]


def naive(scores, deltas, before, after, least):
    """Return score, box and image of each proposal."""
    found = []
    for image, size in enumerate(SIZES):
        of_image = []
        for row, column, index in positions(*scores.shape[1:]):
            shift = np.array([column * RATIOS[1], row * RATIOS[0]] * 2)
            delta = deltas[image, row, column, index * 4 : index * 4 + 4]
            box = naive_refined(ANCHORS[index] + shift, delta, size)
            of_image.append((scores[image, row, column, index], box))
        if before > 0:
            of_image = sorted(of_image, reverse=True)[:before]
        of_image = [pick for pick in of_image if is_usable(pick[1], size, least)]
        values = [score for score, _ in of_image]
        boxes = [box for _, box in of_image]
        picks = naive_hard_nms(values, boxes, range(len(boxes)), after or -1, IOU)
        found += [(values[pick], boxes[pick], image) for pick in picks]
    return found


@pytest.mark.parametrize("nchw", [False, True])
@pytest.mark.parametrize(
    "limits", [(-1, -1), (0, 0), (1, -1), (9, -1), (-1, 3), (20, 5), (500, 1)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_proposals_are_those_of_the_loops(kind, limits, nchw) -> None:
    before, after = limits
    scores, deltas = case(before % 7)
    outputs, arrays = propose(
        kind, scores, deltas, before=before, after=after, nchw=nchw
    )
    expected = naive(scores, deltas, before, after, 1.0)
    assert arrays[2].tolist() == [image for *_, image in expected]
    np.testing.assert_array_equal(
        decoded(outputs[0], arrays[0]), [score for score, *_ in expected]
    )
    places = np.array([box for _, box, _ in expected])
    assert_stores(outputs[1], arrays[1], places)


@pytest.mark.parametrize("least", [0.0, 4.0, 6.5])
def test_boxes_must_be_larger_than_the_least_size(least) -> None:
    scores, deltas = case(3)
    _, arrays = propose(KINDS[0], scores, deltas, least=least)
    assert len(arrays[0]) == len(naive(scores, deltas, -1, -1, least))
    assert (arrays[1][:, 2:] - arrays[1][:, :2]).min() > least


def test_signed_codes_give_what_unsigned_ones_give() -> None:
    unsigned, signed = (
        propose(kind, *case(4))[1] for kind in KINDS if kind.values in (Q8, Q8S)
    )
    np.testing.assert_array_equal(unsigned[0], signed[0].astype(np.int16) + 128)
    np.testing.assert_array_equal(unsigned[1], signed[1])
    np.testing.assert_array_equal(unsigned[2], signed[2])


def test_the_first_of_equal_scores_comes_before_suppression() -> None:
    scores, deltas = np.full((1, 1, 4, 1), 0.25), np.zeros((1, 1, 4, 4))
    _, arrays = propose(KINDS[0], scores, deltas, anchors=[[0, 0, 2, 2]], before=2)
    assert arrays[1].tolist() == [[0, 0, 2, 2], [5.5, 0, 7.5, 2]]


@pytest.mark.parametrize("kind", KINDS)
def test_there_may_be_no_proposal(kind) -> None:
    _, arrays = propose(kind, *case(0), least=100.0)
    assert [array.shape for array in arrays] == [(0,), (0, 4), (0,)]


def test_an_anchor_that_ends_before_it_begins_fails() -> None:
    with pytest.raises(OperationFailedError, match="ends before it begins"):
        propose(KINDS[0], *case(0), anchors=[[0, 0, 1, 1], [0, 1, 1, 0], [0, 0, 1, 1]])


def test_shapes_that_do_not_fit_fail() -> None:
    scores, deltas = case(0)
    with pytest.raises(OperationFailedError, match="deltas has shape"):
        propose(KINDS[0], scores, deltas[..., :8])
