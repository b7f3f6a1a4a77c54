"""SLICE, STRIDED_SLICE and GATHER."""

import numpy as np
import pytest

from asyncnn import kernels
from asyncnn.hal.operations.bound import OperationFailedError
from asyncnn.hal.types import OperationType
from asyncnn.kernels import joining
from tests.kernels.operations import (
    F16,
    F32,
    I32,
    Q8,
    Q8S,
    PoisonedScratch,
    bind,
    compute,
    constant,
    random_values,
    result,
    tensor,
)

TYPES = [F32, F16, I32, Q8, Q8S]
SLICE, STRIDED_SLICE, GATHER = (
    OperationType.SLICE,
    OperationType.STRIDED_SLICE,
    OperationType.GATHER,
)


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize(
    ("begin", "size", "taken"),
    [
        ((0, 0, 0), (-1, -1, -1), np.s_[:, :, :]),
        ((1, 0, 2), (1, 3, 2), np.s_[1:2, :, 2:4]),
        ((1, 2, 3), (-1, 1, 0), np.s_[1:, 2:, 3:3]),
    ],
)
def test_slice_takes_a_box(type_, begin, size, taken) -> None:
    x = random_values(type_, (2, 3, 4))
    inputs = [tensor(type_, x, 1.0), constant(I32, begin), constant(I32, size)]
    sliced = compute(SLICE, inputs, result(type_, x[taken].shape, 1.0))
    np.testing.assert_array_equal(sliced, x[taken])


def strided_slice(type_, x, wanted, begin, end, strides, masks):
    limits = (constant(I32, values) for values in (begin, end, strides))
    output = result(type_, wanted.shape or (1,))
    return compute(STRIDED_SLICE, [tensor(type_, x), *limits, *masks], output)


@pytest.mark.parametrize("type_", [F32, F16, Q8, Q8S])
@pytest.mark.parametrize(
    ("begin", "end", "strides", "masks", "taken"),
    [
        ((0, 1), (4, 5), (1, 2), (0, 0, 0), np.s_[0:4, 1:5:2]),
        ((-3, 4), (-1, 0), (1, -1), (0, 0, 0), np.s_[-3:-1, 4:0:-1]),
        ((9, 9), (9, 9), (-2, -1), (3, 3, 0), np.s_[::-2, ::-1]),
        ((2, 1), (3, 5), (1, 2), (0, 0, 1), np.s_[2, 1:5:2]),
        ((-2, -1), (3, 5), (1, 1), (0, 0, 3), np.s_[-2, -1]),
        ((3, 0), (1, 5), (1, 1), (0, 0, 0), np.s_[3:1, 0:5]),
    ],
)
def test_strided_slice_takes_what_numpy_takes(
    type_, begin, end, strides, masks, taken
) -> None:
    x = random_values(type_, (4, 5))
    wanted = np.asarray(x[taken])
    sliced = strided_slice(type_, x, wanted, begin, end, strides, masks)
    np.testing.assert_array_equal(sliced, np.atleast_1d(wanted))


def gather_inputs(type_, x, axis, indices, make):
    return [tensor(type_, x, 1.0), axis, make(I32, indices)]


@pytest.mark.parametrize("make", [tensor, constant])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("indices", [[1, 0, 1], [[2, 0], [1, 1]], [0], []], ids=str)
@pytest.mark.parametrize("type_", TYPES)
def test_gather_takes_listed_elements(type_, indices, axis, make) -> None:
    x = random_values(type_, (3, 4, 5))
    wanted = x.take(np.array(indices, int), axis)
    inputs = gather_inputs(type_, x, axis, indices, make)
    gathered = compute(GATHER, inputs, result(type_, wanted.shape, 1.0))
    np.testing.assert_array_equal(gathered, wanted)


@pytest.mark.parametrize("index", [-1, 3, 2**31 - 1, -(2**31)])
class TestIndicesOutOfBounds:
    def test_fail_the_execution(self, index) -> None:
        inputs = gather_inputs(F32, np.zeros((3, 2)), 0, [0, index], tensor)
        with pytest.raises(OperationFailedError, match=f"index {index} "):
            compute(GATHER, inputs, result(F32, (2, 2)))

    def test_fail_the_preparation_when_constant(self, index) -> None:
        inputs = gather_inputs(F32, np.zeros((3, 2)), 0, [0, index], constant)
        with pytest.raises(OperationFailedError, match=f"index {index} "):
            kernels.prepare(bind(GATHER, inputs, [result(F32, (2, 2))]))


def test_indices_that_change_once_they_were_checked_stay_within(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check = joining._require_within

    def check_and_change(indices: np.ndarray, length: int) -> None:
        check(indices, length)
        indices[...] = 2**31 - 1  # as a client may whose memory they are in

    monkeypatch.setattr(joining, "_require_within", check_and_change)
    inputs = gather_inputs(F32, random_values(F32, (3, 2)), 0, [0, 1], tensor)
    run = kernels.prepare(bind(GATHER, inputs, [result(F32, (2, 2))]))(
        PoisonedScratch()
    )
    x, indices = random_values(F32, (3, 2)), np.array([0, 1], np.int32)
    gathered = np.empty((2, 2), np.float32)
    run([x, None, indices], [gathered])
    np.testing.assert_array_equal(gathered, x[[2, 2]])
