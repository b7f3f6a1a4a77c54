"""AVERAGE_POOL_2D, L2_POOL_2D and MAX_POOL_2D.

A window is a rectangle, so its sum or maximum is taken along the height, then along
the width: ``filter_height + filter_width`` vector operations however large the image
is. Padding takes no part: a tap touches only the outputs for which it lies in the
input, and an average divides by the number of elements that the window really covers.

Source: 1.3/types.hal (AVERAGE_POOL_2D, L2_POOL_2D, MAX_POOL_2D).
"""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import Array, BoundOperation, Shape
from asyncnn.hal.operations.sliding_windows import Window, Window2D, pool_window
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    Prepare,
    PreparedKernel,
    Run,
    Scratch,
)
from asyncnn.kernels.numerics import code_limits, mean_store, widen_float16
from asyncnn.kernels.rounding import activation_bounds, quantized_activation_range

Tap: TypeAlias = tuple[tuple[slice, ...], tuple[slice, ...]]
"""Where one element of the filter reads its input, and the outputs that it serves."""

Fold: TypeAlias = Callable[[Array], Array]
"""Folds every window of an image with one ufunc, into memory of its own."""


def _taps_in_reach(window: Window) -> Iterable[int]:
    """Return the filter's elements that meet the input at some output.

    A client may name a filter of 2**31 elements, which must not be counted out.
    """

    def at(output: int) -> range:
        start = window.before - output * window.stride
        return range(max(start, 0), min(start + window.input, window.filter))

    if window.stride < window.input:
        return range(at(window.output - 1).start, at(0).stop)
    return chain.from_iterable(map(at, range(window.output)))


