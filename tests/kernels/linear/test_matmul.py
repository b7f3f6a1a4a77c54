"""BATCH_MATMUL."""

import numpy as np
import pytest

from asyncnn.hal.types import OperationType
from tests.kernels.operations import (
    F16,
    F32,
    I32,
    Q8S,
    TOLERANCE,
    clamp_to,
    compute,
    constant,
    half_away,
    random_values,
    result,
    tensor,
)

adjoints = pytest.mark.parametrize(
    "adjoint", [(False, False), (True, False), (False, True), (True, True)]
)
batches = pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
LEFT, RIGHT = (0.05, 13), (0.02, -100)


def multiply(type_, left, right, adjoint, output=(0.0, 0), make=tensor):
    """Multiply matrices, giving the adjoint ones transposed."""
    stored = [
        np.swapaxes(matrices, -1, -2) if flag else matrices
        for matrices, flag in zip((left, right), adjoint, strict=True)
    ]
    quantization = (LEFT, RIGHT) if type_ is Q8S else ((), ())
    inputs = [
        make(type_, stored[0], *quantization[0]),
        make(type_, stored[1], *quantization[1]),
        *adjoint,
    ]
    shape = (*left.shape[:-1], right.shape[-1])
    return compute(OperationType.BATCH_MATMUL, inputs, result(type_, shape, *output))


def sums(left, right):
    return np.einsum("...ij,...jk->...ik", left, right)


@adjoints
@batches
@pytest.mark.parametrize("type_", [F32, F16])
def test_float_products_are_sums_of_products(type_, batch, adjoint) -> None:
    left = random_values(type_, (*batch, 4, 7), 1, -1, 1)
    right = random_values(type_, (*batch, 7, 5), 2, -1, 1)
    product = multiply(type_, left, right, adjoint)
    exact = sums(left.astype(np.float64), right.astype(np.float64))
    np.testing.assert_allclose(product, exact, **TOLERANCE[type_])


@adjoints
@batches
def test_integer_products_wrap_around(batch, adjoint) -> None:
    generator = np.random.default_rng(3)
    left = generator.integers(-(2**31), 2**31, (*batch, 2, 6))
    right = generator.integers(-(2**31), 2**31, (*batch, 6, 3))
    product = multiply(I32, left, right, adjoint)
    exact = sums(left.astype(object), right.astype(object))
    wrapped = (exact + 2**31) % 2**32 - 2**31
    np.testing.assert_array_equal(product, wrapped.astype(np.int32))


def twice_rounded(accumulators, multiplier):
    """Round as fixed-point hardware does, in integers of any size."""
    fraction, shift = np.frexp(multiplier)
    factor = int(half_away(fraction * 2**31))
    right = max(0, -int(shift))
    left = max(0, int(shift))

    def one(accumulator: int) -> int:
        high = (int(accumulator) * 2**left * factor + 2**30) >> 31
        half = 2**right // 2 - (high < 0 and right > 0)
        return (high + half) >> right

    return np.vectorize(one)(accumulators)


@adjoints
@batches
@pytest.mark.parametrize("make", [tensor, constant])
@pytest.mark.parametrize("output", [(0.03, 5), (0.004, -128), (1e-4, 0)])
def test_quantized_products_are_exact_sums_rounded_twice(
    output, make, batch, adjoint
) -> None:
    left = random_values(Q8S, (*batch, 4, 7), 1)
    right = random_values(Q8S, (*batch, 7, 5), 2)
    product = multiply(Q8S, left, right, adjoint, output, make)
    accumulators = sums(
        left.astype(np.int64) - LEFT[1], right.astype(np.int64) - RIGHT[1]
    )
    steps = twice_rounded(accumulators, LEFT[0] * RIGHT[0] / output[0])
    np.testing.assert_array_equal(product, clamp_to(Q8S, steps + output[1]))


@pytest.mark.parametrize("inner", [200, 3000])
def test_long_sums_of_codes_stay_exact(inner) -> None:
    """Their sums reach 2**24 and more, where float32 has no odd integers."""
    left = np.full((1, inner), -128)
    right = np.full((inner, 2), 127)
    left[0, 0], right[:, 1] = 100, random_values(Q8S, (inner,))
    accumulators = sums(left - LEFT[1], right - RIGHT[1])
    scale = float(np.abs(accumulators).max()) * LEFT[0] * RIGHT[0] / 120
    product = multiply(Q8S, left, right, (False, False), (scale, 0))
    steps = twice_rounded(accumulators, LEFT[0] * RIGHT[0] / scale)
    np.testing.assert_array_equal(product, steps)
