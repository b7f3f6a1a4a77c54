"""Pools over images and signals, in the layout of ONNX."""

from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.drafting import Value
from asyncnn.runtime.moves import pad
from asyncnn.runtime.onnx.node import Converter, OnnxNode
from asyncnn.runtime.onnx.reduction import reduce
from asyncnn.runtime.onnx.weighted import as_image, of_rank, sliding_of, spatial


def _pooled(node: OnnxNode, type_: Op, *, counts_padding: bool = False) -> Value:
    value, draft = node.input(0), node.draft
    rank = value.rank - 2
    if rank not in (1, 2):
        raise node.refuse(f"a pool of rank {value.rank}")
    sliding = sliding_of(node, value, spatial(node, "kernel_shape", rank))
    if max(sliding.dilations) > 1:
        raise node.refuse("a pool with dilation")
    image = as_image(draft, value)
    rows, columns = (
        _rounded_up(*each) if node.attribute("ceil_mode", 0) else each[3]
        for each in zip(
            image.shape[2:], sliding.kernel, sliding.strides, sliding.pads, strict=True
        )
    )
    if counts_padding and any(map(any, sliding.pads)):
        image = pad(draft, image, [(0, 0), (0, 0), *sliding.pads])
        (_, low), (_, right) = sliding.pads
        rows, columns = (0, rows[1] - low), (0, columns[1] - right)
    height, width = sliding.strides
    numbers = [*columns, *rows, width, height, *sliding.kernel[::-1], 0, True]
    return of_rank(draft, draft.emit(type_, [image, *numbers]), value.rank)


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
