"""Arithmetic of two quantised tensors; all 65,536 pairs of codes are tried."""

from typing import NamedTuple

import numpy as np
import pytest

from asyncnn.hal.operands import DTYPES
from asyncnn.hal.types import FusedActivationFunc, OperationType
from tests.kernels.operations import (
    Q8,
    Q8S,
    clamp_to,
    compute,
    half_away,
    random_values,
    result,
    tensor,
)

ADD, SUB, MUL, PRELU, MAXIMUM, MINIMUM = (
    OperationType.ADD,
    OperationType.SUB,
    OperationType.MUL,
    OperationType.PRELU,
    OperationType.MAXIMUM,
    OperationType.MINIMUM,
)
FORMULAS = {
    ADD: np.add,
    SUB: np.subtract,
    MUL: np.multiply,
    PRELU: lambda x, alpha: np.where(x >= 0, x, alpha * x),
    MAXIMUM: np.maximum,
    MINIMUM: np.minimum,
}
FUSED = (ADD, SUB, MUL)


class Quantization(NamedTuple):
    scale: float
    zero_point: int


def float32(scale: float) -> float:
    return float(np.float32(scale))


MIXED = [Quantization(float32(s), z) for s, z in ((0.05, 3), (0.021, -100), (0.1, -7))]
EQUAL = [Quantization(float32(0.03), -11)] * 3
COARSE = [Quantization(float32(s), z) for s, z in ((1.0, 0), (0.25, 5), (90.0, -128))]
FINE = [Quantization(float32(s), z) for s, z in ((0.5, 127), (1.0, 0), (0.001, 0))]
QUANTIZATIONS = {"mixed": MIXED, "equal": EQUAL, "coarse": COARSE, "fine": FINE}


@pytest.fixture(params=QUANTIZATIONS)
def quantizations(request) -> list[Quantization]:
    return QUANTIZATIONS[request.param]


def all_pairs(type_):
    limits = np.iinfo(DTYPES[type_])
    codes = np.arange(limits.min, limits.max + 1).astype(DTYPES[type_])
    return codes.reshape(256, 1), codes.reshape(1, 256)


def combine_all(operation, type_, quantizations, activation=0):
    """Combine every pair of codes, the zero points being those of signed codes."""
    shift = 128 if type_ is Q8 else 0
    first, second, output = (
        Quantization(scale, zero_point + shift) for scale, zero_point in quantizations
    )
    x, y = all_pairs(type_)
    inputs = [tensor(type_, x, *first), tensor(type_, y, *second)]
    scalars = [activation] if operation in FUSED else []
    return compute(operation, inputs + scalars, result(type_, (256, 256), *output))


def exact_steps(operation, quantizations):
    first, second, output = quantizations
    x, y = (codes.astype(np.float64) for codes in all_pairs(Q8S))
    real = FORMULAS[operation](
        (x - first.zero_point) * first.scale, (y - second.zero_point) * second.scale
    )
    return real / output.scale


@pytest.mark.parametrize(
    ("operation", "steps_off"), [(ADD, 0.501), (SUB, 0.501), (MUL, 0.75), (PRELU, 0.75)]
)
def test_results_are_close_to_the_real_value(
    operation, steps_off, quantizations
) -> None:
    """A product is rounded twice, the first time to as little as half a step."""
    steps = exact_steps(operation, quantizations) + quantizations[2].zero_point
    combined = combine_all(operation, Q8S, quantizations).astype(np.float64)
    error = np.abs(combined - np.clip(steps, -128, 127))
    assert error.max() <= steps_off


@pytest.mark.parametrize("operation", [MAXIMUM, MINIMUM])
def test_extrema_round_half_away_from_zero(operation, quantizations) -> None:
    steps = half_away(exact_steps(operation, quantizations))
    np.testing.assert_array_equal(
        combine_all(operation, Q8S, quantizations),
        clamp_to(Q8S, steps + quantizations[2].zero_point),
    )


@pytest.mark.parametrize("operation", FORMULAS)
def test_unsigned_results_are_the_signed_ones_plus_128(
    operation, quantizations
) -> None:
    signed = combine_all(operation, Q8S, quantizations).astype(int)
    np.testing.assert_array_equal(
        combine_all(operation, Q8, quantizations), signed + 128
    )


@pytest.mark.parametrize("activation", FusedActivationFunc)
@pytest.mark.parametrize("operation", FUSED)
def test_the_activation_clamps_codes(operation, activation, quantizations) -> None:
    scale, zero_point = quantizations[2]
    low, high = {0: (-1e9, 1e9), 1: (0, 1e9), 2: (-1, 1), 3: (0, 6)}[activation]
    bounds = half_away(np.array([low, high]) / scale) + zero_point
    plain = combine_all(operation, Q8S, quantizations)
    np.testing.assert_array_equal(
        combine_all(operation, Q8S, quantizations, int(activation)),
        np.clip(plain, *clamp_to(Q8S, bounds)),
    )


@pytest.mark.parametrize("operation", FORMULAS)
def test_shapes_broadcast(operation) -> None:
    x, y = random_values(Q8, (4, 1, 2)), random_values(Q8, (5, 4, 3, 1))
    scalars = [0] if operation in FUSED else []

    def combine(x, y):
        inputs = [tensor(Q8, x, 0.02, 9), tensor(Q8, y, 0.05, 99), *scalars]
        shape = np.broadcast_shapes(x.shape, y.shape)
        return compute(operation, inputs, result(Q8, shape, 0.04, 30))

    expanded = combine(*(array.copy() for array in np.broadcast_arrays(x, y)))
    np.testing.assert_array_equal(combine(x, y), expanded)


@pytest.mark.parametrize("operation", FORMULAS)
def test_empty_tensors_stay_empty(operation) -> None:
    inputs = [tensor(Q8, np.empty((0, 3)), 0.1, 1), tensor(Q8, np.empty((1, 3)), 0.2)]
    scalars = [0] if operation in FUSED else []
    output = result(Q8, (0, 3), 0.5)
    assert compute(operation, inputs + scalars, output).shape == (0, 3)
