"""EMBEDDING_LOOKUP and HASHTABLE_LOOKUP."""

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
    constant,
    random_values,
    result,
    tensor,
)

EMBEDDING = OperationType.EMBEDDING_LOOKUP
HASHTABLE = OperationType.HASHTABLE_LOOKUP
shapes = pytest.mark.parametrize("shape", [(6, 3), (6, 2, 4), (6, 1, 1, 2)])
make = pytest.mark.parametrize("make", [tensor, constant])


def embed(type_, values, lookups):
    shape = (len(lookups.array), *values.shape[1:])
    return compute(EMBEDDING, [lookups, tensor(type_, values)], result(type_, shape))


@make
@shapes
@pytest.mark.parametrize("type_", [F32, F16, I32, Q8, Q8S])
def test_an_embedding_is_the_row_of_its_index(type_, shape, make) -> None:
    values = random_values(type_, shape)
    lookups = [5, 0, 0, 3]
    rows = embed(type_, values, make(I32, lookups))
    np.testing.assert_array_equal(rows, values[lookups])


@make
@pytest.mark.parametrize("bad", [-1, 6, 2**31 - 1, -(2**31)])
def test_an_index_that_no_row_has_fails(make, bad) -> None:
    with pytest.raises(OperationFailedError, match=f"{bad} is not the index"):
        embed(F32, np.zeros((6, 2)), make(I32, [0, bad, 5]))


def test_a_bad_constant_index_fails_the_preparation() -> None:
    inputs = [constant(I32, [6]), tensor(F32, np.zeros((6, 2)))]
    with pytest.raises(OperationFailedError):
        kernels.prepare(bind(EMBEDDING, inputs, [result(F32, (1, 2))]))


def test_no_rows_have_no_index() -> None:
    with pytest.raises(OperationFailedError):
        embed(F32, np.zeros((0, 2)), tensor(I32, [0]))


@pytest.mark.parametrize("rows", [0, 6])
def test_no_lookups_give_no_embeddings(rows) -> None:
    assert embed(F32, np.zeros((rows, 2)), tensor(I32, [])).shape == (0, 2)


def look_up(type_, lookups, keys, values):
    outputs = [
        result(type_, (len(lookups), *values.shape[1:])),
        result(Q8, (len(lookups),), 1.0),
    ]
    inputs = [tensor(I32, lookups), tensor(I32, keys), tensor(type_, values)]
    return compute_all(HASHTABLE, inputs, outputs)


@shapes
@pytest.mark.parametrize("type_", [F32, I32, Q8])
def test_a_key_selects_its_row_and_a_missing_one_zeros(type_, shape) -> None:
    keys = [-(2**31), -7, 0, 12, 90, 2**31 - 1]
    lookups = [12, 13, -(2**31), 91, 2**31 - 1, -8, 0, 12]
    values = random_values(type_, shape)
    found, hits = look_up(type_, lookups, keys, values)
    assert hits.tolist() == [1, 0, 1, 0, 1, 0, 1, 1]
    for row, hit, lookup in zip(found, hits, lookups, strict=True):
        expected = values[keys.index(lookup)] if hit else np.zeros_like(values[0])
        np.testing.assert_array_equal(row, expected)


def test_a_table_without_keys_has_no_hits() -> None:
    found, hits = look_up(F32, [1, 2], [], np.empty((0, 3)))
    assert not found.any()
    assert not hits.any()


def test_no_lookups_give_no_rows() -> None:
    found, hits = look_up(F32, [], [1, 2], np.zeros((2, 3)))
    assert (found.shape, hits.shape) == ((0, 3), (0,))
