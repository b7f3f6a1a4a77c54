"""Compares what kernels compute with the float64 formulas, one operation at a time.

Each operation is judged by what it makes of the inputs that it really had, so that
errors don't add up along a graph, and none of its operations is too wild to check.
"""

import numpy as np

from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation
from asyncnn.tools.conformance.random_graphs.checking import evaluate
from tests.random_graphs import naive
from tests.random_graphs.naive.expected import QUANTIZED, Expected

_ALMOST = 1 - 1e-3
"""Share of the largest float beyond which a result may as well be infinite."""


def evaluate_and_judge(operation: BoundOperation) -> list[Array]:
    """Return what the kernel computes.

    :raises AssertionError: if it is too far from the formula.
    """
    results = evaluate(operation)
    if all(map(_is_finite, operation.inputs)):
        expected = naive.evaluate(operation)
        triples = zip(operation.outputs, expected, results, strict=True)
        for position, (operand, want, result) in enumerate(triples):
            _judge(f"{operation.type.name}: output {position}", operand, want, result)
    return results


def _is_finite(operand: BoundOperand | None) -> bool:
    return operand is None or bool(np.isfinite(operand.require_value()).all())


def _judge(name: str, operand: BoundOperand, want: Expected, result: Array) -> None:
    assert result.dtype == operand.dtype, f"{name} is {result.dtype}"
    assert result.shape == want.value.shape, (
        f"{name} has shape {result.shape}, expected {want.value.shape}"
    )
    if operand.type in QUANTIZED:
        passes, nearest = _judge_codes(operand, want, result)
    elif operand.dtype.kind == "f":
        passes, nearest = _judge_floats(want, result)
    else:
        nearest = want.value.astype(np.float64)
        passes = np.abs(result.astype(np.float64) - nearest) <= want.slack
    if not passes.all():
        place = tuple(int(axis[0]) for axis in np.nonzero(~passes))
        raise AssertionError(
            f"{name} at {place} is {result[place]}, expected {nearest[place]}"
        )


def _judge_codes(
    operand: BoundOperand, want: Expected, result: Array
) -> tuple[Array, Array]:
    limits = np.iinfo(operand.dtype)
    nearest = want.value / operand.scale + operand.zero_point
    nearest = np.clip(nearest, limits.min, limits.max)
    allowed = want.slack / operand.scale + want.places + 1e-6
    passes = np.abs(result.astype(np.float64) - nearest) <= allowed
    return passes | np.isnan(want.value), nearest


def _judge_floats(want: Expected, result: Array) -> tuple[Array, Array]:
    limits = np.finfo(result.dtype)
    nearest, actual = want.value, result.astype(np.float64)
    place = float(limits.eps) * np.abs(nearest) + float(limits.tiny)
    passes = np.abs(actual - nearest) <= want.slack + want.places * place
    largest = float(limits.max) * _ALMOST
    passes |= (np.abs(nearest) >= largest) & (actual * np.sign(nearest) >= largest)
    passes |= np.isnan(nearest) & np.isnan(actual)
    return passes, nearest
