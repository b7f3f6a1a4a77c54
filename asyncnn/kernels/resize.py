"""RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR, one axis after the other.

Source: 1.3/types.hal (RESIZE_BILINEAR, RESIZE_NEAREST_NEIGHBOR); the float32
coordinates of NN common/cpu_operations/ResizeImageOps.cpp.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import Array, BoundOperation, Shape
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    Prepare,
    PreparedKernel,
    Run,
    Scratch,
    stateless,
)
from asyncnn.kernels.numerics import round_half_away, widen_float16

Pass: TypeAlias = Callable[[Array, Array], None]
"""Resamples one axis of an array into another."""

BindPass: TypeAlias = Callable[[Scratch, Shape], Pass]
"""Makes the pass that fills arrays of a shape."""

_SHORT_RUN = 256
_SIGN_BIT = np.uint8(0x80)


class _ResizedAxis(msgspec.Struct, frozen=True):
    """One of the image's axes and how its length changes."""

    number: int
    length: int
    new_length: int

    def positions(self, align_corners: bool, half_pixel: bool) -> NDArray[np.float32]:
        """Return where in the input each output lies.

        Half-pixel positions are half a pixel more than input indices.
        """
        length, new_length = self.length, self.new_length
        if align_corners and new_length > 1:
            length, new_length = length - 1, new_length - 1
        scale = np.float32(length) / np.float32(new_length)
        outputs = np.arange(self.new_length, dtype=np.float32)
        return (outputs + np.float32(0.5 if half_pixel else 0)) * scale


def _axes(operation: BoundOperation) -> tuple[_ResizedAxis, _ResizedAxis]:
    """Return height and width, first the one that leaves the smaller image."""
    numbers = (2, 3) if operation.boolean(3, False) else (1, 2)
    before, after = operation.shape(0), operation.outputs[0].require_shape()
    height, width = (_ResizedAxis(axis, before[axis], after[axis]) for axis in numbers)
    grows_less = height.new_length * width.length < width.new_length * height.length
    return (height, width) if grows_less else (width, height)


def _in_two_passes(
    operation: BoundOperation,
    dtype: DTypeLike,
    pass_along: Callable[[_ResizedAxis], BindPass],
) -> PreparedKernel:
    """Return the kernel that resamples images of ``dtype`` axis by axis."""
    shape = operation.outputs[0].require_shape()
    if 0 in shape:
        return stateless(lambda inputs, outputs: None)
    first, second = _axes(operation)
    bind_first, bind_second = pass_along(first), pass_along(second)
    between = list(shape)
    between[second.number] = second.length

    def instantiate(scratch: Scratch) -> Run:
        middle = scratch.transient(tuple(between), dtype)
        run_first = bind_first(scratch, middle.shape)
        run_second = bind_second(scratch, shape)

        def run(inputs: Inputs, outputs: Outputs) -> None:
            run_first(inputs[0], middle)
            run_second(middle, outputs[0])

        return run

    return instantiate


def _prepare_nearest(operation: BoundOperation) -> PreparedKernel:
    """Give the input pixel at each output's position, rounded down.

    Position ``i`` is ``i * length / new_length`` or, with half-pixel centres, ``(i +
    1/2) * length / new_length``. With aligned corners it is ``i * (length - 1) /
    (new_length - 1)`` and is rounded to the nearest pixel, halves up.

    ``input: any [N, H, W, C]`` or [N, C, H, W]; the output has the new H and W.
    """
    align_corners = operation.boolean(4, False)
    half_pixel = operation.boolean(5, False)

    def pass_along(axis: _ResizedAxis) -> BindPass:
        positions = axis.positions(align_corners, half_pixel)
        nearest = round_half_away(positions) if align_corners else np.floor(positions)
        indices = nearest.astype(np.intp)

        def gather(source: Array, target: Array) -> None:
            source.take(indices, axis.number, target, "clip")

        return lambda scratch, shape: gather

    return _in_two_passes(operation, operation.input(0).dtype, pass_along)


def _prepare_bilinear(operation: BoundOperation) -> PreparedKernel:
    """Interpolate linearly between the four pixels around each output's position.

    Positions are as in RESIZE_NEAREST_NEIGHBOR, less 1/2 with half-pixel centres;
    outside of the image the pixel at its border counts.

    ``input: any [N, H, W, C]`` or [N, C, H, W]; the output has the new H and W.
    Quantised codes are interpolated in float32 and rounded to the nearest, halves up.
    """
    align_corners = operation.boolean(4, False)
    half_pixel = operation.boolean(5, False)

    def pass_along(axis: _ResizedAxis) -> BindPass:
        positions = axis.positions(align_corners, half_pixel)
        return _interpolation(axis.number, positions - np.float32(half_pixel / 2))

    kernel = _in_two_passes(operation, np.float32, pass_along)
    if operation.input(0).type in QUANT8_TYPES:
        return _on_codes(operation, kernel)
    return widen_float16(operation, kernel)


def _interpolation(axis: int, positions: NDArray[np.float32]) -> BindPass:
    """Return what makes the pass between the neighbours of each position."""
    floor = np.floor(positions)
    below, above = floor.astype(np.intp), np.ceil(positions).astype(np.intp)
    fraction = positions - floor

    def bind(scratch: Scratch, shape: Shape) -> Pass:
        weight = _along(axis, fraction, shape)
        other = scratch.transient(shape, np.float32)

        def interpolate(source: Array, target: Array) -> None:
            # Mode "clip" repeats the pixels at the border.
            source.take(below, axis, target, "clip")
            source.take(above, axis, other, "clip")
            np.subtract(other, target, out=other)
            np.multiply(other, weight, out=other)
            np.add(target, other, out=target)

        return interpolate

    return bind


def _along(axis: int, values: Array, shape: Shape) -> Array:
    """Return an array that broadcasts one value for each index of ``axis``.

    Where what follows the axis is short, it is repeated: NumPy is fast only where inner
    loops are long.
    """
    trailing = shape[axis + 1 :]
    spread = values.reshape(-1, *(1,) * len(trailing))
    if math.prod(trailing) >= _SHORT_RUN:
        return spread
    return np.ascontiguousarray(np.broadcast_to(spread, shape[axis:]))


def _on_codes(operation: BoundOperation, kernel: PreparedKernel) -> PreparedKernel:
    """Return the float32 kernel between codes, all moved to 0 .. 255 and back."""
    operand, shape = operation.input(0), operation.outputs[0].require_shape()
    signed = operand.dtype == np.int8
    lowest = np.float32(-128 if signed else 0)
    half = np.float32(0.5)

    def instantiate(scratch: Scratch) -> Run:
        image = scratch.transient(operand.require_shape(), np.float32)
        steps = scratch.transient(shape, np.float32)
        run = kernel(scratch)

        def run_on_codes(inputs: Inputs, outputs: Outputs) -> None:
            np.subtract(inputs[0], lowest, out=image)
            run((image,), (steps,))
            np.add(steps, half, out=steps)
            codes = outputs[0].view(np.uint8)
            # Steps are not negative, so that truncation rounds down.
            np.copyto(codes, steps, casting="unsafe")
            if signed:
                np.bitwise_xor(codes, _SIGN_BIT, out=codes)

        return run_on_codes

    return instantiate


KERNELS: dict[OperationType, Prepare] = {
    OperationType.RESIZE_BILINEAR: _prepare_bilinear,
    OperationType.RESIZE_NEAREST_NEIGHBOR: _prepare_nearest,
}
