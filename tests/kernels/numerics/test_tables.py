"""Lookup tables indexed by raw bytes."""

import numpy as np
import pytest

from asyncnn.kernels.kernel import HeapScratch
from asyncnn.kernels.numerics import (
    binary_lookup,
    conversion_table,
    look_up,
    unary_lookup,
)
from tests.kernels.operations import Q8, Q8S, clamp_to, half_away, result

BYTES = np.arange(256, dtype=np.uint8)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_a_code_is_looked_up_by_its_byte(dtype) -> None:
    table = np.arange(256, dtype=np.float32) * 2
    output = np.empty(256, np.float32)
    look_up(table, BYTES.view(dtype), output)
    np.testing.assert_array_equal(output, table)
    unary_lookup(table, 256)(HeapScratch())([BYTES.view(dtype)[::-1]], [output])
    np.testing.assert_array_equal(output, table[::-1])


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32])
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("size", [2**15, 2**15 + 1])
def test_many_codes_are_looked_up_wherever_they_lie(size, offset, dtype) -> None:
    rng = np.random.default_rng(0)
    table = rng.integers(-128, 128, 256).astype(dtype)
    codes = rng.integers(0, 256, (1, size + offset), np.uint8)[:, offset:]
    output = np.zeros((1, size + offset), dtype)
    unary_lookup(table, size)(HeapScratch())([codes], [output[:, offset:]])
    np.testing.assert_array_equal(output[:, offset:], table[codes])
    assert not output[:, :offset].any()


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_two_codes_are_looked_up_by_row_and_column(dtype) -> None:
    table = np.random.default_rng(0).integers(0, 256, (256, 256), np.uint8)
    rows, columns = BYTES.view(dtype).reshape(256, 1), BYTES.view(dtype)
    output = np.empty((256, 256), np.uint8)
    binary_lookup(table, (256, 256))(HeapScratch())([rows, columns], [output])
    np.testing.assert_array_equal(output, table)


@pytest.mark.parametrize("target", [Q8, Q8S])
@pytest.mark.parametrize("source", [Q8, Q8S])
def test_conversion_rounds_half_away_from_zero(source, target) -> None:
    given, wanted = result(source, (), 0.75, 9), result(target, (), 0.5, 30)
    codes = BYTES.view(given.dtype).astype(int)
    exact = clamp_to(target, half_away((codes - 9) * 0.75 / 0.5) + 30)
    np.testing.assert_array_equal(conversion_table(given, wanted), exact)
