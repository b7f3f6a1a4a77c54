"""Pools over images, signals and volumes, in the layout of ONNX.

A window over a volume, or with gaps, or of powers, goes along one axis after the other,
over what is gathered.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.composing import Composer
from asyncnn.runtime.drafting import Value
from asyncnn.runtime.moves import gather, pad
from asyncnn.runtime.onnx.node import Converter, OnnxNode
from asyncnn.runtime.onnx.reduction import reduce
from asyncnn.runtime.onnx.weighted import as_image, of_rank, paddings, spatial


class _Window(NamedTuple):
    """How a window slides along an axis; ``ends`` are its pads, the last made whole."""

    kernel: int = 1
    stride: int = 1
    pads: tuple[int, int] = (0, 0)
    ends: tuple[int, int] = (0, 0)
    dilation: int = 1

    def places(self, size: int) -> Array:
        """Return where the elements of all windows are, [windows, kernel]."""
        extent = (self.kernel - 1) * self.dilation
        count = (size + sum(self.ends) - extent - 1) // self.stride + 1
        starts = np.arange(count)[:, None] * self.stride - self.ends[0]
        return starts + np.arange(self.kernel) * self.dilation


def _windows(node: OnnxNode, value: Value) -> list[_Window]:
    rank = value.rank - 2
    if rank not in (1, 2, 3):
        raise node.refuse(f"a pool of rank {value.rank}")
    kernel, strides, dilations = (
        spatial(node, name, rank) for name in ("kernel_shape", "strides", "dilations")
    )
    pads = paddings(node, value.shape[2:], kernel, rank)
    is_up = node.attribute("ceil_mode", 0)
    found = []
    rows = zip(value.shape[2:], kernel, strides, dilations, pads, strict=True)
    for size, length, stride, dilation, own in rows:
        extent = (length - 1) * dilation + 1
        ends = _rounded_up(size, extent, stride, own) if is_up else own
        found.append(_Window(length, stride, own, ends, dilation))
    return found


def _pooled(node: OnnxNode, type_: Op, *, counts_padding: bool = False) -> Value:
    value, draft = node.input(0), node.draft
    windows = _windows(node, value)
    is_plain = all(each.dilation == 1 and each.pads[0] >= 0 for each in windows)
    if len(windows) == 3 or not is_plain:
        return _gathered(draft, type_, value, windows, counts_padding)
    image, both = as_image(draft, value), [_Window(), *windows][-2:]
    pooled = _slid(draft, type_, image, both, counts_padding)
    return of_rank(draft, pooled, value.rank)


def _gathered(
    draft: Composer,
    type_: Op,
    value: Value,
    windows: Sequence[_Window],
    counts_padding: bool = False,
) -> Value:
    """Return the pool, or sums, of windows along one axis after the other."""
    is_of_largest = type_ == Op.MAX_POOL_2D
    for axis, window in enumerate(windows, 2):
        size, (low, high) = value.shape[axis], window.ends
        places = window.places(size)
        if is_of_largest:
            # Another element of the window stands for one that is outside.
            is_there, low, high = (places >= 0) & (places < size), 0, 0
            first = np.take_along_axis(places, is_there.argmax(1)[:, None], 1)
            places = np.where(is_there, places, first)
        pads = [(0, 0)] * axis + [(max(low, 0), max(high, 0))]
        pads += [(0, 0)] * (value.rank - axis - 1)
        draft.allowance.take_elements(places.shape)
        indices = draft.constant((places + pads[axis][0]).astype(np.int32))
        parts = gather(draft, pad(draft, value, pads), indices, axis)
        reduction = Op.REDUCE_MAX if is_of_largest else Op.REDUCE_SUM
        value = reduce(draft, reduction, parts, [axis + 1], keep=False)
        if type_ == Op.AVERAGE_POOL_2D:
            before, after = window.pads if counts_padding else (0, 0)
            counts = ((places >= -before) & (places < size + after)).sum(1)
            along = [-1] + [1] * (value.rank - axis - 1)
            value = draft.mul(value, (1 / counts).astype(np.float32).reshape(along))
    return value


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


def _max_pool(node: OnnxNode) -> Value:
    if node.wants(1):
        raise node.refuse("the places of the largest elements")
    return _pooled(node, Op.MAX_POOL_2D)


def _average_pool(node: OnnxNode) -> Value:
    counts_padding = bool(node.attribute("count_include_pad", 0))
    return _pooled(node, Op.AVERAGE_POOL_2D, counts_padding=counts_padding)


def _lp_pool(node: OnnxNode) -> Value:
    value, draft, power = node.input(0), node.draft, node.attribute("p", 2)
    raised = draft.unary(Op.ABS, value)
    if power == 2:
        raised = draft.mul(value, value)
    elif power != 1:
        raised = draft.binary(Op.POW, raised, float(power))
    total = _gathered(draft, Op.REDUCE_SUM, raised, _windows(node, value))
    if power == 2:
        return draft.unary(Op.SQRT, total)
    return total if power == 1 else draft.binary(Op.POW, total, 1 / power)


def _global(type_: Op) -> Converter:
    def convert(node: OnnxNode) -> Value:
        value = node.input(0)
        return reduce(node.draft, type_, value, list(range(2, value.rank)))

    return convert


CONVERTERS: dict[str, Converter] = {
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "LpPool": _lp_pool,
    "GlobalAveragePool": _global(Op.MEAN),
    "GlobalMaxPool": _global(Op.REDUCE_MAX),
}
