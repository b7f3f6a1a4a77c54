"""What LiteRT may be off by: one code, or what floats of the HAL may be off by."""

from collections.abc import Sequence

import numpy as np

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation

_FLOAT32 = (1e-5, 5 * 2.0**-23)
_FLOAT16 = (5 * 2.0**-10, 5 * 2.0**-10)
"""The conformance criterion: absolute and relative."""

_ROOM = 4
"""So many times the roundings that a formula allows for, a sum in another order has."""


def assert_close(
    operation: BoundOperation,
    got: Sequence[Array],
    expected: Sequence[Array],
    slack: Sequence[object] | None = None,
) -> None:
    """Check outputs against those of the kernel; ``slack`` is what formulas allow."""
    slack = [0.0] * len(expected) if slack is None else slack
    assert len(got) == len(expected)
    rows = zip(operation.outputs, got, expected, slack, strict=True)
    for operand, result, want, allowed in rows:
        name = operation.type.name
        assert result.dtype == want.dtype, f"{name} is {result.dtype}"
        assert result.shape == want.shape, f"{name} has shape {result.shape}"
        passes = _passes(operand, result, want, allowed)
        if not passes.all():
            place = tuple(int(axis[0]) for axis in np.nonzero(~passes))
            raise AssertionError(
                f"{name} at {place} is {result[place]}, expected {want[place]}"
            )


def _passes(operand: BoundOperand, result: Array, want: Array, slack: object) -> Array:
    got, wanted = result.astype(np.float64), want.astype(np.float64)
    if operand.type in QUANT8_TYPES:
        return np.abs(got - wanted) <= 1
    if operand.dtype.kind != "f":
        return got == wanted
    absolute, relative = _FLOAT16 if operand.dtype.itemsize == 2 else _FLOAT32
    with np.errstate(invalid="ignore"):
        allowed = absolute + relative * np.abs(wanted) + _ROOM * np.asarray(slack)
        close = np.abs(got - wanted) <= allowed
    return close | (got == wanted) | (np.isnan(got) & np.isnan(wanted))
