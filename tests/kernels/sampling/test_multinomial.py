"""RANDOM_MULTINOMIAL."""

import numpy as np
import pytest

from asyncnn import kernels
from asyncnn.hal.operations.bound import OperationFailedError
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import HeapScratch
from asyncnn.kernels.multinomial import uniform_doubles
from tests.kernels.operations import F16, F32, I32, bind, compute, result, tensor

MULTINOMIAL = OperationType.RANDOM_MULTINOMIAL
types = pytest.mark.parametrize("type_", [F32, F16])


def operands(type_, logits, samples, seeds):
    logits = np.asarray(logits)
    inputs = [tensor(type_, logits), samples, tensor(I32, seeds)]
    return inputs, result(I32, (len(logits), samples))


def draw(type_, logits, samples, seeds=(37, 42)):
    return compute(MULTINOMIAL, *operands(type_, logits, samples, seeds))


@types
def test_classes_are_drawn_in_proportion_to_their_probabilities(type_) -> None:
    probabilities = np.array([[0.5, 0.25, 0.125, 0.125], [0.05, 0.05, 0.1, 0.8]])
    drawn = draw(type_, np.log(probabilities) + 3, 20_000)
    for row, expected in zip(drawn, probabilities, strict=True):
        frequencies = np.bincount(row, minlength=4) / 20_000
        np.testing.assert_allclose(frequencies, expected, atol=0.015)


@types
def test_rows_have_samples_of_their_own(type_) -> None:
    first, second = draw(type_, np.zeros((2, 100)), 50)
    assert (first != second).sum() > 40


@pytest.mark.parametrize("nothing", [-np.inf, np.inf, np.nan, -1e4])
@types
def test_classes_without_probability_are_never_drawn(type_, nothing) -> None:
    drawn = draw(type_, [[nothing, 0, nothing, 1, nothing]], 2000)
    assert set(drawn.ravel().tolist()) == {1, 3}


def test_logits_may_be_of_any_size() -> None:
    drawn = draw(F32, [[3e38, -3e38], [-3e38, -3e38], [88.8, 88.8]], 200)
    assert not drawn[0].any()
    assert drawn[1].any()
    assert drawn[2].any()


def test_equal_seeds_draw_equal_samples_and_others_do_not() -> None:
    logits = np.zeros((1, 1000))
    drawn = draw(F32, logits, 100, (1, 2))
    np.testing.assert_array_equal(draw(F32, logits, 100, (1, 2)), drawn)
    for seeds in ((2, 1), (1, 3), (0, 2), (1, 0), (-1, 2)):
        assert (draw(F32, logits, 100, seeds) != drawn).sum() > 90


def test_a_sample_is_the_class_that_its_random_number_falls_in() -> None:
    drawn = draw(F32, np.zeros((3, 64)), 25_001, (-5, 9))
    numbers = uniform_doubles(-5, 9, 0, 3 * 25_001).reshape(3, -1)
    np.testing.assert_array_equal(drawn, np.floor(numbers * 64))


def test_seeds_of_zero_are_replaced_by_random_ones() -> None:
    inputs, output = operands(F32, np.zeros((1, 1000)), 100, (0, 0))
    run = kernels.prepare(bind(MULTINOMIAL, inputs, [output]))(HeapScratch())
    arrays = [inputs[0].array, None, inputs[2].array]
    first, second = (np.empty((1, 100), np.int32) for _ in range(2))
    run(arrays, [first])
    run(arrays, [second])
    assert (first != second).sum() > 90


@pytest.mark.parametrize(("rows", "samples"), [(0, 5), (3, 0)])
def test_nothing_is_drawn_for_no_rows_or_samples(rows, samples) -> None:
    assert draw(F32, np.zeros((rows, 4)), samples).shape == (rows, samples)


@pytest.mark.parametrize("hopeless", [-np.inf, np.nan])
@types
def test_a_row_without_any_probability_fails(type_, hopeless) -> None:
    with pytest.raises(OperationFailedError, match="no finite logit"):
        draw(type_, [[0, 1], [hopeless, hopeless]], 3)


def test_no_classes_fail() -> None:
    with pytest.raises(OperationFailedError, match="no class"):
        draw(F32, np.zeros((2, 0)), 3)
