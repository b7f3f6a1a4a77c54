"""Epilogues turn sums into stored values."""

import numpy as np
import pytest

from asyncnn.kernels.kernel import HeapScratch
from asyncnn.kernels.linear.lowering import (
    FloatEpilogue,
    QuantizedEpilogue,
    fitted_line,
    pixels_per_row,
)
from asyncnn.kernels.rounding import FixedPointRounding, RealRounding


@pytest.mark.parametrize("pixels", [1, 7, 36, 97, 2304, 12544])
@pytest.mark.parametrize("channels", [1, 3, 64, 2048])
def test_rows_divide_the_pixels_and_are_long(pixels, channels) -> None:
    count = pixels_per_row(pixels, channels)
    assert pixels % count == 0
    assert count == pixels or count * channels >= 768


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_float_epilogues_add_clamp_and_narrow(dtype) -> None:
    epilogue = FloatEpilogue(np.float32([1, 2]), (-1.0, 6.0), np.dtype(dtype))
    sums = np.float32([[-5, 0.5, 1, 100], [-1.5, 0, 3, np.inf]])
    out = np.empty(sums.shape, dtype)
    epilogue.bind(HeapScratch(), sums)(out)
    assert out.tolist() == [[-1, 2.5, 2, 6], [-0.5, 2, 4, 6]]


@pytest.mark.parametrize(
    ("rule", "reach"),
    [
        pytest.param(FixedPointRounding(np.array([0.37, 0.11])), 60_000, id="int16"),
        pytest.param(FixedPointRounding(np.array([0.37, 0.11])), 2**23, id="int32"),
        pytest.param(FixedPointRounding(np.array([1e4, 1e6])), 2**23, id="huge"),
        pytest.param(RealRounding(np.array([0.7, 0.3])), 2**20, id="no-line"),
    ],
)
@pytest.mark.parametrize(
    ("dtype", "zero_point", "bounds"),
    [
        (np.uint8, 0, (0, 255)),
        (np.uint8, 130, (0, 255)),
        (np.int8, -128, (-128, 127)),
        (np.int8, 5, (5, 100)),
        (np.int8, -3, (-128, 127)),
    ],
)
def test_quantised_epilogues_follow_their_rule(
    rule, reach, dtype, zero_point, bounds
) -> None:
    fold = np.array([40, -9])
    reaches = np.array([reach, reach])
    line = fitted_line(rule, fold, reaches, zero_point, bounds)
    epilogue = QuantizedEpilogue(lambda: rule, fold, zero_point, bounds, line)
    near = np.arange(-1000, 1000)
    far = np.linspace(-reach, reach, 400).astype(int)
    sums = np.concatenate([near, far]).repeat(2).astype(np.float32)
    sums = sums.reshape(-1, 4)
    exact = rule(sums.reshape(-1, 2).T.astype(np.int64) + fold[:, np.newaxis]).T
    out = np.empty(sums.shape, dtype)
    epilogue.bind(HeapScratch(), sums)(out)
    np.testing.assert_array_equal(
        out.reshape(-1, 2), np.clip(exact + zero_point, *bounds)
    )
