"""Operands whose real values are the same in every type, and naive formulas for boxes.

Coordinates are eighths, scores 256ths and deltas 32nds, so that every type stores them
exactly: one expectation in float64 serves all types.
"""

import itertools
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from asyncnn import kernels
from asyncnn.hal.operands import DTYPES
from asyncnn.hal.operations.bound import Array, BoundOperand
from asyncnn.hal.types import OperandType, OperationType
from tests.kernels.operations import (
    F16,
    F32,
    Q8,
    Q8S,
    TOLERANCE,
    Argument,
    bind,
    result,
    tensor,
)

Q16A = OperandType.TENSOR_QUANT16_ASYMM
Q16S = OperandType.TENSOR_QUANT16_SYMM
ZERO_POINTS = {Q8: 128, Q8S: 0}


class Kind(NamedTuple):
    """The types of one row of a signature."""

    values: OperandType
    boxes: OperandType
    anchors: OperandType


KINDS = [
    Kind(F32, F32, F32),
    Kind(F16, F16, F16),
    Kind(Q8, Q16A, Q16S),
    Kind(Q8S, Q16A, Q16S),
]
FLOAT_KINDS = KINDS[:2]


def described(type_: OperandType, shape, scale: float) -> BoundOperand:
    """Describe an operand; ``scale`` holds for quantised types only."""
    if DTYPES[type_].kind == "f":
        return result(type_, shape)
    return result(type_, shape, scale, ZERO_POINTS.get(type_, 0))


def encoded(type_: OperandType, reals, scale: float = 0.125) -> Argument:
    """Return an operand that stores ``reals`` without rounding."""
    reals = np.asarray(reals, np.float64)
    operand = described(type_, reals.shape, scale)
    stored = reals / (operand.scale or 1) + operand.zero_point
    argument = tensor(type_, stored, operand.scale, operand.zero_point)
    np.testing.assert_array_equal(decoded(operand, argument.array), reals)
    return argument


def decoded(operand: BoundOperand, array: Array) -> Array:
    """Return what an array of this operand stands for, in float64."""
    return (array.astype(np.float64) - operand.zero_point) * (operand.scale or 1)


def scalar(kind: Kind, value: float) -> float | np.float16:
    """Return a scalar of the kind's own float type."""
    return np.float16(value) if kind.values is F16 else value


def assert_stores(operand: BoundOperand, array: Array, expected: Array) -> None:
    """Check that ``array`` holds ``expected``, clamped and rounded once."""
    assert array.dtype == operand.dtype
    if array.dtype.kind == "f":
        tolerance = TOLERANCE[operand.type]
    else:
        limits = np.iinfo(array.dtype)
        low, high = decoded(operand, np.array([limits.min, limits.max]))
        expected = np.clip(expected, low, high)
        tolerance = {"rtol": 0, "atol": operand.scale * 0.502}
    np.testing.assert_allclose(decoded(operand, array), expected, **tolerance)


def compute_known(type_: OperationType, inputs, outputs) -> list[Array]:
    """Compute an operation whose output shapes depend on the values of its inputs."""
    known = []
    for given in inputs:
        if isinstance(given, Argument):
            given.array.flags.writeable = False
            operand = replace(given.operand, value=given.array)
            given = Argument(operand, given.array)
        known.append(given)
    with np.errstate(all="ignore"):
        return list(kernels.compute(bind(type_, known, outputs)))


def random_boxes(generator, count: int, size: float = 20) -> Array:
    """Return boxes [count, 4] in ``[0, size]``, a quarter wide and high at least."""
    eighths = generator.integers(0, int(size * 8) - 2, (count, 2, 2))
    eighths.sort(axis=1)
    eighths[:, 1] += 2
    return eighths.reshape(count, 4) / 8


def distinct_scores(generator, shape) -> Array:
    """Return different multiples of 1/256 that codes of any sign hold."""
    count = int(np.prod(shape))
    return generator.permutation(128)[:count].reshape(shape) / 256


def naive_iou(a, b) -> float:
    """Return the shared part of the union of two boxes."""
    width = max(min(a[2], b[2]) - max(a[0], b[0]), 0)
    height = max(min(a[3], b[3]) - max(a[1], b[1]), 0)
    shared = width * height
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    return shared / (sum(areas) - shared)


def naive_hard_nms(scores, boxes, candidates, limit, threshold) -> list[int]:
    """Return the picks, best first; ``scores`` has no ties."""
    picked: list[int] = []
    for box in sorted(candidates, key=lambda index: -scores[index]):
        overlaps = (naive_iou(boxes[box], boxes[other]) for other in picked)
        if len(picked) != limit and all(iou < threshold for iou in overlaps):
            picked.append(box)
    return picked


def naive_refined(box, delta, image_size) -> list[float]:
    """Return the box moved and scaled by dx, dy, dw, dh and clipped to the image."""
    height, width = image_size
    corners = []
    for axis, edge in enumerate((width, height)):
        begin, end = box[axis], box[axis + 2]
        center = (begin + end) / 2 + delta[axis] * (end - begin)
        half = (end - begin) * np.exp(delta[axis + 2]) / 2
        corners.append([min(max(c, 0), edge) for c in (center - half, center + half)])
    return [*(corner[0] for corner in corners), *(corner[1] for corner in corners)]


def positions(*lengths: int):
    """Yield every index of an array of these lengths."""
    return itertools.product(*map(range, lengths))
