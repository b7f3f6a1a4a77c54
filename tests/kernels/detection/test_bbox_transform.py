"""AXIS_ALIGNED_BBOX_TRANSFORM against the formula, box by box."""

import numpy as np
import pytest

from asyncnn.hal.operations.bound import OperationFailedError
from asyncnn.hal.types import OperationType
from tests.kernels.detection.cases import (
    KINDS,
    assert_stores,
    decoded,
    described,
    encoded,
    naive_refined,
    positions,
    random_boxes,
)
from tests.kernels.operations import F32, I32, Q8, Q8S, compute, tensor

SIZES = np.array([[18.5, 14], [9, 30]])


def case(seed: int, boxes: int = 7, classes: int = 3):
    generator = np.random.default_rng(seed)
    places = random_boxes(generator, boxes)
    deltas = generator.integers(-40, 40, (boxes, classes, 4)) / 32
    return places, deltas, generator.integers(0, 2, boxes)


def transform(kind, places, deltas, images, sizes=SIZES):
    deltas = np.asarray(deltas)
    shape = len(places), deltas.shape[1] * 4
    output = described(kind.boxes, shape, 0.125)
    array = compute(
        OperationType.AXIS_ALIGNED_BBOX_TRANSFORM,
        [
            encoded(kind.boxes, places),
            encoded(kind.values, deltas.reshape(shape), 1 / 32),
            tensor(I32, images),
            encoded(kind.boxes, sizes),
        ],
        output,
    )
    return output, array


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_boxes_are_moved_scaled_and_clipped(kind, seed) -> None:
    places, deltas, images = case(seed)
    expected = np.array(
        [
            [naive_refined(places[i], delta, SIZES[images[i]]) for delta in deltas[i]]
            for (i,) in positions(len(places))
        ]
    )
    output, array = transform(kind, places, deltas, images)
    assert_stores(output, array, expected.reshape(array.shape))


def test_signed_deltas_do_what_unsigned_ones_do() -> None:
    unsigned, signed = (
        transform(kind, *case(9)) for kind in KINDS if kind.values in (Q8, Q8S)
    )
    np.testing.assert_array_equal(unsigned[1], signed[1])


@pytest.mark.parametrize("kind", KINDS)
def test_no_boxes_give_no_boxes(kind) -> None:
    _, array = transform(kind, np.empty((0, 4)), np.empty((0, 2, 4)), np.empty(0))
    assert array.shape == (0, 8)


@pytest.mark.parametrize("image", [-1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_index_of_no_image_fails(kind, image) -> None:
    with pytest.raises(OperationFailedError, match=f"image {image}"):
        transform(kind, [[0, 0, 1, 1]], [[[0, 0, 0, 0]]], [image])


@pytest.mark.parametrize("box", [[2, 0, 1, 1], [0, 2, 1, 1]])
@pytest.mark.parametrize("kind", KINDS)
def test_a_box_that_ends_before_it_begins_fails(kind, box) -> None:
    with pytest.raises(OperationFailedError, match="ends before it begins"):
        transform(kind, [box], [[[0, 0, 0, 0]]], [0])


def test_a_box_that_is_no_number_fails() -> None:
    inputs = [
        tensor(F32, [[0, 0, np.nan, 1]]),
        tensor(F32, [[0, 0, 0, 0]]),
        tensor(I32, [0]),
        tensor(F32, SIZES),
    ]
    with pytest.raises(OperationFailedError):
        compute(
            OperationType.AXIS_ALIGNED_BBOX_TRANSFORM, inputs, described(F32, (1, 4), 0)
        )


def test_quantised_boxes_saturate_at_the_end_of_their_type() -> None:
    kind, edge = KINDS[2], 8191.875
    output, array = transform(
        kind, [[0, 0, edge, edge]], [[[0, 0, 3, 3]]], [0], [[edge, edge]]
    )
    assert decoded(output, array).max() == edge
