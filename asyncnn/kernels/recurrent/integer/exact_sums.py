"""Exact sums of products of 8-bit data and weights, by way of floats."""

import msgspec
import numpy as np

from asyncnn.hal.operations.bound import Array
from asyncnn.kernels.kernel import Scratch
from asyncnn.kernels.recurrent.integer.fixed_point import Integers

_EXACT_FLOAT32 = 2**24
_LARGEST_CODE = 255


class Product(msgspec.Struct, frozen=True, eq=False):
    """Integer ``weights`` [inputs, columns] as floats in which all sums are exact.

    ``fold`` [columns] is what the sums lack: the bias and the zero point of the data.
    """

    weights: Array
    fold: Integers

    @classmethod
    def of(
        cls, weights: Integers, data_zero_point: int, bias: Integers | None
    ) -> "Product":
        """Pack weights [columns, inputs] for stored data of that zero point."""
        reach = int(np.abs(weights).sum(axis=1).max(initial=0)) * _LARGEST_CODE
        dtype = np.float32 if reach < _EXACT_FLOAT32 else np.float64
        fold = -data_zero_point * weights.sum(axis=1)
        if bias is not None:
            fold = fold + bias
        return cls(np.ascontiguousarray(weights.T, dtype), fold)


class ExactSums:
    """A `Product` at work on a batch."""

    def __init__(self, product: Product, scratch: Scratch, batches: int) -> None:
        dtype = product.weights.dtype
        size, columns = product.weights.shape
        self._weights = product.weights
        self.data = scratch.transient((batches, size), dtype)
        self._sums = scratch.transient((batches, columns), dtype)

    def compute(self, out: Array) -> None:
        """Write the sums of what ``data`` holds to int64 [batches, columns]."""
        self.data.dot(self._weights, self._sums)
        np.copyto(out, self._sums, casting="unsafe")
