"""Pools over images, signals and volumes, in the layout of ONNX.

A window over a volume is one over its images, and one over what these are then.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncnn.extensions.onnx_nodes import onnx_module
from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.composing import Composer
from asyncnn.runtime.drafting import Value
from asyncnn.runtime.moves import pad
from asyncnn.runtime.onnx.node import Converter, OnnxNode
from asyncnn.runtime.onnx.reduction import reduce
from asyncnn.runtime.onnx.weighted import (
    SlidingAxis,
    as_image,
    of_image,
    of_rank,
    sliding_of,
    spatial,
)


def _pooled(node: OnnxNode, type_: Op, *, counts_padding: bool = False) -> Value:
    value, draft = node.input(0), node.draft
    rank = value.rank - 2
    if rank not in (1, 2, 3):
        raise node.refuse(f"a pool of rank {value.rank}")
    windows = sliding_of(node, value, spatial(node, "kernel_shape", rank))
    cut = [(min(each.pads[0], 0), 0) for each in windows]
    value = pad(draft, value, [(0, 0), (0, 0), *cut])
    windows = [
        each._replace(pads=(max(each.pads[0], 0), each.pads[1])) for each in windows
    ]
    if node.attribute("ceil_mode", 0):
        pairs = zip(value.shape[2:], windows, strict=True)
        windows = [each._replace(more=_missing(size, each)) for size, each in pairs]
    if node.name == "LpPool" or any(each.dilation > 1 for each in windows):
        _say_pads(node, value, windows)
        raise node.refuse("a pool of powers, or with dilation")
    if rank < 3:
        image, both = as_image(draft, value), of_image(windows)
        pooled = _slid(draft, type_, image, both, counts_padding)
        return of_rank(draft, pooled, value.rank)
    batch, channels, depth, *sides = value.shape
    images = draft.reshape(value, (batch, channels * depth, *sides))
    images = _slid(draft, type_, images, windows[1:], counts_padding)
    height, width = images.shape[2:]
    lines = draft.reshape(images, (batch, channels, depth, height * width))
    lines = _slid(draft, type_, lines, [windows[0], SlidingAxis()], counts_padding)
    shape = batch, channels, lines.shape[2], height, width
    return draft.reshape(lines, shape)


def _slid(
    draft: Composer,
    type_: Op,
    image: Value,
    windows: Sequence[SlidingAxis],
    counts_padding: bool,
) -> Value:
    """Return the pool of an image, by the windows along its rows and columns."""
    pads = [each.pads for each in windows]
    if counts_padding and any(map(any, pads)):
        image = pad(draft, image, [(0, 0), (0, 0), *pads])
        pads = [(0, 0), (0, 0)]
    height, width = windows
    (top, bottom), (left, right) = pads
    numbers = [left, right + width.more, top, bottom + height.more]
    numbers += [width.stride, height.stride, width.kernel, height.kernel, 0, True]
    return draft.emit(type_, [image, *numbers])


def _missing(size: int, axis: SlidingAxis) -> int:
    """Return the padding behind an axis that the last window needs to be whole."""
    rest = size + sum(axis.pads) - axis.extent
    count = -(-rest // axis.stride)
    # A window that begins behind the last element is none.
    if count * axis.stride >= size + axis.pads[0]:
        count -= 1
    return max(0, count * axis.stride - rest)


def _say_pads(node: OnnxNode, value: Value, windows: Sequence[SlidingAxis]) -> None:
    """Have all padding in numbers, for the evaluator, which has rules of its own."""
    proto = type(node.proto)()
    proto.CopyFrom(node.proto)
    pads = [each.pads for each in windows]
    if node.name == "AveragePool" and node.attribute("count_include_pad", 0):
        # That by which sizes are rounded up is not counted.
        value = pad(node.draft, value, [(0, 0), (0, 0), *pads])
        pads = [(0, 0)] * len(pads)
    ends = [(a, b + each.more) for (a, b), each in zip(pads, windows, strict=True)]
    node.take(0, value)
    said: dict[str, Any] = {"pads": np.array(ends).T.ravel().tolist()}
    said |= {"count_include_pad": 1} if node.name == "LpPool" else {}
    unsaid = ("auto_pad", "ceil_mode", "count_include_pad", "pads")
    kept = [each for each in proto.attribute if each.name not in unsaid]
    del proto.attribute[:]
    proto.attribute.extend(kept)
    for name, number in said.items():
        proto.attribute.append(onnx_module("helper").make_attribute(name, number))
    node.proto = proto


def _max_pool(node: OnnxNode) -> Value:
    if node.wants(1):
        raise node.refuse("the places of the largest elements")
    return _pooled(node, Op.MAX_POOL_2D)


def _average_pool(node: OnnxNode) -> Value:
    counts_padding = bool(node.attribute("count_include_pad", 0))
    return _pooled(node, Op.AVERAGE_POOL_2D, counts_padding=counts_padding)


def _global(type_: Op) -> Converter:
    def convert(node: OnnxNode) -> Value:
        value = node.input(0)
        return reduce(node.draft, type_, value, list(range(2, value.rank)))

    return convert


CONVERTERS: dict[str, Converter] = {
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "LpPool": lambda node: _pooled(node, Op.L2_POOL_2D),
    "GlobalAveragePool": _global(Op.MEAN),
    "GlobalMaxPool": _global(Op.REDUCE_MAX),
}
