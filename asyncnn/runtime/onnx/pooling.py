"""Pools over images, signals and volumes, in the layout of ONNX."""

from collections.abc import Sequence

from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.composing import Composer
from asyncnn.runtime.drafting import Value
from asyncnn.runtime.moves import pad
from asyncnn.runtime.onnx.node import Converter, OnnxNode
from asyncnn.runtime.onnx.reduction import reduce
from asyncnn.runtime.onnx.weighted import (
    SlidingWindow,
    as_image,
    of_rank,
    paddings,
    spatial,
)


class _PoolWindow:
    """What the attributes of a pool say, for any number of axes."""

    def __init__(self, node: OnnxNode) -> None:
        value = node.input(0)
        self.rank = value.rank - 2
        if not 1 <= self.rank <= 3:
            raise node.refuse(f"a pool of rank {value.rank}")
        self.kernel = spatial(node, "kernel_shape", self.rank)
        self.strides = spatial(node, "strides", self.rank)
        if max(spatial(node, "dilations", self.rank)) > 1:
            raise node.refuse("a pool with dilation")
        self.pads = paddings(node, value.shape[2:], self.kernel, self.rank)
        self.extra = [0] * self.rank
        if node.attribute("ceil_mode", 0):
            for axis, size in enumerate(value.shape[2:]):
                before, after = self.pads[axis]
                rest = size + before + after - self.kernel[axis]
                count = -(-rest // self.strides[axis])
                # A window that begins behind the last element is none.
                if count * self.strides[axis] >= size + before:
                    count -= 1
                self.extra[axis] = max(0, count * self.strides[axis] - rest)

    def sliding(self, pads: Sequence[tuple[int, int]]) -> SlidingWindow:
        """Return the window over height and width, without dilation."""
        kernel, strides = self.kernel[-2:], self.strides[-2:]
        pads = list(pads[-2:])
        if self.rank == 1:
            kernel, strides, pads = [1, *kernel], [1, *strides], [(0, 0), *pads]
        return SlidingWindow(
            (kernel[0], kernel[1]), (strides[0], strides[1]), (1, 1), (pads[0], pads[1])
        )

    @property
    def padded(self) -> list[tuple[int, int]]:
        """Padding with what rounding up adds."""
        pairs = zip(self.pads, self.extra, strict=True)
        return [(before, after + extra) for (before, after), extra in pairs]


def _slide(draft: Composer, type_: Op, value: Value, sliding: SlidingWindow) -> Value:
    image = as_image(draft, value)
    kernel = [sliding.kernel[1], sliding.kernel[0]]
    result = draft.emit(type_, [image, *sliding.explicit, *kernel, 0, True])
    return of_rank(draft, result, value.rank)


def _pooled(
    draft: Composer,
    type_: Op,
    value: Value,
    pool: _PoolWindow,
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
    along = SlidingWindow(
        (pool.kernel[0], 1), (pool.strides[0], 1), (1, 1), (pads[0], (0, 0))
    )
    result = _slide(draft, type_, columns, along)
    return draft.reshape(result, (batch, channels, result.shape[2], height, width))


def _max_pool(node: OnnxNode) -> Value:
    value, draft = node.input(0), node.draft
    if node.wants(1):
        raise node.refuse("the places of the largest elements")
    pool = _PoolWindow(node)
    return _pooled(draft, Op.MAX_POOL_2D, value, pool, pool.padded)


def _average_pool(node: OnnxNode) -> Value:
    value, draft = node.input(0), node.draft
    pool = _PoolWindow(node)
    includes = bool(node.attribute("count_include_pad", 0))
    if includes and any(any(pair) for pair in pool.pads):
        value = pad(draft, value, [(0, 0), (0, 0), *pool.pads])
        behind = [(0, extra) for extra in pool.extra]
        return _pooled(draft, Op.AVERAGE_POOL_2D, value, pool, behind)
    return _pooled(draft, Op.AVERAGE_POOL_2D, value, pool, pool.padded)


def _global(type_: Op) -> Converter:
    def convert(node: OnnxNode) -> Value:
        value = node.input(0)
        return reduce(node.draft, type_, value, list(range(2, value.rank)))

    return convert


CONVERTERS: dict[str, Converter] = {
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global(Op.MEAN),
    "GlobalMaxPool": _global(Op.REDUCE_MAX),
}
