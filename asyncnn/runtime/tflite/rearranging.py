"""Operators that only move elements, on int32, which most of the HAL's do not take.

The places that elements come from follow from the operator alone: moving the numbers of
the places tells them. The HAL's GATHER on the flattened tensor does the rest.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from asyncnn.hal.operands import DTYPES
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.runtime.allowance import MAX_ELEMENTS
from asyncnn.runtime.tflite.folding import Values, padded, strided_slice, transposed
from asyncnn.runtime.tflite.node import Converter, Node, with_booleans

_I32 = OperandType.TENSOR_INT32


def moving(convert: Converter) -> Converter:
    """Return a converter also for int32 and booleans, which ``convert`` is not for."""

    def convert_any(node: Node) -> None:
        if node.type == _I32:
            value = node.value(2) if node.operator.name == "PADV2" else 0
            node.store(moved(node, node.read(0), value))
        else:
            convert(node)

    return with_booleans(convert_any)


def pick(node: Node, operand: int, places: Array) -> int:
    """Return elements by their places in the flattened ``operand``.

    ``places`` has the shape of the result.
    """
    like = node.builder.operand(operand)
    node.allowance.take_elements(places.shape)
    flat = node.reshape(operand, (math.prod(like.dimensions),))
    constant = node.builder.constant(places.ravel().astype(np.int32))
    inputs = [flat, node.scalar(0), constant]
    output = replace(like, dimensions=(places.size,))
    picked = node.compute(OperationType.GATHER, inputs, output)
    return node.reshape(picked, places.shape or (1,))


def moved(node: Node, operand: int, value: float = 0) -> int:
    """Return what the operator makes of ``operand``, where it only moves elements.

    Elements that it adds are ``value``. Other inputs have to be constants.
    """
    like = node.builder.operand(operand)
    node.allowance.take_elements(like.dimensions)
    numbers = np.arange(1, math.prod(like.dimensions) + 1).reshape(like.dimensions)
    others = [node.values(i) for i in range(1, len(node.operator.inputs))]
    if node.operator.name == "PADV2":
        others[1] = np.array(0)
    places = np.asarray(_MOVES[node.operator.name](node, [numbers, *others]))
    picked = pick(node, operand, (places - 1).clip(0))
    if places.all():
        return picked
    fill = np.full(places.shape, value, DTYPES[like.type])
    inside = node.builder.constant(places > 0)
    outside = node.builder.constant(fill, OperandType(like.type))
    output = replace(like, dimensions=places.shape)
    return node.compute(OperationType.SELECT, [inside, picked, outside], output)


def transpose(node: Node, operand: int, order: Sequence[int]) -> int:
    """Return ``operand`` with its axes in another order."""
    if list(order) == list(range(len(order))):
        return operand
    like = node.builder.operand(operand)
    if like.type == _I32:
        node.allowance.take_elements(like.dimensions)
        numbers = np.arange(math.prod(like.dimensions)).reshape(like.dimensions)
        return pick(node, operand, numbers.transpose(order))
    output = replace(like, dimensions=tuple(like.dimensions[axis] for axis in order))
    inputs = [operand, node.integers(order)]
    return node.compute(OperationType.TRANSPOSE, inputs, output)


def _padded(node: Node, values: Values) -> Array:
    return padded(node, values, MAX_ELEMENTS)


def _depth_to_space(node: Node, values: Values) -> Array:
    size = node.options("DepthToSpaceOptions").BlockSize()
    batch, height, width, depth = values[0].shape
    rest = depth // size**2
    blocks = values[0].reshape(batch, height, width, size, size, rest)
    shape = (batch, height * size, width * size, rest)
    return np.asarray(blocks.transpose(0, 1, 3, 2, 4, 5).reshape(shape))


def _space_to_depth(node: Node, values: Values) -> Array:
    size = node.options("SpaceToDepthOptions").BlockSize()
    batch, height, width, depth = values[0].shape
    lines, columns = height // size, width // size
    blocks = values[0].reshape(batch, lines, size, columns, size, depth)
    shape = (batch, lines, columns, size * size * depth)
    return np.asarray(blocks.transpose(0, 1, 3, 2, 4, 5).reshape(shape))


def _space_to_batch(node: Node, values: Values) -> Array:
    source, sizes, paddings = values
    widths = np.array([[0, 0], *paddings.tolist(), [0, 0]])
    whole = padded(node, [source, widths[: source.ndim]], MAX_ELEMENTS)
    batch, height, width, *rest = whole.shape
    down, across = sizes.tolist()
    lines, columns = height // down, width // across
    blocks = whole.reshape(batch, lines, down, columns, across, *rest)
    order = (2, 4, 0, 1, 3, *range(5, blocks.ndim))
    shape = (batch * down * across, lines, columns, *rest)
    return np.asarray(blocks.transpose(order).reshape(shape))


def _batch_to_space(node: Node, values: Values) -> Array:
    source, sizes, crops = values
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
    source = node.read(0)
    rank, like = node.rank(), node.builder.operand(source)
    axes = {node.axis(int(axis), rank) for axis in node.values(1).ravel()}
    order = [*(k for k in range(rank) if k not in axes), *sorted(axes)]
    count = math.prod(like.dimensions[axis] for axis in axes)
    rows = math.prod(like.dimensions) // count
    whole = node.reshape(transpose(node, source, order), (rows, count))
    left = []
    while count > 1:
        half = count // 2
        first, second = (_columns(node, whole, k * half, half) for k in range(2))
        if count % 2:
            left.append(_columns(node, whole, count - 1, 1))
        whole = _paired(node, type_, first, second)
        count = half
    for column in left:
        whole = _paired(node, type_, whole, column)
    node.store(whole)


def _columns(node: Node, operand: int, first: int, count: int) -> int:
    like = node.builder.operand(operand)
    rows, _ = like.dimensions
    inputs = [operand, node.integers([0, first]), node.integers([rows, count])]
    output = replace(like, dimensions=(rows, count))
    return node.compute(OperationType.SLICE, inputs, output)


def _paired(node: Node, type_: OperationType, first: int, second: int) -> int:
    inputs = [first, second]
    if type_ in (OperationType.ADD, OperationType.MUL):
        inputs.append(node.scalar(0))
    return node.compute(type_, inputs, node.builder.operand(first))
