"""MEAN and the reductions over any set of axes; ARGMAX, ARGMIN and TOPK_V2.

Axes may be negative; reduced ones stay as 1 if the operation is to keep them.
float16 is summed in float32; codes keep scale and zero point where the operation only
selects, and MEAN of them is rounded once. Among equal elements the first one counts.

Source: 1.3/types.hal (MEAN, REDUCE_ALL, REDUCE_ANY, REDUCE_MAX, REDUCE_MIN,
REDUCE_PROD, REDUCE_SUM, ARGMAX, ARGMIN, TOPK_V2).
"""

import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

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
    with_scratch,
)
from asyncnn.kernels.numerics import code_limits, mean_store, widen_float16

_CODES_IN_16_BITS = 256
"""So many codes at most have a sum of 16 bits, which NumPy computes much faster."""


def kept_shape(shape: Shape, axes: Collection[int]) -> Shape:
    """Return ``shape`` with length 1 along ``axes``."""
    return tuple(1 if axis in axes else length for axis, length in enumerate(shape))


def _reduced_axes(operation: BoundOperation) -> tuple[tuple[int, ...], Shape]:
    """Return the axes to reduce and the output's shape with those axes kept at 1."""
    shape = operation.shape(0)
    axes = tuple(sorted(operation.normalized_axes(1, len(shape))))
    kept = kept_shape(shape, axes)
    operation.require(
        math.prod(shape) > 0 or math.prod(kept) == 0,
        f"axes {list(axes)} of {list(shape)} have no element",
    )
    return axes, kept


def _reduction(ufunc: np.ufunc) -> Prepare:
    """Fold all elements along the axes of input 1 with ``ufunc``."""

    def prepare(operation: BoundOperation) -> PreparedKernel:
        axes, kept = _reduced_axes(operation)

        def run(inputs: Inputs, outputs: Outputs) -> None:
            ufunc.reduce(inputs[0], axes, out=outputs[0].reshape(kept), keepdims=True)

        return stateless(run)

    return prepare


def _float32_reduction(ufunc: np.ufunc) -> Prepare:
    """Fold in float32, whatever the type of the elements."""
    prepare = _reduction(ufunc)
    return lambda operation: widen_float16(operation, prepare(operation))


def _prepare_product(operation: BoundOperation) -> PreparedKernel:
    """Multiply in float32; a factor of 0 gives 0, even beside an overflow."""
    axes, kept = _reduced_axes(operation)

    def run(vanishes: Array, inputs: Inputs, outputs: Outputs) -> None:
        output = outputs[0].reshape(kept)
        np.multiply.reduce(inputs[0], axes, out=output, keepdims=True)
        np.logical_and.reduce(inputs[0], axes, out=vanishes, keepdims=True)
        np.logical_not(vanishes, out=vanishes)
        np.copyto(output, 0, where=vanishes)

    return widen_float16(operation, with_scratch(run, (kept, np.bool_)))


def _prepare_mean(operation: BoundOperation) -> PreparedKernel:
    """Average; the mean of codes is exact, then rounded as by AVERAGE_POOL_2D."""
    if operation.input(0).type in QUANT8_TYPES:
        return _mean_of_codes(operation)
    axes, kept = _reduced_axes(operation)
    count = np.array(math.prod(operation.shape(0)[axis] for axis in axes), np.float32)

    def run(inputs: Inputs, outputs: Outputs) -> None:
        output = outputs[0].reshape(kept)
        np.add.reduce(inputs[0], axes, out=output, keepdims=True)
        np.divide(output, count, out=output)

    return widen_float16(operation, stateless(run))


def _mean_of_codes(operation: BoundOperation) -> PreparedKernel:
    axes, kept = _reduced_axes(operation)
    shape = operation.shape(0)
    count = np.array(math.prod(shape[axis] for axis in axes))
    dtype = operation.outputs[0].dtype

    def instantiate(scratch: Scratch) -> Run:
        add = _adder_of_codes(scratch, shape, axes, dtype)
        store = mean_store(scratch, kept, dtype, count, code_limits(dtype))

        def run(inputs: Inputs, outputs: Outputs) -> None:
            store(add(inputs[0]), outputs[0].reshape(kept))

        return run

    return instantiate


def _adder_of_codes(
    scratch: Scratch, shape: Shape, axes: tuple[int, ...], dtype: np.dtype[Any]
) -> Callable[[Array], Array]:
    """Return what gives the int64 sums along ``axes``, kept at length 1."""
    sums = scratch.transient(kept_shape(shape, axes), np.int64)
    first = next((axis for axis in axes if 2 < shape[axis] <= _CODES_IN_16_BITS), None)
    if first is None:
        return lambda codes: np.add.reduce(codes, axes, np.int64, sums, keepdims=True)
    narrow_dtype = np.uint16 if dtype == np.uint8 else np.int16
    narrow = scratch.transient(kept_shape(shape, (first,)), narrow_dtype)

    def add(codes: Array) -> Array:
        np.add.reduce(codes, first, narrow_dtype, narrow, keepdims=True)
        return np.add.reduce(narrow, axes, np.int64, sums, keepdims=True)

    return add


def _arg(find: Callable[..., Any]) -> Prepare:
    """Give the index along an axis of the first extreme element."""

    def prepare(operation: BoundOperation) -> PreparedKernel:
        shape = operation.shape(0)
        axis = operation.axis(1, len(shape))
        rest = (*shape[:axis], *shape[axis + 1 :])
        operation.require(0 not in shape, f"the input {list(shape)} has no element")

        def run(indices: Array, inputs: Inputs, outputs: Outputs) -> None:
            find(inputs[0], axis, indices)
            np.copyto(outputs[0], indices, casting="same_kind")

        return with_scratch(run, (rest, np.intp))

    return prepare


def _prepare_top_k(operation: BoundOperation) -> PreparedKernel:
    """Give the ``k`` largest elements of each row and their indices, in falling order.

    Of equal elements the one with the larger index comes first.
    """
    length, k = operation.shape(0)[-1], operation.integer(1)
    falling = (..., slice(length - 1, length - 1 - k if k < length else None, -1))

    def run(inputs: Inputs, outputs: Outputs) -> None:
        rising = inputs[0].argsort(axis=-1, kind="stable")
        indices = rising[falling]
        np.copyto(outputs[0], np.take_along_axis(inputs[0], indices, -1))
        np.copyto(outputs[1], indices, casting="same_kind")

    return stateless(run)


KERNELS: dict[OperationType, Prepare] = {
    OperationType.MEAN: _prepare_mean,
    OperationType.REDUCE_ALL: _reduction(np.logical_and),
    OperationType.REDUCE_ANY: _reduction(np.logical_or),
    OperationType.REDUCE_MAX: _reduction(np.maximum),
    OperationType.REDUCE_MIN: _reduction(np.minimum),
    OperationType.REDUCE_PROD: _prepare_product,
    OperationType.REDUCE_SUM: _float32_reduction(np.add),
    OperationType.ARGMAX: _arg(np.ndarray.argmax),
    OperationType.ARGMIN: _arg(np.ndarray.argmin),
    OperationType.TOPK_V2: _prepare_top_k,
}
