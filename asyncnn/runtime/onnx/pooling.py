"""Pools over images, signals and volumes, in the layout of ONNX.

A window over a volume is one over its images, and one over what these are then.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from asyncnn.extensions.onnx_nodes import onnx_module
from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.composing import Composer
from asyncnn.runtime.drafting import Value
from asyncnn.runtime.moves import pad
from asyncnn.runtime.onnx.node import Converter, OnnxNode
from asyncnn.runtime.onnx.reduction import reduce
from asyncnn.runtime.onnx.weighted import as_image, of_rank, paddings, spatial


class _Window(NamedTuple):
    """How a window slides along an axis; ``ends`` are its pads, the last made whole."""

    kernel: int = 1
    stride: int = 1
    pads: tuple[int, int] = (0, 0)
    ends: tuple[int, int] = (0, 0)


def _pooled(node: OnnxNode, type_: Op, *, counts_padding: bool = False) -> Value:
    value, draft = node.input(0), node.draft
    rank = value.rank - 2
    if rank not in (1, 2, 3):
        raise node.refuse(f"a pool of rank {value.rank}")
    kernel, strides, dilations = (
        spatial(node, name, rank) for name in ("kernel_shape", "strides", "dilations")
    )
    pads = paddings(node, value.shape[2:], kernel, rank)
    value = pad(draft, value, [(0, 0)] * 2 + [(min(a, 0), 0) for a, _ in pads])
    pads = [(max(a, 0), b) for a, b in pads]
    if node.name == "LpPool" or max(dilations) > 1:
        extents = [(n - 1) * d + 1 for n, d in zip(kernel, dilations, strict=True)]
        _say_pads(node, value, extents, strides, pads)
        raise node.refuse("a pool of powers, or with dilation")
    windows = [
        _Window(
            *each[1:], _rounded_up(*each) if node.attribute("ceil_mode", 0) else each[3]
        )
        for each in zip(value.shape[2:], kernel, strides, pads, strict=True)
    ]
    if rank < 3:
        image, both = as_image(draft, value), [_Window(), *windows][-2:]
        pooled = _slid(draft, type_, image, both, counts_padding)
        return of_rank(draft, pooled, value.rank)
    batch, channels, depth, *sides = value.shape
    images = draft.reshape(value, (batch, channels * depth, *sides))
    images = _slid(draft, type_, images, windows[1:], counts_padding)
    height, width = images.shape[2:]
    lines = draft.reshape(images, (batch, channels, depth, height * width))
    lines = _slid(draft, type_, lines, [windows[0], _Window()], counts_padding)
    shape = batch, channels, lines.shape[2], height, width
    return draft.reshape(lines, shape)


def _slid(
    draft: Composer,
    type_: Op,
    image: Value,
    windows: Sequence[_Window],
    counts_padding: bool,
) -> Value:
    """Return the pool of an image, by the windows along its rows and columns."""
    rows, columns = (each.ends for each in windows)
    pads = [each.pads for each in windows]
    if counts_padding and any(map(any, pads)):
        image = pad(draft, image, [(0, 0), (0, 0), *pads])
        (_, low), (_, right) = pads
        rows, columns = (0, rows[1] - low), (0, columns[1] - right)
    height, width = windows
    numbers = [*columns, *rows, width.stride, height.stride]
    numbers += [width.kernel, height.kernel, 0, True]
    return draft.emit(type_, [image, *numbers])


def _rounded_up(
    size: int, kernel: int, stride: int, pads: tuple[int, int]
) -> tuple[int, int]:
    """Return the padding of an axis with what the last window needs to be whole."""
    before, after = pads
    rest = size + before + after - kernel
    count = -(-rest // stride)
    # A window that begins behind the last element is none.
    if count * stride >= size + before:
        count -= 1
    return before, after + max(0, count * stride - rest)


def _say_pads(
    node: OnnxNode,
    value: Value,
    extents: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[tuple[int, int]],
) -> None:
    """Have all padding in numbers, for the evaluator, which has rules of its own."""
    rows = zip(value.shape[2:], extents, strides, pads, strict=True)
    is_up, proto = node.attribute("ceil_mode", 0), type(node.proto)()
    proto.CopyFrom(node.proto)
    ends = [_rounded_up(*each) if is_up else each[3] for each in rows]
    if node.name == "AveragePool" and node.attribute("count_include_pad", 0):
        # That by which sizes are rounded up is not counted.
        ends = [(0, b - a) for (_, a), (_, b) in zip(pads, ends, strict=True)]
        value = pad(node.draft, value, [(0, 0), (0, 0), *pads])
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
