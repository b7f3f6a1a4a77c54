"""What measured models are given, and how far apart their outputs are."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np

from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Dimensions

InputKind: TypeAlias = tuple[Dimensions, np.dtype[Any]]


def random_inputs(kinds: Sequence[InputKind]) -> list[Array]:
    """Return reproducible arrays: floats in [0, 1), integers over their whole range.

    Axes that the model leaves open have length 1.
    """
    rng = np.random.default_rng(0)
    return [_random(rng, shape, dtype) for shape, dtype in kinds]


def _random(
    rng: np.random.Generator, dimensions: Dimensions, dtype: np.dtype[Any]
) -> Array:
    shape = tuple(axis or 1 for axis in dimensions)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return rng.random(shape).astype(dtype)


class Difference(msgspec.Struct, frozen=True):
    """The largest difference between the device's outputs and the reference kernels'.

    In quantisation steps if ``in_steps``, else absolute.
    """

    largest: float
    in_steps: bool

    def __str__(self) -> str:
        return f"{self.largest:.0f} LSB" if self.in_steps else f"{self.largest:.0e}"


def largest_difference(
    actual: Sequence[Array], expected: Sequence[Array]
) -> Difference | None:
    """Compare outputs of two contenders; None if their shapes differ."""
    if [array.shape for array in actual] != [array.shape for array in expected]:
        return None
    pairs = zip(actual, expected, strict=True)
    largest = max(
        float(np.max(np.abs(a.astype(np.float64) - b), initial=0.0)) for a, b in pairs
    )
    return Difference(largest, all(array.dtype.kind != "f" for array in expected))
