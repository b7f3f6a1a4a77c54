"""Operators that only move elements, on int32, which most of the HAL's do not take.

The places that elements come from follow from the operator alone: moving the numbers of
the places shows them. The HAL's GATHER on the flattened tensor does the rest.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.runtime.allowance import MAX_ELEMENTS
from asyncnn.runtime.composing import Composer
from asyncnn.runtime.drafting import Value
from asyncnn.runtime.moves import gather, split
from asyncnn.runtime.moves import transpose as moving_axes
from asyncnn.runtime.tflite.folding import Values, padded, strided_slice, transposed
from asyncnn.runtime.tflite.node import Converter, Node, with_booleans
from asyncnn.runtime.unsupported import UnsupportedOperatorError

_I32 = OperandType.TENSOR_INT32


def moving(convert: Converter) -> Converter:
    """Return a converter also for int32 and booleans, which ``convert`` is not for."""

    def convert_any(node: Node) -> None:
        if node.type == _I32:
            value = node.value(2) if node.operator.name == "PADV2" else 0
            node.put(moved(node, value))
        else:
            convert(node)

    return with_booleans(convert_any)


def _pick(draft: Composer, value: Value, places: Array) -> Value:
    """Return elements by their places in the flattened ``value``.

    ``places`` has the shape of the result.
    """
    draft.allowance.take_elements(places.shape)
    flat = draft.reshape(value, (math.prod(value.shape),))
    indices = draft.constant(places.ravel().astype(np.int32))
    return draft.reshape(gather(draft, flat, indices, 0), places.shape)


def moved(node: Node, fill: int = 0) -> Value:
    """Return what the operator makes of input 0, where it only moves int32.

    Elements that it adds are ``fill``. Other inputs have to be constants.
    """
    draft, value = node.draft, node.input(0)
    node.allowance.take_elements(value.dimensions)
    numbers = np.arange(1, math.prod(value.shape) + 1).reshape(value.dimensions)
    others = [node.values(i) for i in range(1, len(node.operator.inputs))]
    if node.operator.name == "PADV2":
        others[1] = np.array(0)
    places = np.asarray(_MOVES[node.operator.name](node, [numbers, *others]))
    if places.size == math.prod(node.result().shape):
        places = places.reshape(node.result().shape)
    picked = _pick(draft, value, (places - 1).clip(0))
    if places.all():
        return picked
    outside = draft.constant(np.full(places.shape, fill, np.int32))
    return draft.select(draft.constant(places > 0), picked, outside)


def transpose(draft: Composer, value: Value, order: Sequence[int]) -> Value:
    """Return ``value`` with its axes in another order, be it of int32."""
    if value.type != _I32 or list(order) == sorted(order):
        return moving_axes(draft, value, order)
    draft.allowance.take_elements(value.shape)
    numbers = np.arange(math.prod(value.shape)).reshape(value.shape)
    return _pick(draft, value, numbers.transpose(order))


def _padded(node: Node, values: Values) -> Array:
    return padded(node, values, MAX_ELEMENTS)


def _depth_to_space(node: Node, values: Values) -> Array:
    size = node.options("DepthToSpaceOptions").BlockSize()
    batch, height, width, depth = values[0].shape
    blocks = values[0].reshape(batch, height, width, size, size, depth // size**2)
    return np.asarray(blocks.transpose(0, 1, 3, 2, 4, 5))


def _space_to_depth(node: Node, values: Values) -> Array:
    size = node.options("SpaceToDepthOptions").BlockSize()
    batch, height, width, depth = values[0].shape
    lines, columns = height // size, width // size
    blocks = values[0].reshape(batch, lines, size, columns, size, depth)
    return np.asarray(blocks.transpose(0, 1, 3, 2, 4, 5))


def _space_to_batch(node: Node, values: Values) -> Array:
    source, sizes, paddings = values
    _check_two(sizes)
    widths = np.array([[0, 0], *paddings.tolist(), [0, 0]])
    whole = padded(node, [source, widths[: source.ndim]], MAX_ELEMENTS)
    batch, height, width, *rest = whole.shape
    down, across = sizes.tolist()
    lines, columns = height // down, width // across
    blocks = whole.reshape(batch, lines, down, columns, across, *rest)
    return np.asarray(blocks.transpose(2, 4, 0, 1, 3, *range(5, blocks.ndim)))


def _batch_to_space(node: Node, values: Values) -> Array:
    source, sizes, crops = values
    _check_two(sizes)
    batch, lines, columns, *rest = source.shape
    down, across = sizes.tolist()
    blocks = source.reshape(
        down, across, batch // (down * across), lines, columns, *rest
    )
    order = (2, 3, 0, 4, 1, *range(5, blocks.ndim))
    shape = (blocks.shape[2], lines * down, columns * across, *rest)
    (top, bottom), (left, right) = crops.tolist()
    whole = blocks.transpose(order).reshape(shape)
    return np.asarray(whole[:, top : shape[1] - bottom, left : shape[2] - right])


def _check_two(sizes: Array) -> None:
    if sizes.shape != (2,):
        raise UnsupportedOperatorError("batches are moved to two axes alone")


_MOVES: Mapping[str, Callable[[Any, Values], Array]] = {
    "BATCH_TO_SPACE_ND": _batch_to_space,
    "DEPTH_TO_SPACE": _depth_to_space,
    "PAD": _padded,
    "PADV2": _padded,
    "SPACE_TO_BATCH_ND": _space_to_batch,
    "SPACE_TO_DEPTH": _space_to_depth,
    "STRIDED_SLICE": strided_slice,
    "TRANSPOSE": transposed,
}
"""What an operator does with an array, and further inputs that are constants."""


def reduce_integers(node: Node, type_: OperationType) -> None:
    """Store the reduction of int32 by halves, with an operation on pairs."""
    draft, source = node.draft, node.input(0)
    axes = {node.axis(int(axis), node.rank()) for axis in node.values(1).ravel()}
    order = [*(k for k in range(source.rank) if k not in axes), *sorted(axes)]
    count = math.prod(source.dimensions[axis] for axis in axes)
    rows = math.prod(source.shape) // count
    whole = draft.reshape(transpose(draft, source, order), (rows, count))
    left = []
    while count > 1:
        half = count // 2
        first, second, *odd = split(draft, whole, 1, [half, half, *[1] * (count % 2)])
        left += odd
        whole = draft.binary(type_, first, second)
        count = half
    for column in left:
        whole = draft.binary(type_, whole, column)
    node.put(whole)
