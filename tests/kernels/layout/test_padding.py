"""PAD, PAD_V2 and MIRROR_PAD against numpy.pad."""

import numpy as np
import pytest

from asyncnn.hal.operations.joining import REFLECT, SYMMETRIC
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

CASES = [
    ((3,), [(1, 2)]),
    ((3, 4), [(0, 0), (2, 1)]),
    ((2, 3, 4, 5), [(1, 0), (0, 2), (1, 1), (0, 0)]),
    ((2, 0), [(1, 0), (0, 2)]),
]
MIRRORED = [
    ((3,), [(2, 2)]),
    ((3, 4), [(0, 0), (3, 1)]),
    ((2, 3, 4), [(1, 1), (2, 0), (0, 3)]),
    ((1, 2), [(0, 0), (1, 1)]),
]
ZEROS = [(F32, 0), (F16, 0), (Q8, 77), (Q8S, -100)]
VALUES = [(F32, 2.5), (F16, np.float16(-3)), (Q8, 200), (Q8S, -9)]


def pad(operation, type_, x, paddings, *others, zero_point=0):
    pairs = zip(x.shape, paddings, strict=True)
    shape = tuple(before + length + after for length, (before, after) in pairs)
    given = tensor(type_, x, 1.0, zero_point)
    output = result(type_, shape, 1.0, zero_point)
    return compute(operation, [given, constant(I32, paddings), *others], output)


PADDED = [
    *((OperationType.PAD, type_, (), zero, zero) for type_, zero in ZEROS),
    *((OperationType.PAD_V2, type_, (value,), 5, value) for type_, value in VALUES),
]


@pytest.mark.parametrize(("shape", "paddings"), CASES)
@pytest.mark.parametrize(("operation", "type_", "others", "zero", "value"), PADDED)
def test_pad_surrounds_with_the_stored_zero_or_a_value(
    operation, type_, others, zero, value, shape, paddings
) -> None:
    x = random_values(type_, shape)
    np.testing.assert_array_equal(
        pad(operation, type_, x, paddings, *others, zero_point=zero),
        np.pad(x, paddings, constant_values=value),
    )


@pytest.mark.parametrize(("shape", "paddings"), MIRRORED)
@pytest.mark.parametrize(
    ("mode", "name"), [(REFLECT, "reflect"), (SYMMETRIC, "symmetric")]
)
@pytest.mark.parametrize("type_", [F32, F16, I32, Q8, Q8S])
def test_mirror_pad_continues_with_the_reverse(
    type_, mode, name, shape, paddings
) -> None:
    x = random_values(type_, shape)
    np.testing.assert_array_equal(
        pad(OperationType.MIRROR_PAD, type_, x, paddings, mode),
        np.pad(x, paddings, mode=name),
    )


def test_symmetric_padding_may_repeat_the_whole_axis() -> None:
    x = np.arange(3, dtype=np.float32)
    padded = pad(OperationType.MIRROR_PAD, F32, x, [(3, 3)], SYMMETRIC)
    np.testing.assert_array_equal(padded, [2, 1, 0, 0, 1, 2, 2, 1, 0])
