"""MEAN and the reductions over any set of axes."""

import math

import numpy as np
import pytest

from asyncnn import kernels
from asyncnn.hal.operations.bound import OperationFailedError
from asyncnn.hal.types import OperationType
from tests.kernels.operations import (
    B8,
    F16,
    F32,
    I32,
    Q8,
    Q8S,
    TOLERANCE,
    bind,
    compute,
    constant,
    half_away,
    random_values,
    result,
    tensor,
)

MEAN, PROD = OperationType.MEAN, OperationType.REDUCE_PROD
MAX, MIN = OperationType.REDUCE_MAX, OperationType.REDUCE_MIN
FORMULAS = {
    MEAN: np.mean,
    OperationType.REDUCE_SUM: np.sum,
    PROD: np.prod,
    MAX: np.max,
    MIN: np.min,
    OperationType.REDUCE_ALL: np.all,
    OperationType.REDUCE_ANY: np.any,
}
ON_FLOATS = [MEAN, OperationType.REDUCE_SUM, PROD, MAX, MIN]
ON_BOOLEANS = [OperationType.REDUCE_ALL, OperationType.REDUCE_ANY]
AXES = [[0], [-1], [1, 2], [2, -2, 1], [0, 1, 2], []]


def resolved(axes):
    return tuple({axis % 3 for axis in axes})


def bound_reduction(operation, type_, x, axes, keep):
    kept = np.zeros(x.shape).sum(resolved(axes), keepdims=True).shape
    dropped = tuple(n for i, n in enumerate(kept) if i not in resolved(axes))
    shape = kept if keep else dropped or (1,)
    keep_dims = int(keep) if operation is MEAN else keep
    inputs = [tensor(type_, x, 0.5, 3), constant(I32, axes), keep_dims]
    return operation, inputs, result(type_, shape, 0.5, 3)


def reduce(operation, type_, x, axes, keep=False):
    return compute(*bound_reduction(operation, type_, x, axes, keep))


def exact(operation, x, axes, keep=False):
    wide = x.astype(np.float64) if x.dtype != np.bool_ else x
    return np.atleast_1d(FORMULAS[operation](wide, axis=resolved(axes), keepdims=keep))


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("operation", ON_FLOATS)
@pytest.mark.parametrize("type_", [F32, F16])
def test_floats_follow_the_formula(type_, operation, axes, keep) -> None:
    x = random_values(type_, (2, 3, 4), low=0.5, high=1.5)
    np.testing.assert_allclose(
        reduce(operation, type_, x, axes, keep),
        exact(operation, x, axes, keep),
        **TOLERANCE[type_],
    )


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("operation", ON_BOOLEANS)
def test_any_nonzero_byte_is_true(operation, axes, keep) -> None:
    raw = np.random.default_rng(3).choice(np.array([0, 2, 255], np.uint8), (2, 3, 4))
    reduced = reduce(operation, B8, raw.view(np.bool_), axes, keep)
    wanted = exact(operation, raw != 0, axes, keep)
    if axes:
        np.testing.assert_array_equal(reduced.view(np.uint8), wanted)
    np.testing.assert_array_equal(reduced, wanted)


@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("operation", [MAX, MIN])
@pytest.mark.parametrize("type_", [Q8, Q8S])
def test_extrema_of_codes_are_exact(type_, operation, axes) -> None:
    x = random_values(type_, (2, 3, 4))
    reduced = reduce(operation, type_, x, axes)
    np.testing.assert_array_equal(reduced, exact(operation, x, axes))


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_means_of_signed_codes_round_half_away_from_zero(axes) -> None:
    x = random_values(Q8S, (2, 3, 4))
    wanted = half_away(exact(MEAN, x, axes))
    np.testing.assert_array_equal(reduce(MEAN, Q8S, x, axes), wanted)


@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("operation", [MEAN, MAX, MIN])
def test_unsigned_results_are_the_signed_ones_plus_128(operation, axes) -> None:
    signed = random_values(Q8S, (2, 3, 4))
    unsigned = (signed.astype(np.int16) + 128).astype(np.uint8)
    one = reduce(operation, Q8S, signed, axes).astype(int) + 128
    np.testing.assert_array_equal(one, reduce(operation, Q8, unsigned, axes))


@pytest.mark.parametrize("type_", [F32, F16])
def test_a_factor_of_zero_gives_zero_even_beside_an_overflow(type_) -> None:
    x = np.array([[[1e4] * 20 + [0]]])
    assert reduce(PROD, type_, x, [2]).item() == 0


@pytest.mark.parametrize("operation", FORMULAS)
def test_nothing_to_reduce_is_an_error(operation) -> None:
    type_ = B8 if operation in ON_BOOLEANS else F32
    name, inputs, output = bound_reduction(
        operation, type_, np.empty((2, 0, 3)), [1], 0
    )
    with pytest.raises(OperationFailedError, match="no element"):
        kernels.prepare(bind(name, inputs, [output]))


@pytest.mark.parametrize("operation", ON_FLOATS)
def test_an_empty_batch_gives_an_empty_result(operation) -> None:
    reduced = reduce(operation, F32, np.empty((0, 2, 3)), [1])
    assert reduced.shape == (0, 3)


def test_means_of_many_codes_stay_exact() -> None:
    x = np.full((300, 300, 1), 255)
    x[0, 0, 0] = 0
    assert reduce(MEAN, Q8, x, [0, 1]).item() == math.floor(255 * (1 - 1 / 90000) + 0.5)


@pytest.mark.parametrize("length", [3, 255, 256, 257])
@pytest.mark.parametrize(
    ("type_", "code"), [(Q8, 0), (Q8, 255), (Q8S, -128), (Q8S, 127)]
)
def test_means_of_equal_codes_are_that_code_however_many(type_, code, length) -> None:
    x = np.full((2, length, 300), code)
    np.testing.assert_array_equal(reduce(MEAN, type_, x, [1, 2]), [code, code])
