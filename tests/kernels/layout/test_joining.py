"""CONCATENATION, PACK and SPLIT."""

import numpy as np
import pytest

from asyncnn.hal.types import OperationType
from tests.kernels.operations import (
    F16,
    F32,
    I32,
    Q8,
    Q8S,
    clamp_to,
    compute,
    compute_all,
    half_away,
    random_values,
    result,
    tensor,
)

TYPES = [F32, F16, I32, Q8, Q8S]


def concatenate(parts, axis, output):
    return compute(OperationType.CONCATENATION, [*parts, axis], output)


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize("type_", [F32, F16, Q8, Q8S])
def test_parts_are_joined_along_the_axis(type_, axis) -> None:
    parts = []
    for index, length in enumerate((1, 3, 0, 2)):
        shape = [2, 3, 4]
        shape[axis] = length
        parts.append(random_values(type_, tuple(shape), seed=index))
    wanted = np.concatenate(parts, axis)
    output = result(type_, wanted.shape, 0.5, 3)
    joined = concatenate([tensor(type_, part, 0.5, 3) for part in parts], axis, output)
    np.testing.assert_array_equal(joined, wanted)


@pytest.mark.parametrize("type_", [Q8, Q8S])
def test_codes_are_converted_to_the_output(type_) -> None:
    shift = 128 if type_ is Q8 else 0
    steps = np.arange(-128, 128)
    quantizations = [(0.5, -3), (0.25, 10), (1.25, 0)]
    parts = [
        tensor(type_, (steps + shift).reshape(1, 256), scale, zero_point + shift)
        for scale, zero_point in quantizations
    ]
    output = result(type_, (3, 256), 0.5, shift - 3)
    converted = [
        half_away((steps - zero_point) * scale / 0.5) - 3 + shift
        for scale, zero_point in quantizations
    ]
    joined = concatenate(parts, 0, output)
    np.testing.assert_array_equal(joined, clamp_to(type_, np.stack(converted)))
    np.testing.assert_array_equal(joined[0], steps + shift)


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize("type_", TYPES)
def test_pack_adds_an_axis(type_, axis) -> None:
    parts = [random_values(type_, (2, 3), seed=seed) for seed in range(4)]
    wanted = np.stack(parts, axis)
    inputs = [axis, *(tensor(type_, part, 1.0) for part in parts)]
    packed = compute(OperationType.PACK, inputs, result(type_, wanted.shape, 1.0))
    np.testing.assert_array_equal(packed, wanted)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("type_", TYPES)
def test_split_cuts_equal_parts(type_, axis) -> None:
    x = random_values(type_, (6, 3, 9))
    wanted = np.split(x, 3, axis)
    outputs = [result(type_, part.shape, 1.0) for part in wanted]
    parts = compute_all(OperationType.SPLIT, [tensor(type_, x, 1.0), axis, 3], outputs)
    for part, expected in zip(parts, wanted, strict=True):
        np.testing.assert_array_equal(part, expected)
