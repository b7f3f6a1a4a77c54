"""Inputs of measured models and the comparison of their outputs."""

import numpy as np
import pytest

from asyncnn.tools.bench.arrays import Difference, largest_difference, random_inputs


class TestInputs:
    def test_they_are_the_same_every_time(self) -> None:
        kinds = [((1, 3), np.dtype(np.float32)), ((2,), np.dtype(np.int8))]
        first, second = random_inputs(kinds), random_inputs(kinds)
        for one, other in zip(first, second, strict=True):
            np.testing.assert_array_equal(one, other)

    @pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint8, np.int32])
    def test_they_have_the_models_dtype_and_length_1_where_it_is_open(
        self, dtype: type
    ) -> None:
        (array,) = random_inputs([((0, 4), np.dtype(dtype))])
        assert array.shape == (1, 4)
        assert array.dtype == dtype


class TestDifference:
    def test_integers_differ_in_steps(self) -> None:
        difference = largest_difference(
            [np.array([-128, 3], np.int8)], [np.array([127, 3], np.int8)]
        )
        assert difference == Difference(255.0, in_steps=True)
        assert str(difference) == "255 LSB"

    def test_floats_differ_absolutely_and_the_largest_of_all_outputs_counts(
        self,
    ) -> None:
        one, half = np.ones(2, np.float32), np.full(3, 0.5, np.float32)
        difference = largest_difference([one, half], [one, half * 2])
        assert difference == Difference(0.5, in_steps=False)

    def test_arrays_of_other_shapes_are_not_comparable(self) -> None:
        assert largest_difference([np.zeros(2)], [np.zeros(3)]) is None
