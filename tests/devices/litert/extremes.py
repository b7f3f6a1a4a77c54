"""Random quantised operations at the limits: wild scales, strides, filters, padding.

LiteRT ends the process on some of what it cannot compute, so that this is run in one of
its own: ``python -m tests.devices.litert.extremes FIRST LAST`` tries cases by number,
and fails on the first that the kernels compute otherwise.
"""

import sys
from collections.abc import Callable, Sequence

import numpy as np
from msgspec.structs import replace

from asyncnn import kernels
from asyncnn.devices.litert import claims
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.operations import infer_shapes
from asyncnn.hal.operations.bound import BoundOperand, BoundOperation, Shape
from asyncnn.hal.types import OperationType, SymmPerChannelQuantParams
from asyncnn.tools.conformance.random_graphs.checking import require_close
from tests.devices.litert.running import run_operation
from tests.kernels.operations import (
    I32,
    Q8,
    Q8PC,
    Q8S,
    Argument,
    Given,
    bind,
    compute_all,
    constant,
    random_values,
    tensor,
)

T = OperationType
Parts = tuple[list[Given], BoundOperand]

_LARGEST_OUTPUT = 2_000_000
_STRIDES = (1, 1, 1, 2, 3, 7, 2**15, 2**31 - 1)


class Draw:
    """Draws the operands of one case."""

    def __init__(self, number: int) -> None:
        self.random = np.random.default_rng(number)
        self.type = self.choose(Q8, Q8S)
        self.is_wild = self.chance(0.3)
        self.width = self.choose(1, 4, 10, 17)
        self.scale = self.power(40 if self.is_wild else 5)
        limit = 60 if self.chance(0.1) else 9
        self.shape = tuple(self.number(1, top) for top in (2, limit, limit, limit))

    def choose(self, *options):
        return options[self.random.integers(len(options))]

    def chance(self, probability: float) -> bool:
        return bool(self.random.random() < probability)

    def number(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high, endpoint=True))

    def power(self, width: float, about: float = 1.0) -> float:
        """Return a scale within ``2**width`` of ``about``, either way."""
        return float(np.float32(about * 2.0 ** self.random.uniform(-width, width)))

    def zero_point(self) -> int:
        return self.number(0, 255) if self.type == Q8 else self.number(-128, 127)

    def codes(self, shape: Shape, scale: float, zero_point: int | None = None):
        values = random_values(self.type, shape, self.number(0, 2**30))
        make = constant if self.chance(0.2) else tensor
        at = self.zero_point() if zero_point is None else zero_point
        return make(self.type, values, scale, at)

    def image(self) -> Argument:
        values = random_values(self.type, self.shape, self.number(0, 2**30))
        return tensor(self.type, values, self.scale, self.zero_point())

    def output(self, scale: float, zero_point: int | None = None) -> BoundOperand:
        at = self.zero_point() if zero_point is None else zero_point
        return BoundOperand(self.type, None, scale, at)

    def near(self, scale: float) -> float:
        return self.power(self.width, scale)

    def weights(self, shape: Shape, axis: int) -> tuple[list[Given], BoundOperand]:
        """Return filter and bias, and an output of a scale that may fit."""
        scale = self.power(40 if self.is_wild else 4, 0.02)
        units = shape[axis]
        bias_scale = 0.0
        if self.chance(0.5) and len(shape) == 4:
            values = random_values(Q8S, shape, self.number(0, 2**30))
            scales = tuple(self.power(3, scale) for _ in range(units))
            quantization = SymmPerChannelQuantParams(scales, axis)
            described = BoundOperand(
                Q8PC, shape, channel_quant=quantization, value=values
            )
            kernel = Argument(described, values)
        else:
            centre = {Q8: 128, Q8S: 0}[self.type]
            at = centre if self.chance(0.3) else self.zero_point()
            values = random_values(self.type, shape, self.number(0, 2**30))
            kernel = constant(self.type, values, scale, at)
            bias_scale = float(np.float32(self.scale) * np.float32(scale))
        bias = self.random.integers(-5000, 5000, units)
        terms = np.prod(shape) / units
        about = self.scale * scale * np.sqrt(terms) * 60
        output = self.output(self.power(self.width / 3, about))
        return [kernel, constant(I32, bias, bias_scale)], output

    def window(self, size: tuple[int, int], dilation: tuple[int, int] = (1, 1)):
        """Return padding and strides as the HAL takes them."""
        strides: list[Given] = [self.choose(*_STRIDES) for _ in range(2)]
        if self.chance(0.5):
            return [self.number(1, 2), *strides]
        height, width = (
            (taps - 1) * factor for taps, factor in zip(size, dilation, strict=True)
        )
        sides = [width, width, height, height]
        return [*(self.number(0, side) for side in sides), *strides]

    def size(self) -> tuple[int, int]:
        return self.number(1, 8), self.number(1, 8)

    def activation(self) -> int:
        return self.number(0, 3)