def _taps(window: Window, axis: int) -> list[Tap]:
    """Return the taps along ``axis``, a tap that serves every output first."""
    taps = []
    for tap in _taps_in_reach(window):
        shift = tap - window.before
        first = max(-(shift // window.stride), 0)
        last = min((window.input - 1 - shift) // window.stride, window.output - 1)
        if first <= last:
            start = first * window.stride + shift
            stop = last * window.stride + shift + 1
            taps.append((slice(start, stop, window.stride), slice(first, last + 1)))
    taps.sort(key=lambda tap: tap[1].start - tap[1].stop)
    before = (slice(None),) * axis
    return [((*before, source), (*before, target)) for source, target in taps]


def _fold_axis(
    ufunc: np.ufunc, window: Window, axis: int, target: Array, neutral: Any
) -> Callable[[Array], None]:
    """Return ``fold(source)`` that fills ``target`` along one axis."""
    (first, first_served), *rest = [
        (source, target[served]) for source, served in _taps(window, axis)
    ]
    all_served = first_served.shape == target.shape

    def fold(source: Array) -> None:
        if not all_served:
            target.fill(neutral)
        np.copyto(first_served, source[first])
        for place, served in rest:
            ufunc(served, source[place], out=served)

    return fold


def _fold_windows(
    scratch: Scratch,
    ufunc: np.ufunc,
    windows: Window2D,
    shape: Shape,
    dtype: Any,
    neutral: Any,
) -> Fold:
    """Return the fold of images of this input shape; results have ``dtype``."""
    axes = (2, 3) if windows.nchw else (1, 2)
    rows, columns = axes
    folded = _with_axes(shape, {rows: windows.height.output})
    pooled = scratch.transient(
        _with_axes(folded, {columns: windows.width.output}), dtype
    )
    if _covers_all(windows.height) and _covers_all(windows.width):

        def fold_all(image: Array) -> Array:
            ufunc.reduce(image, axis=axes, dtype=dtype, out=pooled, keepdims=True)
            return pooled

        return fold_all
    middle = scratch.transient(folded, dtype)
    fold_rows = _fold_axis(ufunc, windows.height, rows, middle, neutral)
    fold_columns = _fold_axis(ufunc, windows.width, columns, pooled, neutral)

    def fold(image: Array) -> Array:
        fold_rows(image)
        fold_columns(middle)
        return pooled

    return fold


def _covers_all(window: Window) -> bool:
    reaches_end = window.filter - window.before >= window.input
    return window.output == 1 and reaches_end


def _with_axes(shape: Shape, lengths: dict[int, int]) -> Shape:
    return tuple(lengths.get(axis, length) for axis, length in enumerate(shape))


def _counts(windows: Window2D) -> Array:
    """Return how many input elements each window covers; broadcasts to the output."""
    counts = np.multiply.outer(_covered(windows.height), _covered(windows.width))
    if counts.min() == counts.max():
        return np.array(counts.flat[0])
    shape = (1, 1, *counts.shape) if windows.nchw else (1, *counts.shape, 1)
    return counts.reshape(shape)


def _covered(window: Window) -> Array:
    start = np.arange(window.output) * window.stride - window.before
    return np.minimum(start + window.filter, window.input) - np.maximum(start, 0)


def _prepare_max(operation: BoundOperation) -> PreparedKernel:
    """Take the largest element of each window, then the fused activation."""
    windows = pool_window(operation)
    operand, output = operation.input(0), operation.outputs[0]
    if operand.type in QUANT8_TYPES:
        bounds: tuple[float, float] = quantized_activation_range(
            windows.activation, output.scale, output.zero_point, output.dtype
        )
        lowest: float = code_limits(operand.dtype)[0]
    else:
        bounds = activation_bounds(windows.activation)
        lowest = -np.inf
    low, high = (np.array(bound, operand.dtype) for bound in bounds)

    def instantiate(scratch: Scratch) -> Run:
        fold = _fold_windows(
            scratch, np.maximum, windows, operand.require_shape(), operand.dtype, lowest
        )

        def run(inputs: Inputs, outputs: Outputs) -> None:
            fold(inputs[0]).clip(low, high, outputs[0])

        return run

    return instantiate


def _prepare_average(operation: BoundOperation) -> PreparedKernel:
    """Average each window: ``sum / count``, then the fused activation.

    Quantised sums are exact; the mean of the stored values is rounded half away from
    the middle of the type's range (0 for signed, 128 for unsigned codes).
    """
    if operation.input(0).type in QUANT8_TYPES:
        return _quantized_average(operation)
    return widen_float16(operation, _float_mean(operation, square=False))


def _prepare_l2(operation: BoundOperation) -> PreparedKernel:
    """Take the root of each window's mean square, then the fused activation."""
    return widen_float16(operation, _float_mean(operation, square=True))


def _float_mean(operation: BoundOperation, *, square: bool) -> PreparedKernel:
    windows = pool_window(operation)
    shape = operation.shape(0)
    counts = _counts(windows).astype(np.float32)
    bounds = activation_bounds(windows.activation)
    low, high = (np.array(bound, np.float32) for bound in bounds)

    def instantiate(scratch: Scratch) -> Run:
        squares = scratch.transient(shape, np.float32) if square else None
        fold = _fold_windows(scratch, np.add, windows, shape, np.float32, 0)

        def run(inputs: Inputs, outputs: Outputs) -> None:
            image, output = inputs[0], outputs[0]
            if squares is not None:
                image = np.multiply(image, image, out=squares)
            np.divide(fold(image), counts, out=output)
            if squares is not None:
                np.sqrt(output, out=output)
            output.clip(low, high, output)

        return run

    return instantiate


def _quantized_average(operation: BoundOperation) -> PreparedKernel:
    windows = pool_window(operation)
    operand, output = operation.input(0), operation.outputs[0]
    shape = operand.require_shape()
    counts = _counts(windows)
    bounds = quantized_activation_range(
        windows.activation, output.scale, output.zero_point, output.dtype
    )
    sums_dtype = np.int32 if int(counts.max()) < 2**23 else np.int64

    def instantiate(scratch: Scratch) -> Run:
        fold = _fold_windows(scratch, np.add, windows, shape, sums_dtype, 0)
        store = mean_store(
            scratch, output.require_shape(), output.dtype, counts, bounds
        )

        def run(inputs: Inputs, outputs: Outputs) -> None:
            store(fold(inputs[0]), outputs[0])

        return run

    return instantiate


KERNELS: dict[OperationType, Prepare] = {
    OperationType.AVERAGE_POOL_2D: _prepare_average,
    OperationType.L2_POOL_2D: _prepare_l2,
    OperationType.MAX_POOL_2D: _prepare_max,
}
