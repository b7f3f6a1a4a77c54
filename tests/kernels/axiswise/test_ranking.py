"""ARGMAX, ARGMIN and TOPK_V2."""

import numpy as np
import pytest

from asyncnn import kernels
from asyncnn.hal.operations.bound import OperationFailedError
from asyncnn.hal.types import OperationType
from tests.kernels.operations import (
    F16,
    F32,
    I32,
    Q8,
    Q8S,
    bind,
    compute,
    compute_all,
    random_values,
    result,
    tensor,
)

ARGMAX, ARGMIN = OperationType.ARGMAX, OperationType.ARGMIN
TYPES = [F32, F16, I32, Q8, Q8S]


def arg(operation, type_, x, axis):
    shape = np.delete(x.shape, axis)
    output = result(I32, tuple(map(int, shape)) or (1,))
    return compute(operation, [tensor(type_, x), axis], output)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("operation", [ARGMAX, ARGMIN])
@pytest.mark.parametrize("type_", TYPES)
def test_the_index_is_that_of_the_extreme_element(type_, operation, axis) -> None:
    x = random_values(type_, (4, 5, 6))
    find = np.argmax if operation is ARGMAX else np.argmin
    np.testing.assert_array_equal(arg(operation, type_, x, axis), find(x, axis))


@pytest.mark.parametrize("operation", [ARGMAX, ARGMIN])
@pytest.mark.parametrize("type_", TYPES)
def test_the_first_of_equal_elements_wins(type_, operation) -> None:
    x = np.array([3, 3, 3])
    np.testing.assert_array_equal(arg(operation, type_, x, 0), [0])


def test_an_empty_input_has_no_extreme_element() -> None:
    bound = bind(ARGMAX, [tensor(F32, np.empty((2, 0))), 1], [result(I32, (2,))])
    with pytest.raises(OperationFailedError, match="no element"):
        kernels.prepare(bound)


def top_k(type_, x, k):
    shape = (*x.shape[:-1], k)
    outputs = [result(type_, shape), result(I32, shape)]
    return compute_all(OperationType.TOPK_V2, [tensor(type_, x), k], outputs)


@pytest.mark.parametrize("k", [1, 3, 10])
@pytest.mark.parametrize("shape", [(10,), (3, 10), (2, 3, 10)])
@pytest.mark.parametrize("type_", TYPES)
def test_rows_are_sorted_with_larger_indices_first(type_, shape, k) -> None:
    x = np.random.default_rng(k).integers(0, 6, shape)
    values, indices = top_k(type_, x, k)
    order = np.argsort(-(x * 100 + np.arange(10)), axis=-1)[..., :k]
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))
