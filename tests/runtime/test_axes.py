"""Axes of tensors that have more of them than most of the HAL's operations take."""

import numpy as np
import pytest

from asyncnn.runtime.axes import MAX_RANK, transpositions


@pytest.mark.parametrize("rank", range(8))
def test_transpositions_of_few_axes_put_many_in_order(rank: int) -> None:
    rng = np.random.default_rng(rank)
    for _ in range(60):
        shape = tuple(int(length) for length in rng.integers(1, 4, rank))
        order = [int(axis) for axis in rng.permutation(rank)]
        array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
        found = array
        for each in transpositions(shape, order):
            assert len(each.shape) <= MAX_RANK
            found = found.reshape(each.shape).transpose(each.order)
        wanted = array.transpose(order)
        np.testing.assert_array_equal(found.reshape(wanted.shape), wanted)


def test_what_moves_no_element_is_no_transposition() -> None:
    assert not [*transpositions((2, 1, 3, 1, 4, 5), (1, 0, 2, 4, 3, 5))]


def test_axes_that_stay_together_move_as_one() -> None:
    (only,) = transpositions((2, 3, 4, 5, 6, 7), (3, 4, 5, 0, 1, 2))
    assert only == ((24, 210), (1, 0))
