"""Quantised operators with random scales and zero points.

Results leave the range of their type now and then.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from tests.runtime.tflite.cases import I8, I32, Case, case, const
from tests.runtime.tflite.files import T

CONVOLUTION = {
    "Padding": 0,
    "StrideW": 1,
    "StrideH": 2,
    "DilationWFactor": 1,
    "DilationHFactor": 1,
}


class Random:
    """Draws tensors of one type, each with a quantisation of its own."""

    def __init__(self, seed: int, dtype: Any) -> None:
        self._rng = np.random.default_rng(seed)
        self._dtype = dtype
        self._limits = np.iinfo(dtype)

    def between(self, low: float, high: float) -> float:
        """Return a float32, small ones as likely as large ones."""
        return float(np.float32(np.exp(self._rng.uniform(np.log(low), np.log(high)))))

    def tensor(self, *shape: int, scale: float = 0) -> T:
        """Return a tensor that holds real values of both signs, or none below 0."""
        low, high = int(self._limits.min), int(self._limits.max)
        near_middle = int(self._rng.integers(low + 70, high - 70))
        zero_point = low if self._rng.random() < 0.25 else near_middle
        scales = (scale or self.between(0.004, 0.3),)
        return T(self._dtype, shape, scale=scales, zero_point=(zero_point,))

    def product(self, *shape: int, of: Sequence[T], terms: int) -> T:
        """Return a tensor for sums of so many products, some of them out of range."""
        typical = 80**2 * terms**0.5 * np.prod([np.mean(factor.scale) for factor in of])
        return self.tensor(*shape, scale=float(typical) / self.between(20, 80))

    def like(self, tensor: T, *shape: int) -> T:
        """Return a tensor that is quantised as another is."""
        return T(self._dtype, shape, scale=tensor.scale, zero_point=tensor.zero_point)

    def codes(self, shape: Sequence[int]) -> np.ndarray:
        """Return stored values over the whole range."""
        low, high = self._limits.min, self._limits.max
        return self._rng.integers(low, high, shape, self._dtype, endpoint=True)

    def weights(self, *shape: int, axis: int | None = None) -> T:
        """Return constants: symmetric and maybe per channel, if they are of int8."""
        count = 1 if axis is None else shape[axis]
        scales = tuple(self.between(0.002, 0.02) for _ in range(count))
        if self._dtype == I8:
            codes = self._rng.integers(-127, 128, shape)
            return T.constant(codes, I8, scale=scales, axis=axis or 0)
        codes, zero_point = self.codes(shape), int(self._rng.integers(100, 156))
        return T.constant(codes, codes.dtype, scale=scales, zero_point=(zero_point,))

    def bias(self, data: T, weights: T, units: int) -> T:
        scales = tuple(data.scale[0] * scale for scale in weights.scale)
        return T.constant(self._rng.integers(-9000, 9000, units), I32, scale=scales)

    def activation(self) -> dict[str, int]:
        """Return no activation or ReLU, which leaves many different results."""
        return {"FusedActivationFunction": int(self._rng.integers(2))}


Builder: TypeAlias = Callable[[Random], Case]


def binary(name: str, shape: Sequence[int] = (4, 30)) -> Builder:
    """Combine a tensor of 4 rows with one of ``shape``."""

    def build(draw: Random) -> Case:
        terms = draw.tensor(4, 30), draw.tensor(*shape)
        if name == "MUL":
            result = draw.product(4, 30, of=terms, terms=1)
        else:
            scale = max(terms[0].scale[0], terms[1].scale[0]) * draw.between(0.7, 3)
            result = draw.tensor(4, 30, scale=scale)
        return case(name, terms, result, **draw.activation())

    return build


def convolution(axis: int | None = None) -> Builder:
    def build(draw: Random) -> Case:
        x, weights = draw.tensor(1, 6, 7, 5), draw.weights(4, 3, 3, 5, axis=axis)
        result = draw.product(1, 3, 7, 4, of=(x, weights), terms=45)
        inputs = [x, weights, draw.bias(x, weights, 4)]
        return case("CONV_2D", inputs, result, **CONVOLUTION, **draw.activation())

    return build


def depthwise(axis: int | None = None) -> Builder:
    def build(draw: Random) -> Case:
        x, weights = draw.tensor(1, 6, 7, 2), draw.weights(1, 3, 3, 4, axis=axis)
        result = draw.product(1, 3, 7, 4, of=(x, weights), terms=9)
        inputs = [x, weights, draw.bias(x, weights, 4)]
        fields = CONVOLUTION | draw.activation() | {"DepthMultiplier": 2}
        return case("DEPTHWISE_CONV_2D", inputs, result, **fields)

    return build


def transposed(axis: int | None = None) -> Builder:
    def build(draw: Random) -> Case:
        x, weights = draw.tensor(1, 3, 4, 5), draw.weights(4, 3, 3, 5, axis=axis)
        inputs = [const([1, 6, 8, 4]), weights, x]
        result = draw.product(1, 6, 8, 4, of=(x, weights), terms=10)
        return case("TRANSPOSE_CONV", inputs, result, Padding=0, StrideW=2, StrideH=2)

    return build


def dense(axis: int | None = None) -> Builder:
    def build(draw: Random) -> Case:
        x, weights = draw.tensor(3, 40), draw.weights(20, 40, axis=axis)
        inputs = [x, weights, draw.bias(x, weights, 20)]
        result = draw.product(3, 20, of=(x, weights), terms=40)
        return case("FULLY_CONNECTED", inputs, result, **draw.activation())

    return build


def matmul(draw: Random) -> Case:
    factors = draw.tensor(2, 5, 30), draw.tensor(2, 30, 6)
    result = draw.product(2, 5, 6, of=factors, terms=30)
    return case("BATCH_MATMUL", factors, result)


def pool(name: str) -> Builder:
    def build(draw: Random) -> Case:
        x = draw.tensor(1, 8, 9, 3)
        size = {"FilterWidth": 3, "FilterHeight": 4}
        window = {"Padding": 0, "StrideW": 1, "StrideH": 1}
        return case(name, [x], draw.like(x, 1, 8, 9, 3), **size, **window)

    return build


def reduction(name: str, *, requantized: bool = False) -> Builder:
    def build(draw: Random) -> Case:
        x = draw.tensor(2, 5, 7, 9)
        result = draw.like(x, 2, 9)
        if requantized:
            x = replace(x, zero_point=(3,))
            result = replace(result, scale=(x.scale[0] * draw.between(0.2, 1),))
        return case(name, [x, const([1, 2])], result)

    return build


def concatenation(*, requantized: bool = False) -> Builder:
    def build(draw: Random) -> Case:
        first = draw.tensor(3, 20)
        if requantized:
            rest = draw.tensor(3, 10), draw.tensor(3, 30)
        else:
            rest = draw.like(first, 3, 10), draw.like(first, 3, 30)
        return case("CONCATENATION", [first, rest[0]], rest[1], Axis=1)

    return build


def unary(name: str, **fields: Any) -> Builder:
    def build(draw: Random) -> Case:
        x = draw.tensor(4, 64)
        scale = x.scale[0] * draw.between(0.5, 3)
        return case(name, [x], draw.tensor(4, 64, scale=scale), **fields)

    return build


def alike(name: str) -> Builder:
    """Return an operator whose result is quantised as what it is applied to."""

    def build(draw: Random) -> Case:
        x = draw.tensor(4, 64)
        return case(name, [x], draw.like(x, 4, 64))

    return build


def fixed(name: str, scale: float, zero_point: int, **fields: Any) -> Builder:
    """Return an operator whose result is always quantised in the same way."""

    def build(draw: Random) -> Case:
        result = T(I8, (4, 64), scale=(scale,), zero_point=(zero_point,))
        return case(name, [draw.tensor(4, 64)], result, **fields)

    return build


def prelu(draw: Random) -> Case:
    x, alpha = draw.tensor(1, 4, 4, 8), draw.weights(1, 1, 8)
    result = draw.tensor(1, 4, 4, 8, scale=x.scale[0] * draw.between(0.5, 3))
    return case("PRELU", [x, alpha], result)


def resize(draw: Random) -> Case:
    x = draw.tensor(1, 5, 4, 3)
    size = const([8, 11])
    return case("RESIZE_NEAREST_NEIGHBOR", [x, size], draw.like(x, 1, 8, 11, 3))


EXACT: dict[str, Builder] = {
    "ADD": binary("ADD"),
    "SUB": binary("SUB"),
    "MUL": binary("MUL"),
    "ADD of a row": binary("ADD", (30,)),
    "MUL by a row": binary("MUL", (30,)),
    "CONCATENATION": concatenation(),
    "MAX_POOL_2D": pool("MAX_POOL_2D"),
    "REDUCE_MAX": reduction("REDUCE_MAX"),
    "CONV_2D": convolution(),
    "DEPTHWISE_CONV_2D": depthwise(),
    "TRANSPOSE_CONV": transposed(),
    "FULLY_CONNECTED": dense(),
    "PRELU": prelu,
    "RELU6": alike("RELU6"),
    "LEAKY_RELU": unary("LEAKY_RELU", Alpha=0.3),
    "RESIZE_NEAREST_NEIGHBOR": resize,
}
"""Operators of signed and unsigned bytes."""

EXACT_SIGNED: dict[str, Builder] = {
    "AVERAGE_POOL_2D": pool("AVERAGE_POOL_2D"),
    "CONV_2D per channel": convolution(0),
    "DEPTHWISE_CONV_2D per channel": depthwise(3),
    "TRANSPOSE_CONV per channel": transposed(0),
    "BATCH_MATMUL": matmul,
    "LOGISTIC": fixed("LOGISTIC", 1 / 256, -128),
    "TANH": fixed("TANH", 1 / 128, 0),
    "L2_NORMALIZATION": fixed("L2_NORMALIZATION", 1 / 128, 0),
    "SOFTMAX": fixed("SOFTMAX", 1 / 256, -128, Beta=1.0),
}
"""Operators of signed bytes."""

CLOSE: dict[str, Builder] = {
    "MEAN": reduction("MEAN"),
    "MEAN requantised": reduction("MEAN", requantized=True),
    "FULLY_CONNECTED per channel": dense(0),
    "HARD_SWISH": unary("HARD_SWISH"),
    "RELU requantised": unary("RELU"),
    "RELU6 requantised": unary("RELU6"),
    "QUANTIZE": unary("QUANTIZE"),
    "ABS": unary("ABS"),
}
"""Operators of signed bytes that are rounded once where the kernels do it twice."""