def _convolution(draw: Draw) -> Parts:
    size, dilation = draw.size(), (draw.choose(1, 1, 2, 3), draw.choose(1, 1, 2))
    weights, output = draw.weights((draw.number(1, 5), *size, draw.shape[3]), 0)
    window = draw.window(size, dilation)
    tail = [draw.activation(), False, *dilation[::-1]]
    return [draw.image(), *weights, *window, *tail], output


def _depthwise(draw: Draw) -> Parts:
    size, multiplier = draw.size(), draw.number(1, 3)
    weights, output = draw.weights((1, *size, draw.shape[3] * multiplier), 3)
    window = draw.window(size)
    return [draw.image(), *weights, *window, multiplier, draw.activation()], output


def _transposed(draw: Draw) -> Parts:
    size = draw.size()
    weights, output = draw.weights((draw.number(1, 4), *size, draw.shape[3]), 0)
    pads = [draw.number(0, 2) for _ in range(4)]
    strides = [draw.number(1, 5) for _ in range(2)]
    tail = [draw.activation(), draw.chance(0.2)]
    return [draw.image(), *weights, *pads, *strides, *tail], output


def _fully_connected(draw: Draw) -> Parts:
    weights, output = draw.weights((draw.number(1, 9), draw.shape[3]), 0)
    return [draw.image(), *weights, draw.activation()], output


def _pool(draw: Draw) -> Parts:
    image, size = draw.image(), draw.size()
    if draw.chance(0.2):
        side = draw.choose(1000, 30000, 2**31 - 1)
        size, window = (side, side), [1, 1, 1]
    else:
        window = draw.window(size)
    output = draw.output(draw.scale, image.operand.zero_point)
    return [image, *window, *size[::-1], draw.activation()], output


def _pair(draw: Draw) -> tuple[Argument, Argument]:
    _, rows, columns, channels = draw.shape
    shape = draw.choose(draw.shape, (channels,), (rows, columns, 1), (1,))
    return draw.image(), draw.codes(shape, draw.near(draw.scale))


def _sum(draw: Draw) -> Parts:
    return [*_pair(draw), draw.activation()], draw.output(draw.near(draw.scale))


def _product(draw: Draw) -> Parts:
    first, second = _pair(draw)
    about = first.operand.scale * second.operand.scale * 8
    return [first, second, draw.activation()], draw.output(draw.near(about))


def _extreme(draw: Draw) -> Parts:
    return [*_pair(draw)], draw.output(draw.near(draw.scale))


def _concatenation(draw: Draw) -> Parts:
    other = draw.codes(draw.shape, draw.near(draw.scale))
    return [draw.image(), other, 3], draw.output(draw.near(draw.scale))


