"""Lowering chooses floats that hold every sum, and refuses impossible scales."""

import numpy as np
import pytest

from asyncnn.hal.operations.bound import OperationFailedError
from asyncnn.hal.types import FusedActivationFunc, OperationType
from asyncnn.kernels.linear.lowering import lower
from tests.kernels.operations import (
    F16,
    F32,
    I32,
    Q8,
    Q8S,
    bind,
    constant,
    result,
    tensor,
)


def lowered(type_, weights, zero_point=0, filter_zero=0, scales=(1, 1, 1), **given):
    weights = np.asarray(weights).reshape(1, -1)
    taps = weights.shape[1]
    bias = constant(I32 if type_ in (Q8, Q8S) else type_, [0])
    inputs = [
        tensor(type_, np.zeros((1, taps)), scales[0], zero_point),
        constant(type_, weights, scales[1], filter_zero),
        bias,
        0,
    ]
    output = result(type_, (1, 1), scales[2])
    operation = bind(OperationType.FULLY_CONNECTED, inputs, [output])
    matrix = inputs[1].array.T
    return lower(operation, matrix, FusedActivationFunc.NONE, **given)


@pytest.mark.parametrize(
    ("type_", "zero_point", "filter_zero", "centered", "taps", "dtype"),
    [
        (Q8S, 0, 0, False, 1032, np.float32),  # 1032 * 127 * 128 < 2**24
        (Q8S, 0, 0, False, 1033, np.float64),
        (Q8S, -128, 0, True, 518, np.float32),  # 518 * 127 * 255 < 2**24
        (Q8S, -128, 0, True, 519, np.float64),
        (Q8S, 0, -128, False, 514, np.float32),  # 514 * 255 * 128 < 2**24
        (Q8S, 0, -128, False, 515, np.float64),
        (Q8, 7, 0, False, 518, np.float32),  # 518 * 127 * 255 < 2**24
        (Q8, 7, 0, False, 519, np.float64),
    ],
)
def test_sums_fit_in_the_float(
    type_, zero_point, filter_zero, centered, taps, dtype
) -> None:
    weights = np.full(taps, 127)
    product = lowered(type_, weights, zero_point, filter_zero, centered=centered)
    assert product.weights.dtype == dtype
    assert (product.weights == 127 - filter_zero).all()
    assert product.zero == zero_point


@pytest.mark.parametrize("type_", [F32, F16])
def test_floats_are_multiplied_in_float32(type_) -> None:
    assert lowered(type_, [1.5, 2.5]).weights.dtype == np.float32


@pytest.mark.parametrize("scales", [(1, 1, 0), (np.inf, 1, 1), (1, np.nan, 1)])
def test_scales_are_positive_and_finite(scales) -> None:
    with pytest.raises(OperationFailedError, match="scales"):
        lowered(Q8, [1, 2], scales=scales)
