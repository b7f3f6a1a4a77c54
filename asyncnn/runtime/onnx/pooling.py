"""Pools over images, signals and volumes, in the layout of ONNX."""

import math
from collections.abc import Sequence

import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.onnx.composing import Composer
from asyncnn.runtime.onnx.convolution import (
    Sliding,
    as_image,
    of_rank,
    paddings,
    spatial,
)
from asyncnn.runtime.onnx.emitter import F16, F32, Value
from asyncnn.runtime.onnx.node import Converter, Node
from asyncnn.runtime.onnx.reduction import reduce
from asyncnn.runtime.onnx.reshaping import pad

_MAX_SHIFTS = 512


class _Pool:
    """What the attributes of a pool say, for any number of axes."""

    def __init__(self, node: Node) -> None:
        value = node.input(0)
        self.rank = value.rank - 2
        if not 1 <= self.rank <= 3:
            raise node.refuse(f"a pool of rank {value.rank}")
        self.kernel = spatial(node, "kernel_shape", self.rank)
        self.strides = spatial(node, "strides", self.rank)
        self.dilations = spatial(node, "dilations", self.rank)
        self.pads = paddings(node, value.shape[2:], self.kernel, self.rank)
        extents = [
            (kernel - 1) * dilation + 1
            for kernel, dilation in zip(self.kernel, self.dilations, strict=True)
        ]
        self.extra = [0] * self.rank
        if node.attribute("ceil_mode", 0):
            for axis, size in enumerate(value.shape[2:]):
                before, after = self.pads[axis]
                rest = size + before + after - extents[axis]
                count = -(-rest // self.strides[axis])
                # A window that begins behind the last element is none.
                if count * self.strides[axis] >= size + before:
                    count -= 1
                self.extra[axis] = max(0, count * self.strides[axis] - rest)

    def sliding(self, pads: Sequence[tuple[int, int]]) -> Sliding:
        """Return the window over height and width, without dilation."""
        kernel, strides = self.kernel[-2:], self.strides[-2:]
        pads = list(pads[-2:])
        if self.rank == 1:
            kernel, strides, pads = [1, *kernel], [1, *strides], [(0, 0), *pads]
        return Sliding(
            (kernel[0], kernel[1]), (strides[0], strides[1]), (1, 1), (pads[0], pads[1])
        )

    @property
    def padded(self) -> list[tuple[int, int]]:
        """Padding with what rounding up adds."""
        pairs = zip(self.pads, self.extra, strict=True)
        return [(before, after + extra) for (before, after), extra in pairs]


def _slide(draft: Composer, type_: Op, value: Value, sliding: Sliding) -> Value:
    image = as_image(draft, value)
    kernel = [sliding.kernel[1], sliding.kernel[0]]
    result = draft.emit(type_, [image, *sliding.explicit, *kernel, 0, True])
    return of_rank(draft, result, value.rank)


def _pooled(
    draft: Composer,
    type_: Op,
    value: Value,
    pool: _Pool,
    pads: Sequence[tuple[int, int]],
) -> Value:
    """Return a pool; of a volume, first of its planes and then along its depth."""
    if pool.rank < 3:
        return _slide(draft, type_, value, pool.sliding(pads))
    batch, channels, depth, height, width = value.shape
    planes = draft.reshape(value, (batch, channels * depth, height, width))
    planes = _slide(draft, type_, planes, pool.sliding(pads))
    height, width = planes.shape[2:]
    columns = draft.reshape(planes, (batch, channels, depth, height * width))
    along = Sliding(
        (pool.kernel[0], 1), (pool.strides[0], 1), (1, 1), (pads[0], (0, 0))
    )
    result = _slide(draft, type_, columns, along)
    return draft.reshape(result, (batch, channels, result.shape[2], height, width))


def _max_pool(node: Node) -> Value:
    value, draft = node.input(0), node.draft
    if node.wants(1):
        raise node.refuse("the places of the largest elements")
    pool = _Pool(node)
    if max(pool.dilations) == 1:
        return _pooled(draft, Op.MAX_POOL_2D, value, pool, pool.padded)
    lowest = float(np.finfo(value.dtype).min) if value.type in (F16, F32) else 0
    spread = pad(draft, value, [(0, 0), (0, 0), *pool.padded], lowest)
    return _shifted(node, spread, pool, Op.MAXIMUM)


def _shifted(node: Node, value: Value, pool: _Pool, type_: Op) -> Value:
    """Combine one strided slice for each element of a window with dilation."""
    draft = node.draft
    if math.prod(pool.kernel) > _MAX_SHIFTS:
        raise node.refuse("dilation of so large a window")
    outer = value.shape[:2]
    value = draft.reshape(value, (math.prod(outer), *value.shape[2:]))
    counts = [
        (size - (kernel - 1) * dilation - 1) // stride + 1
        for size, kernel, dilation, stride in zip(
            value.shape[1:], pool.kernel, pool.dilations, pool.strides, strict=True
        )
    ]
    if min(counts) < 1:
        raise InvalidArgumentError("a window does not fit")
    total = None
    for place in np.ndindex(*pool.kernel):
        begin = [n * d for n, d in zip(place, pool.dilations, strict=True)]
        end = [
            b + (count - 1) * stride + 1
            for b, count, stride in zip(begin, counts, pool.strides, strict=True)
        ]
        piece = draft.emit(
            Op.STRIDED_SLICE,
            [
                value,
                (0, *begin),
                (value.shape[0], *end),
                (1, *pool.strides),
                *(0, 0, 0),
            ],
        )
        total = piece if total is None else draft.binary(type_, total, piece)
    assert total is not None
    return draft.reshape(total, (*outer, *counts))


def _average_pool(node: Node) -> Value:
    value, draft = node.input(0), node.draft
    pool = _Pool(node)
    includes = bool(node.attribute("count_include_pad", 0))
    if max(pool.dilations) > 1:
        return _average_of_shifts(node, pool, includes=includes)
    if includes and any(any(pair) for pair in pool.pads):
        value = pad(draft, value, [(0, 0), (0, 0), *pool.pads])
        behind = [(0, extra) for extra in pool.extra]
        return _pooled(draft, Op.AVERAGE_POOL_2D, value, pool, behind)
    return _pooled(draft, Op.AVERAGE_POOL_2D, value, pool, pool.padded)


def _average_of_shifts(node: Node, pool: _Pool, *, includes: bool) -> Value:
    value, draft = node.input(0), node.draft
    spread = pad(draft, value, [(0, 0), (0, 0), *pool.padded])
    total = _shifted(node, spread, pool, Op.ADD)
    draft.allowance.take_elements(spread.shape[2:])
    ones = np.zeros(spread.shape[2:], np.float32)
    inner = []
    for axis, size in enumerate(value.shape[2:]):
        before, after = pool.pads[axis]
        first, last = (
            (0, before + size + after) if includes else (before, before + size)
        )
        inner.append(slice(first, last))
    ones[tuple(inner)] = 1
    counts = np.zeros(total.shape[2:], np.float32)
    for place in np.ndindex(*pool.kernel):
        index = tuple(
            slice(n * d, n * d + (count - 1) * stride + 1, stride)
            for n, d, count, stride in zip(
                place, pool.dilations, total.shape[2:], pool.strides, strict=True
            )
        )
        counts += ones[index]
    return draft.mul(total, draft.constant((1 / counts).astype(value.dtype)))


def _lp_pool(node: Node) -> Value:
    value, draft = node.input(0), node.draft
    pool = _Pool(node)
    if max(pool.dilations) > 1:
        power = _power(draft, value, node.attribute("p", 2))
        spread = pad(draft, power, [(0, 0), (0, 0), *pool.padded])
        return _root(
            draft, _shifted(node, spread, pool, Op.ADD), node.attribute("p", 2)
        )
    power = _power(draft, value, node.attribute("p", 2))
    spread = pad(draft, power, [(0, 0), (0, 0), *pool.padded])
    none = [(0, 0)] * pool.rank
    mean = _pooled(draft, Op.AVERAGE_POOL_2D, spread, pool, none)
    total = draft.mul(mean, float(math.prod(pool.kernel)))
    return _root(draft, total, node.attribute("p", 2))


def _power(draft: Composer, value: Value, order: int) -> Value:
    length = draft.unary(Op.ABS, value)
    if order == 1:
        return length
    if order == 2:
        return draft.mul(value, value)
    return draft.binary(Op.POW, length, float(order))


def _root(draft: Composer, value: Value, order: int) -> Value:
    if order == 1:
        return value
    if order == 2:
        return draft.unary(Op.SQRT, value)
    return draft.binary(Op.POW, value, 1 / order)


def _global(type_: Op) -> Converter:
    def convert(node: Node) -> Value:
        value = node.input(0)
        return reduce(node.draft, type_, value, list(range(2, value.rank)))

    return convert


def _global_lp(node: Node) -> Value:
    value, draft, order = node.input(0), node.draft, node.attribute("p", 2)
    power = _power(draft, value, order)
    total = reduce(draft, Op.REDUCE_SUM, power, list(range(2, value.rank)))
    return _root(draft, total, order)


CONVERTERS: dict[str, Converter] = {
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "LpPool": _lp_pool,
    "GlobalAveragePool": _global(Op.MEAN),
    "GlobalLpPool": _global_lp,
    "GlobalMaxPool": _global(Op.REDUCE_MAX),
}