def _resize(draw: Draw) -> Parts:
    image = draw.image()
    corners = draw.chance(0.3)
    centres = draw.chance(0.4) and not corners
    size = [draw.number(1, 30) for _ in range(2)]
    output = draw.output(draw.scale, image.operand.zero_point)
    return [image, *size, draw.chance(0.2), corners, centres], output


def _mean(draw: Draw) -> Parts:
    image = draw.image()
    axes = draw.random.choice(4, draw.number(1, 4), replace=False)
    output = draw.output(draw.scale, image.operand.zero_point)
    return [image, constant(I32, axes), draw.number(0, 1)], output


def _to_unit(*scalars: Callable[[Draw], Given]) -> Callable[[Draw], Parts]:
    def make(draw: Draw) -> Parts:
        low = 0 if draw.type == Q8 else -128
        inputs: list[Given] = [draw.image(), *(scalar(draw) for scalar in scalars)]
        return inputs, draw.output(1 / 256, low)

    return make


def _to_signed_unit(*scalars: Callable[[Draw], Given]) -> Callable[[Draw], Parts]:
    def make(draw: Draw) -> Parts:
        inputs, output = _to_unit(*scalars)(draw)
        middle = output.zero_point + 128
        return inputs, replace(output, scale=1 / 128, zero_point=middle)

    return make


def _axis(draw: Draw) -> int:
    return draw.number(-4, 3)


MAKE: Sequence[tuple[OperationType, Callable[[Draw], Parts]]] = (
    (T.CONV_2D, _convolution),
    (T.DEPTHWISE_CONV_2D, _depthwise),
    (T.TRANSPOSE_CONV_2D, _transposed),
    (T.FULLY_CONNECTED, _fully_connected),
    (T.AVERAGE_POOL_2D, _pool),
    (T.MAX_POOL_2D, _pool),
    (T.ADD, _sum),
    (T.SUB, _sum),
    (T.MUL, _product),
    (T.MAXIMUM, _extreme),
    (T.MINIMUM, _extreme),
    (T.PRELU, _extreme),
    (T.CONCATENATION, _concatenation),
    (T.RESIZE_BILINEAR, _resize),
    (T.RESIZE_NEAREST_NEIGHBOR, _resize),
    (T.MEAN, _mean),
    (T.SOFTMAX, _to_unit(lambda draw: draw.power(9), _axis)),
    (T.LOGISTIC, _to_unit()),
    (T.TANH, _to_signed_unit()),
    (T.L2_NORMALIZATION, _to_signed_unit(_axis)),
    (T.HARD_SWISH, lambda draw: ([draw.image()], draw.output(draw.near(draw.scale)))),
)


def drawn(number: int) -> tuple[list[Given], BoundOperation] | None:
    """Return the case of this number, None if it is not legal or too large."""
    draw = Draw(number)
    type_, make = MAKE[number % len(MAKE)]
    inputs, output = make(draw)
    operation = bind(type_, inputs, [output])
    try:
        (shape,) = infer_shapes(operation)
        if shape is None or np.prod(shape) > _LARGEST_OUTPUT:
            return None
        described = replace(output, shape=shape)
        operation = replace(operation, outputs=(described,))
        kernels.prepare(operation)
    except AsyncnnError:
        return None
    return inputs, operation


def check(number: int) -> bool:
    """Run a case and compare it with the kernel; False if it is not claimed."""
    case = drawn(number)
    if case is None or not claims(case[1]):
        return False
    inputs, operation = case
    arrays = [
        given.array
        if isinstance(given, Argument) and given.operand.value is None
        else None
        for given in inputs
    ]
    expected = compute_all(operation.type, inputs, operation.outputs)
    require_close(operation, run_operation(operation, arrays), expected)
    return True


def main(first: int, last: int) -> None:
    """Check cases; print how many were claimed."""
    claimed = 0
    for number in range(first, last):
        sys.stderr.write(f"case {number}\n")
        claimed += check(number)
    sys.stdout.write(f"{claimed}\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
