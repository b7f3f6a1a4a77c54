"""LSH_PROJECTION, one key and one bit at a time."""

import struct

import numpy as np
import pytest

from asyncnn.hal.operations.bound import OperationFailedError
from asyncnn.hal.operations.lookup import DENSE, SPARSE, SPARSE_DEPRECATED
from asyncnn.hal.types import OperationType
from asyncnn.kernels.lookup import fingerprint64
from tests.kernels.operations import (
    F16,
    F32,
    I32,
    Q8,
    compute,
    random_values,
    result,
    tensor,
)

KINDS = [SPARSE_DEPRECATED, DENSE, SPARSE]


def project(hash_type, type_, seeds, x, weight, kind):
    hashes, bits = np.shape(seeds)
    weights = None if weight is None else tensor(hash_type, weight)
    inputs = [tensor(hash_type, seeds), tensor(type_, x), weights, kind]
    shape = (hashes * bits,) if kind == DENSE else (hashes,)
    return compute(OperationType.LSH_PROJECTION, inputs, result(I32, shape))


def side(seed, x, weight) -> int:
    score = 0.0
    for row, factor in zip(x, weight, strict=True):
        key = struct.pack("<f", seed) + row.tobytes()
        fingerprint = fingerprint64(np.frombuffer(key, np.uint8)[np.newaxis])
        score += float(fingerprint.view(np.int64)[0]) * float(factor)
    return int(score > 0)


def expected(seeds, x, weight, kind):
    sides = [[side(seed, x, weight) for seed in row] for row in seeds]
    if kind == DENSE:
        return np.ravel(sides)
    bits = len(sides[0])
    signatures = [int("".join(map(str, row)), 2) for row in sides]
    if kind == SPARSE:
        signatures = [value + (i << bits) for i, value in enumerate(signatures)]
    return np.array(signatures, np.int64).astype(np.int32)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("row", [(), (5,), (3, 11)])
@pytest.mark.parametrize("type_", [F16, F32, I32, Q8])
@pytest.mark.parametrize("hash_type", [F32, F16])
def test_bits_are_the_signs_of_weighted_hashes(
    hash_type, type_, row, kind, weighted
) -> None:
    seeds = random_values(hash_type, (3, 5))
    x = random_values(type_, (4, *row), 1)
    weight = random_values(hash_type, (4,), 2) if weighted else None
    factors = np.ones(4) if weight is None else weight
    projected = project(hash_type, type_, seeds, x, weight, kind)
    np.testing.assert_array_equal(projected, expected(seeds, x, factors, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_signatures_of_32_bits_wrap_around(kind) -> None:
    seeds, x = random_values(F32, (3, 32)), random_values(I32, (2, 3))
    projected = project(F32, I32, seeds, x, None, kind)
    np.testing.assert_array_equal(projected, expected(seeds, x, np.ones(2), kind))


def test_rows_that_cancel_each_other_give_bit_0() -> None:
    x = np.array([[1, 2], [1, 2]])
    projected = project(F32, I32, [[1, 2, 3, 4]], x, [1, -1], DENSE)
    assert not projected.any()


def test_more_keys_than_are_hashed_at_once_make_no_difference() -> None:
    seeds, x = random_values(F32, (1, 5)), random_values(I32, (9000, 12))
    projected = project(F32, I32, seeds, x, None, DENSE)
    alone = [project(F32, I32, [[seed]], x, None, DENSE)[0] for seed in seeds[0]]
    assert projected.tolist() == alone


@pytest.mark.parametrize("shape", [(0, 2), (2, 0)])
@pytest.mark.parametrize("kind", KINDS)
def test_no_seeds_give_no_bits(shape, kind) -> None:
    projected = project(F32, I32, np.empty(shape), [[1, 2]], None, kind)
    assert projected.tolist() == (
        list(range(shape[0])) if kind == SPARSE else [0] * len(projected)
    )


def test_an_input_without_rows_fails() -> None:
    with pytest.raises(OperationFailedError, match="no rows"):
        project(F32, I32, [[1, 2]], np.empty((0, 3)), None, DENSE)
