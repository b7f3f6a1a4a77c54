"""Operations that only reorder, repeat or count elements."""

import itertools
from functools import partial

import numpy as np
import pytest

from asyncnn.hal.types import OperandType, OperationType
from tests.kernels.operations import (
    B8,
    F16,
    F32,
    I32,
    Q8,
    Q8S,
    compute,
    constant,
    random_values,
    result,
    tensor,
)

TYPES = [F32, F16, I32, Q8, Q8S]
RESHAPE, SQUEEZE, EXPAND_DIMS, TRANSPOSE = (
    OperationType.RESHAPE,
    OperationType.SQUEEZE,
    OperationType.EXPAND_DIMS,
    OperationType.TRANSPOSE,
)


def rearrange(operation, type_, x, *others, shape):
    output = result(type_, shape, 1.0)
    return compute(operation, [tensor(type_, x, 1.0), *others], output)


REARRANGED = [
    (RESHAPE, [4, -1], (2, 3, 4), lambda x: x.reshape(4, 6)),
    (RESHAPE, [-1], (0, 3), np.ravel),
    (SQUEEZE, [0, -1], (1, 3, 1, 1), lambda x: x.reshape(3, 1)),
    (SQUEEZE, None, (1, 3, 1, 1), np.ravel),
    (EXPAND_DIMS, -1, (2, 3), lambda x: x[..., None]),
    *(
        (TRANSPOSE, order, (2, 3, 4), partial(np.transpose, axes=order))
        for order in itertools.permutations(range(3))
    ),
    *((TRANSPOSE, None, s, np.transpose) for s in ((3,), (2, 3), (2, 3, 4, 5), (0, 3))),
    *(
        (OperationType.REVERSE, [axis], (2, 3, 4, 5), partial(np.flip, axis=axis))
        for axis in range(4)
    ),
    *(
        (OperationType.TILE, times, (2, 3, 2), partial(np.tile, reps=times))
        for times in ((1, 1, 1), (2, 1, 3), (1, 4, 1), (2, 0, 1))
    ),
]


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize(("operation", "other", "source", "wanted"), REARRANGED)
def test_elements_are_rearranged_as_by_numpy(
    type_, operation, other, source, wanted
) -> None:
    x = random_values(type_, source)
    is_tensor = isinstance(other, list | tuple)
    other = constant(I32, other) if is_tensor else other
    rearranged = rearrange(operation, type_, x, other, shape=wanted(x).shape)
    np.testing.assert_array_equal(rearranged, wanted(x))


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("type_", [F32, F16, Q8, Q8S])
def test_channel_shuffle_deals_channels_out_to_groups(type_, axis) -> None:
    groups, size = 3, 2
    shape = [4, 5, 7]
    shape[axis] = groups * size
    x = random_values(type_, tuple(shape))
    shuffled = rearrange(
        OperationType.CHANNEL_SHUFFLE, type_, x, groups, axis, shape=x.shape
    )
    for k, g in itertools.product(range(size), range(groups)):
        np.testing.assert_array_equal(
            shuffled.take(k * groups + g, axis), x.take(g * size + k, axis)
        )


@pytest.mark.parametrize("shape", [(3,), (2, 3, 4), (2, 0)])
@pytest.mark.parametrize(
    ("type_", "value"), [(F32, -2.5), (F16, np.float16(7)), (I32, -123456)]
)
def test_fill_repeats_a_scalar(type_, value, shape) -> None:
    inputs = [constant(I32, shape), value]
    filled = compute(OperationType.FILL, inputs, result(type_, shape))
    np.testing.assert_array_equal(filled, np.full(shape, value))


@pytest.mark.parametrize("type_", [*TYPES, B8])
def test_rank_counts_axes(type_) -> None:
    given = tensor(type_, np.zeros((2, 1, 0, 3, 5)), 1.0)
    rank = compute(OperationType.RANK, [given], result(OperandType.INT32, ()))
    assert rank == 5


@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((1, 37, 41, 67), (0, 3, 1, 2)),
        ((67, 1, 41, 37), (3, 1, 0, 2)),
        ((3, 65, 700), (2, 1, 0)),
        ((2, 3, 33, 500), (0, 3, 1, 2)),
        ((9, 9000), (1, 0)),
        ((9000, 9), (1, 0)),
        ((70000, 1), (1, 0)),
        ((1, 1), (1, 0)),
    ],
    ids=str,
)
@pytest.mark.parametrize("type_", [F32, Q8])
def test_transpose_permutes_axes_of_any_length(type_, shape, order) -> None:
    x = np.arange(np.prod(shape)).reshape(shape) % 251
    wanted = x.transpose(order)
    permuted = rearrange(TRANSPOSE, type_, x, constant(I32, order), shape=wanted.shape)
    np.testing.assert_array_equal(permuted, wanted)
