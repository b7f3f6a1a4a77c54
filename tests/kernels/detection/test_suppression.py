"""Greedy suppression: the order of equal scores, and what closing gaps does to it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asyncnn.kernels.detection.boxes import falling, hard, pick_boxes
from tests.kernels.detection.cases import naive_iou

BOXES = st.lists(
    st.tuples(*[st.integers(0, 3)] * 2, *[st.integers(1, 3)] * 2, st.integers(0, 2)),
    max_size=10,
)


def swapping_nms(scores, boxes, limit, threshold) -> list[int]:
    """Suppress in place: swap the best to the front and what drops out to the end."""
    order, start, end = list(range(len(scores))), 0, len(scores)
    while start < end and (limit < 0 or start < limit):
        best = max(range(start, end), key=lambda place: scores[order[place]])
        order[start], order[best] = order[best], order[start]
        place = start + 1
        while place < end:
            if naive_iou(boxes[order[start]], boxes[order[place]]) < threshold:
                place += 1
            else:
                end -= 1
                order[place], order[end] = order[end], order[place]
        start += 1
    return order[:start]


@given(described=BOXES, limit=st.integers(-1, 4), threshold=st.sampled_from([0.1, 0.4]))
def test_equal_scores_are_picked_in_the_order_that_swapping_leaves(
    described, limit, threshold
) -> None:
    boxes = np.array(
        [(x, y, x + width, y + height) for x, y, width, height, _ in described],
        np.float32,
    ).reshape(-1, 4)
    scores = np.array([score for *_, score in described], np.float32)
    candidates = np.arange(len(scores))
    picked = pick_boxes(scores, boxes, candidates, limit, hard(threshold))
    assert picked.tolist() == swapping_nms(scores, boxes, limit, threshold)


def test_the_last_survivor_moves_into_the_first_gap() -> None:
    boxes = np.array([[0, 0, 2, 2]] * 2 + [[i, 9, i + 1, 10] for i in range(3)])
    scores = np.array([1, 0.5, 0.2, 0.2, 0.2])
    picked = pick_boxes(scores, boxes, np.arange(5), -1, hard(0.5))
    assert picked.tolist() == [0, 4, 2, 3]


def test_an_overlap_of_exactly_the_threshold_is_too_much() -> None:
    boxes = np.array([[0, 0, 2, 2], [0, 0, 2, 1]], np.float32)
    scores = np.array([1, 0.5], np.float32)
    candidates = np.arange(2)
    assert pick_boxes(scores, boxes, candidates, -1, hard(0.5)).tolist() == [0]
    assert pick_boxes(scores, boxes, candidates, -1, hard(0.501)).tolist() == [0, 1]


def test_boxes_without_area_do_not_suppress_each_other() -> None:
    boxes = np.ones((3, 4), np.float32)
    scores = np.array([1, 3, 2], np.float32)
    with np.errstate(invalid="ignore"):
        picked = pick_boxes(scores, boxes, np.arange(3), -1, hard(0.5))
    assert picked.tolist() == [1, 2, 0]


def test_candidates_are_left_as_they_are() -> None:
    boxes, candidates = np.zeros((3, 4), np.float32), np.array([0, 2])
    with np.errstate(invalid="ignore"):
        pick_boxes(np.arange(3), boxes, candidates, -1, hard(0.5))
    assert candidates.tolist() == [0, 2]


def test_equal_scores_fall_in_the_order_they_come() -> None:
    assert falling(np.array([1, 2, 1, 2, 3])).tolist() == [4, 1, 3, 0, 2]
    assert falling(np.zeros(100)).tolist() == list(range(100))
