"""Blocks of pixels moved to channels or batches, in both layouts."""

import itertools

import numpy as np
import pytest

from asyncnn.hal.types import OperationType
from tests.kernels.operations import (
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

TYPES = [F32, F16, Q8, Q8S]
ZERO_POINT = 11
layouts = pytest.mark.parametrize("nchw", [False, True])
types = pytest.mark.parametrize("type_", TYPES)


def move(operation, type_, x, *others, shape, nchw):
    """Run on an NHWC array in either layout; give the NHWC result."""
    order = (0, 3, 1, 2) if nchw else (0, 1, 2, 3)
    zero_point = ZERO_POINT if type_ in (Q8, Q8S) else 0
    given = tensor(type_, x.transpose(order), 1.0, zero_point)
    layout = tuple(shape[axis] for axis in order)
    moved = compute(
        operation, [given, *others, nchw], result(type_, layout, 1.0, zero_point)
    )
    return moved.transpose(0, 2, 3, 1) if nchw else moved


@layouts
@types
def test_depth_to_space_spreads_channels_over_a_block(type_, nchw) -> None:
    x = random_values(type_, (2, 3, 2, 12))
    spread = move(
        OperationType.DEPTH_TO_SPACE, type_, x, 2, shape=(2, 6, 4, 3), nchw=nchw
    )
    for i, j in itertools.product(range(2), range(2)):
        first = (i * 2 + j) * 3
        np.testing.assert_array_equal(
            spread[:, i::2, j::2], x[..., first : first + 3], f"{i}, {j}"
        )


@layouts
@types
def test_space_to_depth_undoes_depth_to_space(type_, nchw) -> None:
    x = random_values(type_, (2, 3, 2, 12))
    spread = move(
        OperationType.DEPTH_TO_SPACE, type_, x, 2, shape=(2, 6, 4, 3), nchw=nchw
    )
    back = move(
        OperationType.SPACE_TO_DEPTH, type_, spread, 2, shape=x.shape, nchw=nchw
    )
    np.testing.assert_array_equal(back, x)


@layouts
@types
def test_space_to_batch_deals_padded_pixels_out_to_images(type_, nchw) -> None:
    x = random_values(type_, (2, 4, 5, 3))
    zero = ZERO_POINT if type_ in (Q8, Q8S) else 0
    margins = ((0, 0), (1, 1), (1, 0), (0, 0))
    padded = np.pad(x, margins, constant_values=zero)
    dealt = move(
        OperationType.SPACE_TO_BATCH_ND,
        type_,
        x,
        constant(I32, [2, 3]),
        constant(I32, [[1, 1], [1, 0]]),
        shape=(12, 3, 2, 3),
        nchw=nchw,
    )
    for i, j in itertools.product(range(2), range(3)):
        first = (i * 3 + j) * 2
        np.testing.assert_array_equal(
            dealt[first : first + 2], padded[:, i::2, j::3], f"{i}, {j}"
        )


@layouts
@types
def test_batch_to_space_undoes_space_to_batch(type_, nchw) -> None:
    x = random_values(type_, (2, 4, 6, 3))
    block = constant(I32, [2, 3])
    dealt = move(
        OperationType.SPACE_TO_BATCH_ND,
        type_,
        x,
        block,
        constant(I32, np.zeros((2, 2))),
        shape=(12, 2, 2, 3),
        nchw=nchw,
    )
    back = move(
        OperationType.BATCH_TO_SPACE_ND, type_, dealt, block, shape=x.shape, nchw=nchw
    )
    np.testing.assert_array_equal(back, x)
