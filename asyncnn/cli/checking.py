"""Compares the outputs of a run with expected ones."""

import msgspec
import numpy as np

from asyncnn.hal.operations.bound import Array

HAL_RTOL = 5 * float(np.finfo(np.float32).eps)
HAL_ATOL = 1e-5


class Tolerance(msgspec.Struct, frozen=True):
    """``lsb`` steps for integers; for floats ``atol + rtol * |expected|``, complex too.

    Elements that are no numbers have to be equal. With ``scales_atol``, ``atol`` is
    multiplied by the largest expected magnitude where that exceeds 1. The defaults for
    floats are the HAL's criterion.
    """

    lsb: int = 1
    rtol: float = HAL_RTOL
    atol: float = HAL_ATOL
    scales_atol: bool = False


class Comparison(msgspec.Struct, frozen=True):
    """How an output compares; ``worst`` is the largest absolute difference."""

    name: str
    passed: bool
    differing: int
    elements: int
    worst: float
    problem: str = ""

    def __str__(self) -> str:
        if self.problem:
            return f"{self.name}: {self.problem}"
        return (
            f"{self.name}: {self.differing} of {self.elements} elements differ by more "
            f"than allowed, the worst by {self.worst:.6g}"
        )


def compare(
    name: str, actual: Array, expected: Array, allowed: Tolerance
) -> Comparison:
    """Compare ``actual`` with ``expected``; NaN never passes."""
    size = int(expected.size)
    for what in ("dtype", "shape"):
        got, want = getattr(actual, what), getattr(expected, what)
        if got != want:
            problem = f"{what} is {got}, expected {want}"
            return Comparison(name, False, size, size, float("inf"), problem)
    kind = expected.dtype.kind
    if kind == "V":
        differing = int((actual != expected).sum())
        worst = float("inf") if differing else 0.0
        return Comparison(name, not differing, differing, size, worst)
    wide = np.complex128 if kind == "c" else np.float64
    want = expected.astype(wide)
    error = np.abs(actual.astype(wide) - want)
    if kind in "fc":
        unit = np.nanmax(np.abs(want), initial=1.0) if allowed.scales_atol else 1.0
        limit = allowed.atol * float(unit) + allowed.rtol * np.abs(want)
    else:
        limit = np.full(want.shape, float(allowed.lsb))
    failing = ~(error <= limit)
    worst = float(np.max(error, initial=0.0))
    return Comparison(name, not failing.any(), int(failing.sum()), size, worst)
