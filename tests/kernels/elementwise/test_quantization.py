"""DEQUANTIZE and QUANTIZE."""

import numpy as np
import pytest

from asyncnn.hal.types import OperationType, SymmPerChannelQuantParams
from tests.kernels.operations import (
    F16,
    F32,
    Q8,
    Q8PC,
    Q8S,
    Q8SYM,
    TOLERANCE,
    clamp_to,
    compute,
    half_away,
    random_values,
    result,
    tensor,
)

QUANTIZE, DEQUANTIZE = OperationType.QUANTIZE, OperationType.DEQUANTIZE


@pytest.mark.parametrize("rows", [1, 4, 5, 128], ids="{} x 256".format)
@pytest.mark.parametrize("output", [F32, F16])
@pytest.mark.parametrize(
    ("type_", "zero_point"), [(Q8, 0), (Q8, 200), (Q8S, -128), (Q8S, 5), (Q8SYM, 0)]
)
def test_codes_dequantise_to_their_real_values(type_, zero_point, output, rows) -> None:
    shape = (rows, 2, 128)
    codes = np.arange(rows * 256).astype(np.uint8).view(type_dtype(type_))
    computed = compute(
        DEQUANTIZE,
        [tensor(type_, codes.reshape(shape), 0.37, zero_point)],
        result(output, shape),
    )
    codes = codes.reshape(shape)
    exact = np.float32(0.37) * (codes.astype(np.float32) - zero_point)
    np.testing.assert_array_equal(computed, exact.astype(computed.dtype))


def type_dtype(type_):
    return np.uint8 if type_ is Q8 else np.int8


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize("output", [F32, F16])
def test_each_channel_has_its_own_scale(output, axis) -> None:
    shape = (2, 3, 4)
    scales = tuple(0.1 * (index + 1) for index in range(shape[axis]))
    codes = random_values(Q8PC, shape)
    given = tensor(Q8PC, codes, 0, 0, SymmPerChannelQuantParams(scales, axis))
    along = np.array(scales).reshape([-1 if i == axis else 1 for i in range(3)])
    np.testing.assert_allclose(
        compute(DEQUANTIZE, [given], result(output, shape)),
        codes * along,
        **TOLERANCE[output],
    )


@pytest.mark.parametrize("type_", [Q8, Q8S])
@pytest.mark.parametrize("source", [F32, F16])
def test_real_values_round_half_away_from_zero_and_saturate(source, type_) -> None:
    real = np.arange(-600, 600, dtype=np.float64) / 4
    zero_point = 100 if type_ is Q8 else -28
    output = result(type_, real.shape, 0.5, zero_point)
    computed = compute(QUANTIZE, [tensor(source, real)], output)
    exact = clamp_to(type_, half_away(real / 0.5) + zero_point)
    np.testing.assert_array_equal(computed, exact)


def test_infinities_quantise_to_the_limits() -> None:
    real = np.array([-np.inf, np.inf, 1e38], np.float32)
    computed = compute(QUANTIZE, [tensor(F32, real)], result(Q8S, (3,), 0.001, 7))
    np.testing.assert_array_equal(computed, [-128, 127, 127])


@pytest.mark.parametrize("type_", [Q8, Q8S])
def test_quantise_undoes_dequantise(type_) -> None:
    codes = np.arange(256, dtype=np.uint8).view(type_dtype(type_))
    real = compute(DEQUANTIZE, [tensor(type_, codes, 0.013, 5)], result(F32, (256,)))
    back = compute(QUANTIZE, [tensor(F32, real)], result(type_, (256,), 0.013, 5))
    np.testing.assert_array_equal(back, codes)


@pytest.mark.parametrize("source", [F32, F16])
def test_empty_tensors_stay_empty(source) -> None:
    empty = tensor(source, np.empty((0, 3)))
    assert compute(QUANTIZE, [empty], result(Q8, (0, 3), 1.0)).size == 0
    codes = tensor(Q8, np.empty((0, 3)), 1.0)
    assert compute(DEQUANTIZE, [codes], result(source, (0, 3))).size == 0
