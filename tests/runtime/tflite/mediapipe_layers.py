"""Layers of the small models that stand for MediaPipe's, with random weights."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tests.runtime.tflite.cases import F16, F32, OPTIONS, const, f32
from tests.runtime.tflite.files import Op, T, packed, write
from tests.runtime.tflite.mediapipe_formulas import (
    SAME,
    VALID,
    pooled,
    transposed_convolution,
    unpooled,
)

Formula = Callable[..., Sequence[np.ndarray]]

RELU = 1


@dataclass(frozen=True)
class Graph:
    """A model; ``formulas`` has one for each operator that LiteRT has no kernel for.

    A formula takes the values of all inputs of its operator.
    """

    image: T
    operators: Sequence[Op]
    outputs: Sequence[T]
    formulas: Mapping[Op, Formula]

    def file(self) -> bytes:
        return write(self.operators, [self.image], self.outputs)


class Layers:
    """Adds layers to a model; weights are of float16 in the file if ``is_half``."""

    def __init__(self, seed: int, *shape: int, is_half: bool = False) -> None:
        self.image = f32(1, *shape)
        self._rng = np.random.default_rng(seed)
        self._is_half = is_half
        self._operators: list[Op] = []
        self._formulas: dict[Op, Formula] = {}

    def graph(self, *outputs: T) -> Graph:
        return Graph(self.image, self._operators, outputs, self._formulas)

    def add(
        self, name: str, inputs: Sequence[T], *shape: int, **fields: int | float
    ) -> T:
        y = f32(*shape)
        options = OPTIONS.get(name, "")
        self._operators.append(Op(name, inputs, [y], options, fields))
        return y

    def same(self, name: str, *inputs: T, **fields: int) -> T:
        """Add an operator whose output is shaped as its first input."""
        return self.add(name, inputs, *inputs[0].shape, **fields)

    def custom(
        self,
        name: str,
        inputs: Sequence[T],
        shapes: Sequence[Sequence[int]],
        options: bytes,
        formula: Formula | None,
        version: int = 1,
    ) -> list[T]:
        """Add a custom operator; without a formula, LiteRT has a kernel for it."""
        results = [f32(*shape) for shape in shapes]
        operator = Op(name, inputs, results, custom=options, version=version)
        self._operators.append(operator)
        if formula:
            self._formulas[operator] = formula
        return results

    def weights(self, *shape: int, terms: float) -> T:
        """Return weights by which sums of so many terms are as wide as each term."""
        return self._constant(self._rng.normal(0, math.sqrt(1 / terms), shape))

    def bias(self, depth: int) -> T:
        return self._constant(self._rng.uniform(-0.2, 0.2, depth))

    def _constant(self, values: np.ndarray) -> T:
        if not self._is_half:
            return T.constant(values, F32)
        stored = T.constant(values, F16)
        return self.add("DEQUANTIZE", [stored], *values.shape)

    def _windows(self, x: T, stride: int) -> tuple[list[int], dict[str, int]]:
        fields = {"Padding": 0, "StrideW": stride, "StrideH": stride}
        return [-(-length // stride) for length in x.shape[1:3]], fields

    def conv(
        self,
        x: T,
        depth: int,
        size: int = 1,
        stride: int = 1,
        dilation: int = 1,
        activation: int = 0,
        spread: float = 1.0,
    ) -> T:
        sizes, fields = self._windows(x, stride)
        fields |= {"DilationWFactor": dilation, "DilationHFactor": dilation}
        terms = size * size * x.shape[3] / spread**2
        filter_ = self.weights(depth, size, size, x.shape[3], terms=terms)
        inputs = [x, filter_, self.bias(depth)]
        fields["FusedActivationFunction"] = activation
        return self.add("CONV_2D", inputs, 1, *sizes, depth, **fields)

    def depthwise(self, x: T, size: int = 3, stride: int = 1, padding: int = SAME) -> T:
        sizes, fields = self._windows(x, stride)
        if padding == VALID:
            sizes = [(length - size) // stride + 1 for length in x.shape[1:3]]
            fields["Padding"] = 1
        depth = x.shape[3]
        fields |= {"DepthMultiplier": 1, "DilationWFactor": 1, "DilationHFactor": 1}
        weights = self.weights(1, size, size, depth, terms=size * size)
        inputs = [x, weights, self.bias(depth)]
        return self.add("DEPTHWISE_CONV_2D", inputs, 1, *sizes, depth, **fields)

    def pool(self, name: str, x: T, size: int) -> T:
        sizes, fields = self._windows(x, size)
        fields |= {"FilterWidth": size, "FilterHeight": size}
        return self.add(name, [x], 1, *sizes, x.shape[3], **fields)

    def prelu(self, x: T) -> T:
        slopes = self._constant(self._rng.uniform(0.05, 0.4, (1, 1, x.shape[3])))
        return self.same("PRELU", x, slopes)

    def dense(self, x: T, bias: T, spread: float = 1.0) -> T:
        """Add a fully connected layer, whose results are about ``spread`` wide."""
        count, (depth,) = math.prod(x.shape), bias.shape
        weights = self.weights(depth, count, terms=count / spread**2)
        return self.add("FULLY_CONNECTED", [x, weights, bias], 1, depth)

    def resize(self, x: T, *sizes: int) -> T:
        inputs = [x, const(sizes)]
        shape = (1, *sizes, x.shape[3])
        return self.add("RESIZE_BILINEAR", inputs, *shape, HalfPixelCenters=True)

    def transposed(
        self, x: T, depth: int, size: int, padding: int, spread: float = 1.0
    ) -> T:
        """Double both sizes of images by Convolution2DTransposeBias."""
        terms = x.shape[3] / spread**2
        weights = self.weights(depth, size, size, x.shape[3], terms=terms)
        inputs = [x, weights, self.bias(depth)]

        def formula(*values: np.ndarray) -> list[np.ndarray]:
            return [transposed_convolution(*values, (2, 2), padding)]

        shape = (1, 2 * x.shape[1], 2 * x.shape[2], depth)
        options = packed(padding, 2, 2, 0, 0)
        name = "Convolution2DTransposeBias"
        return self.custom(name, inputs, [shape], options, formula)[0]

    def maxima(self, x: T) -> list[T]:
        """Halve both sizes by MaxPoolingWithArgmax2D; return maxima and places."""
        _, height, width, depth = x.shape
        shape = (1, height // 2, width // 2, depth)
        formula = partial(pooled, size=(2, 2), strides=(2, 2), padding=SAME)
        options = packed(SAME, 2, 2, 2, 2, 0)
        name = "MaxPoolingWithArgmax2D"
        return self.custom(name, [x], [shape, shape], options, formula)

    def unpool(self, x: T, places: T) -> T:
        _, height, width, depth = x.shape
        shape = (1, 2 * height, 2 * width, depth)
        options = packed(SAME, 2, 2, 2, 2, 0)

        def formula(*values: np.ndarray) -> list[np.ndarray]:
            return [unpooled(*values, (2, 2))]

        return self.custom("MaxUnpooling2D", [x, places], [shape], options, formula)[0]
