"""FULLY_CONNECTED against its formula."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncnn.hal.types import FusedActivationFunc, OperationType
from asyncnn.kernels.linear import convolution
from tests.kernels.linear.convolution_reference import BOUNDS, quantise, single_rounding
from tests.kernels.operations import (
    F16,
    F32,
    I32,
    Q8,
    Q8S,
    TOLERANCE,
    compute,
    constant,
    random_values,
    result,
    tensor,
)

CONNECTED = OperationType.FULLY_CONNECTED


@pytest.mark.parametrize("activation", FusedActivationFunc)
@pytest.mark.parametrize("shape", [(3, 12), (1, 12), (2, 3, 2, 6), (4, 3, 3)])
@pytest.mark.parametrize("type_", [F32, F16])
def test_float_results_follow_the_formula(type_, shape, activation) -> None:
    data = random_values(type_, shape, 1)
    weights = random_values(type_, (5, 12), 2, -1, 1)
    bias = random_values(type_, (5,), 3)
    rows = data.reshape(-1, 12).astype(np.float64)
    exact = rows @ weights.T.astype(np.float64) + bias
    inputs = [tensor(type_, data), constant(type_, weights), constant(type_, bias)]
    np.testing.assert_allclose(
        compute(CONNECTED, [*inputs, int(activation)], result(type_, exact.shape)),
        np.clip(exact, *BOUNDS[activation]),
        **TOLERANCE[type_],
    )


def check_quantised(type_, shape, units, activation, seed) -> None:
    generator = np.random.default_rng(seed)
    least = int(np.iinfo(np.int8).min) if type_ is Q8S else 0
    zeros = [least + int(code) for code in generator.integers(0, 256, 3)]
    scales = generator.uniform(0.01, 0.1, 2).astype(np.float32).tolist()
    data = random_values(type_, shape, seed)
    weights = random_values(type_, (units, shape[-1]), seed + 1)
    bias = random_values(I32, (units,), seed + 2)
    rows = data.reshape(-1, shape[-1]).astype(np.int64) - zeros[0]
    totals = rows @ (weights.astype(np.int64) - zeros[1]).T + bias
    step = np.abs(totals).max() + 1
    out_scale = float(np.float32(scales[0] * scales[1] * step / 150))
    output = result(type_, totals.shape, out_scale, zeros[2])
    inputs = [
        tensor(type_, data, scales[0], zeros[0]),
        constant(type_, weights, scales[1], zeros[1]),
        constant(I32, bias),
        int(activation),
    ]
    real = scales[0] * scales[1] / out_scale
    np.testing.assert_array_equal(
        compute(CONNECTED, inputs, output),
        quantise(totals, [real], activation, output, single_rounding),
    )


@pytest.mark.parametrize("activation", FusedActivationFunc)
@pytest.mark.parametrize("shape", [(9, 20), (1, 20), (2, 3, 20)])
@pytest.mark.parametrize("type_", [Q8, Q8S])
def test_quantised_results_are_exact(type_, shape, activation) -> None:
    check_quantised(type_, shape, 7, activation, seed=5)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([Q8, Q8S]),
    st.tuples(st.integers(1, 5), st.integers(1, 9)),
    st.integers(1, 6),
    st.integers(0, 3),
    st.integers(0, 2**16),
)
def test_any_quantisation_is_exact(type_, shape, units, activation, seed) -> None:
    check_quantised(type_, shape, units, activation, seed)


def test_halves_are_rounded_away_from_zero() -> None:
    inputs = [
        tensor(Q8S, np.arange(-9, 10).reshape(-1, 1), 1.0),
        constant(Q8S, [[1]], 1.0),
        constant(I32, [0], 1.0),
        0,
    ]
    codes = compute(CONNECTED, inputs, result(Q8S, (19, 1), 2.0)).ravel().tolist()
    positive = [1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert codes == [-code for code in reversed(positive)] + [0] + positive


def test_small_blocks_give_the_same(monkeypatch) -> None:
    monkeypatch.setattr(convolution, "_ELEMENTS_AT_MOST", 40)
    monkeypatch.setattr(convolution, "_PIXELS_WORTH_A_PRODUCT", 1)
    check_quantised(Q8S, (13, 20), 7, 0, seed=1)


@pytest.mark.parametrize("type_", [F32, Q8])
def test_an_empty_batch_gives_an_empty_output(type_) -> None:
    inputs = [
        tensor(type_, np.empty((0, 4)), 0.5),
        constant(type_, np.ones((3, 4)), 0.5),
        constant(F32 if type_ is F32 else I32, np.zeros(3)),
        0,
    ]
    assert compute(CONNECTED, inputs, result(type_, (0, 3), 0.5)).shape == (0, 3)
