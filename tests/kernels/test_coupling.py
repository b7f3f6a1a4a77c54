"""A signed tensor is an unsigned one less 128, for every operation on 8-bit codes."""

import numpy as np
import pytest

from asyncnn.hal.types import OperationType
from tests.kernels.operations import (
    B8,
    F32,
    I32,
    Q8,
    Q8S,
    compute_all,
    constant,
    random_values,
    result,
    tensor,
)

IMAGE = (2, 4, 6, 8)
SCALE, OTHER_SCALE = 0.05, 0.021
CODES = object()
"""Stands for a quantised image; each one has values of its own."""

POOL = [CODES, 1, 2, 1, 3, 2, 0]
CONDITION = tensor(B8, random_values(B8, IMAGE))


def axes(*values):
    return constant(I32, values)


CASES = {
    "ADD": ([CODES, CODES, 1], IMAGE),
    "SUB": ([CODES, CODES, 0], IMAGE),
    "MUL": ([CODES, CODES, 3], IMAGE),
    "MAXIMUM": ([CODES, CODES], IMAGE),
    "MINIMUM": ([CODES, CODES], IMAGE),
    "PRELU": ([CODES, CODES], IMAGE),
    "RELU": ([CODES], IMAGE),
    "RELU1": ([CODES], IMAGE),
    "RELU6": ([CODES], IMAGE),
    "LOGISTIC": ([CODES], IMAGE),
    "TANH": ([CODES], IMAGE),
    "HARD_SWISH": ([CODES], IMAGE),
    "RSQRT": ([CODES], IMAGE),
    "SOFTMAX": ([CODES, 1.0], IMAGE),
    "L2_NORMALIZATION": ([CODES], IMAGE),
    "AVERAGE_POOL_2D": (POOL, (2, 4, 3, 8)),
    "MAX_POOL_2D": (POOL, (2, 4, 3, 8)),
    "MEAN": ([CODES, axes(1, 3), 0], (2, 6)),
    "REDUCE_MAX": ([CODES, axes(1), False], (2, 6, 8)),
    "REDUCE_MIN": ([CODES, axes(2), True], (2, 4, 1, 8)),
    "SELECT": ([CONDITION, CODES, CODES], IMAGE),
    "CONCATENATION": ([CODES, CODES, 2], (2, 4, 12, 8)),
    "PACK": ([1, CODES, CODES], (2, 2, 4, 6, 8)),
    "RESHAPE": ([CODES, axes(-1, 8)], (48, 8)),
    "TRANSPOSE": ([CODES, axes(3, 0, 2, 1)], (8, 2, 6, 4)),
    "CHANNEL_SHUFFLE": ([CODES, 2, -1], IMAGE),
    "REVERSE": ([CODES, axes(2)], IMAGE),
    "TILE": ([CODES, axes(1, 2, 1, 3)], (2, 8, 6, 24)),
    "SLICE": ([CODES, axes(0, 1, 2, 3), axes(2, 3, 2, -1)], (2, 3, 2, 5)),
    "GATHER": ([CODES, 2, axes(5, 0, 0)], (2, 4, 3, 8)),
    "PAD": ([CODES, constant(I32, [[1, 0]] * 4)], (3, 5, 7, 9)),
    "MIRROR_PAD": ([CODES, constant(I32, [[1, 0]] * 4), 0], (3, 5, 7, 9)),
    "DEPTH_TO_SPACE": ([CODES, 2], (2, 8, 12, 2)),
    "SPACE_TO_DEPTH": ([CODES, 2], (2, 2, 3, 32)),
    "BATCH_TO_SPACE_ND": ([CODES, axes(1, 2)], (1, 4, 12, 8)),
    "SPACE_TO_BATCH_ND": (
        [CODES, axes(2, 1), constant(I32, [[1, 1], [0, 2]])],
        (4, 3, 8, 8),
    ),
}
"""Inputs and output shape by operation; outputs are codes too."""

FIXED_OUTPUT = {
    "LOGISTIC": (1 / 256, 0),
    "SOFTMAX": (1 / 256, 0),
    "TANH": (1 / 128, 128),
    "L2_NORMALIZATION": (1 / 128, 128),
}
COMPARISONS = ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")
TO_OTHER_TYPES = {
    "DEQUANTIZE": ([CODES], F32, IMAGE),
    "ARGMAX": ([CODES, 1], I32, (2, 6, 8)),
    "ARGMIN": ([CODES, -1], I32, (2, 4, 6)),
} | {name: ([CODES, CODES], B8, IMAGE) for name in COMPARISONS}


def given(inputs, type_):
    """Put tensors of the type where the case has codes, with scales that alternate."""
    shift = 0 if type_ is Q8 else 128
    arguments = []
    for index, argument in enumerate(inputs):
        if argument is CODES:
            scale = (SCALE, OTHER_SCALE)[index % 2]
            values = random_values(Q8, IMAGE, seed=index).astype(int) - shift
            argument = tensor(type_, values, scale, 100 + index - shift)
        arguments.append(argument)
    return arguments


def codes(name, type_):
    inputs, shape = CASES[name]
    scale, zero_point = FIXED_OUTPUT.get(name, (SCALE, 100))
    shift = 0 if type_ is Q8 else 128
    output = result(type_, shape, scale, zero_point - shift)
    (computed,) = compute_all(OperationType[name], given(inputs, type_), [output])
    return computed.astype(int) + shift


@pytest.mark.parametrize("name", CASES)
def test_results_differ_by_128(name) -> None:
    np.testing.assert_array_equal(codes(name, Q8S), codes(name, Q8))


@pytest.mark.parametrize("name", TO_OTHER_TYPES)
def test_results_of_other_types_are_equal(name) -> None:
    inputs, output, shape = TO_OTHER_TYPES[name]
    one, two = (
        compute_all(OperationType[name], given(inputs, type_), [result(output, shape)])
        for type_ in (Q8, Q8S)
    )
    np.testing.assert_array_equal(one, two)
