"""Layers with weights: convolutions in the layout of ONNX, and products of matrices.

The HAL's own argument for that layout is set.

Only filters are moved, from [O, I, H, W] to the HAL's [O, H, W, I], when they are read.
Signals of one axis become images of one row.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import OperationType as Op
from asyncnn.hal.types import SymmPerChannelQuantParams
from asyncnn.runtime.composing import Composer
from asyncnn.runtime.drafting import I32, Drafted, Form, Value
from asyncnn.runtime.moves import pad, transpose
from asyncnn.runtime.onnx.node import Converter, OnnxNode
from asyncnn.runtime.unsupported import UnsupportedOperatorError


class SlidingAxis(NamedTuple):
    """How a window slides along an axis.

    The last window needs ``more`` padding behind the axis to be whole.
    """

    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    pads: tuple[int, int] = (0, 0)
    more: int = 0

    @property
    def extent(self) -> int:
        """Elements from the first to the last one of the window."""
        return (self.kernel - 1) * self.dilation + 1


def spatial(node: OnnxNode, name: str, rank: int, default: int = 1) -> list[int]:
    """Return an attribute that has a number for each of ``rank`` axes.

    :raises InvalidArgumentError: if it has another count, or a number below 1.
    """
    values = list(node.attribute(name, [default] * rank))
    if len(values) != rank or any(not 0 < value < 1 << 24 for value in values):
        raise InvalidArgumentError(f"{name} of {values} for {rank} axes")
    return values


def _unpadded(node: OnnxNode, kernel: Sequence[int]) -> list[SlidingAxis]:
    names = "strides", "dilations"
    numbers = (spatial(node, name, len(kernel)) for name in names)
    return [SlidingAxis(*each) for each in zip(kernel, *numbers, strict=True)]


def sliding_of(
    node: OnnxNode, value: Value, kernel: Sequence[int]
) -> list[SlidingAxis]:
    """Return how windows slide over ``value``, padded by whichever rule is given.

    Padding is negative before an axis where they leave the first elements out.
    """
    axes, rank = _unpadded(node, kernel), len(kernel)
    mode = node.attribute("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        found = []
        for size, axis in zip(value.shape[2:], axes, strict=True):
            stride = axis.stride
            total = (-(-size // stride) - 1) * stride + axis.extent - size
            late = (mode == "SAME_LOWER") + (total < 0 and "Conv" in node.name)
            before = int((total + late) / 2)  # as ONNX Runtime has it
            found.append(axis._replace(pads=(before, max(total - before, 0))))
        return found
    pads = (
        [0] * (2 * rank) if mode == "VALID" else node.attribute("pads", [0] * 2 * rank)
    )
    if len(pads) != 2 * rank or any(not 0 <= n < 1 << 24 for n in pads):
        raise InvalidArgumentError(f"paddings {pads} for {rank} axes")
    rows = zip(axes, pads[:rank], pads[rank:], strict=True)
    return [axis._replace(pads=(before, after)) for axis, before, after in rows]


def of_image(sliding: Sequence[SlidingAxis]) -> list[SlidingAxis]:
    """Return how windows slide over height and width; a signal is of one row."""
    return [SlidingAxis(), *sliding][-2:]


def as_image(draft: Composer, value: Value) -> Value:
    """Return a signal as an image of one row; images as they are."""
    if value.rank == 3:
        return draft.reshape(value, (*value.shape[:2], 1, value.shape[2]))
    return value


def filter_of(
    draft: Composer, value: Value, axes: Sequence[int], channel_dim: int
) -> Value:
    """Return a filter with its axes in another order, by bytes if it is quantised.

    :param channel_dim: where the axis of the outputs is then.
    """
    codes = codes_of(value)
    if codes is None or codes.data is None:
        return transpose(draft, value, axes)
    channels = codes.form.channels
    if channels is not None:
        channels = SymmPerChannelQuantParams(channels.scales, channel_dim)
    form = msgspec.structs.replace(codes.form, channels=channels)
    moved = draft.quantized(codes.data.transpose(axes), form)
    return dequantized_constant(moved)


def codes_of(value: Value) -> Value | None:
    """Return the quantised tensor that ``value`` has the real values of."""
    producer = value.source.producer
    if producer is None or producer.type != Op.DEQUANTIZE:
        return None
    codes = producer.inputs[0]
    assert isinstance(codes, Value)
    if codes.shape == value.shape:
        return codes
    return codes.alias(value.shape, codes.dtype)


def dequantized_constant(codes: Value) -> Value:
    """Return the real values of a quantised constant, computed once they are read."""

    def real() -> Array:
        assert codes.data is not None
        data = codes.data.astype(np.float32)
        channels = codes.form.channels
        if channels is None:
            steps = data - np.float32(codes.form.zero_point)
            return np.asarray(steps * np.float32(codes.form.scale), np.float32)
        along = [1] * data.ndim
        along[channels.channel_dim] = -1
        return data * np.array(channels.scales, np.float32).reshape(along)

    form = Form.of(np.dtype(np.float32))
    producer = Drafted(Op.DEQUANTIZE, (codes,))
    return Value(np.dtype(np.float32), codes.shape, form, real, producer=producer)


def image_filter(draft: Composer, value: Value) -> Value:
    """Return a filter of signals as one of images of one row; others as they are."""
    if value.rank != 3:
        return value
    codes = codes_of(value)
    shape = (*value.shape[:2], 1, value.shape[2])
    if codes is not None and codes.data is not None:
        return dequantized_constant(
            draft.quantized(codes.data.reshape(shape), codes.form)
        )
    return draft.reshape(value, shape)


def _conv(node: OnnxNode) -> Value:
    value, filter_, draft = node.input(0), node.input(1), node.draft
    if value.rank not in (3, 4) or filter_.rank != value.rank:
        raise node.refuse(f"a convolution of rank {value.rank}")
    bias = node.input(2) if node.has(2) else None
    sliding = sliding_of(node, value, filter_.shape[2:])
    image = as_image(draft, value)
    groups = node.attribute("group", 1)
    result = convolved(
        draft, image, image_filter(draft, filter_), bias, sliding, groups
    )
    return of_rank(draft, result, value.rank)


def of_rank(draft: Composer, result: Value, rank: int) -> Value:
    """Return what was computed of an `as_image` as a value of ``rank`` again."""
    if rank == 3:
        return draft.reshape(result, (*result.shape[:2], result.shape[3]))
    return result


def convolved(
    draft: Composer,
    image: Value,
    filter_: Value,
    bias: Value | None,
    sliding: Sequence[SlidingAxis],
    groups: int,
) -> Value:
    """Return the convolution of an [N, C, H, W] with an [O, I, H, W]."""
    units, depth = filter_.shape[:2]
    channels = image.shape[1]
    if groups < 1 or channels != depth * groups or units % groups:
        raise InvalidArgumentError(
            f"{channels} channels in {groups} groups for filters of shape "
            f"{list(filter_.shape)}"
        )
    if bias is None:
        draft.allowance.take_elements((units,))
        bias = draft.constant(np.zeros(units, image.dtype))
    image, (height, width) = _inside(draft, image, of_image(sliding))
    dilations = [width.dilation, height.dilation]
    steps = [*width.pads, *height.pads, width.stride, height.stride]
    if groups == 1:
        moved = filter_of(draft, filter_, (0, 2, 3, 1), 0)
        last = [0, True, *dilations]
        return draft.emit(Op.CONV_2D, [image, moved, bias, *steps, *last])
    if depth == 1:
        moved = filter_of(draft, filter_, (1, 2, 3, 0), 3)
        last = [units // groups, 0, True, *dilations]
        return draft.emit(Op.DEPTHWISE_CONV_2D, [image, moved, bias, *steps, *last])
    if dilations == [1, 1]:
        moved = filter_of(draft, filter_, (0, 2, 3, 1), 0)
        last = [groups, 0, True]
        return draft.emit(Op.GROUPED_CONV_2D, [image, moved, bias, *steps, *last])
    raise UnsupportedOperatorError("a convolution of groups with dilation")


def _inside(
    draft: Composer, image: Value, sliding: Sequence[SlidingAxis]
) -> tuple[Value, Sequence[SlidingAxis]]:
    """Pad an image first where the HAL does not: by as much as a window, or by less."""
    if all(min(axis.pads) >= 0 and max(axis.pads) < axis.extent for axis in sliding):
        return image, sliding
    padded = pad(draft, image, [(0, 0), (0, 0), *(axis.pads for axis in sliding)])
    return padded, [axis._replace(pads=(0, 0)) for axis in sliding]


def _conv_transpose(node: OnnxNode) -> Value:
    value, filter_, draft = node.input(0), node.input(1), node.draft
    if value.rank not in (3, 4) or filter_.rank != value.rank:
        raise node.refuse(f"a transposed convolution of rank {value.rank}")
    kernel, groups = filter_.shape[2:], node.attribute("group", 1)
    if groups > 1 or any(axis.dilation > 1 for axis in _unpadded(node, kernel)):
        raise node.refuse("a transposed convolution of groups, or with dilation")
    height, width = of_image(_cut_off(node, value, kernel))
    channels, depth = filter_.shape[:2]
    if channels != value.shape[1]:
        raise InvalidArgumentError(f"{value.shape[1]} channels for {channels} filters")
    filter_ = image_filter(draft, filter_)
    bias = node.input(2) if node.has(2) else None
    if bias is None:
        bias = draft.constant(np.zeros(depth, value.dtype))
    (left, right), (top, bottom) = width.pads, height.pads
    moved = filter_of(draft, filter_, (1, 2, 3, 0), 0)
    numbers = [max(left, 0), right, max(top, 0), bottom]
    numbers += [width.stride, height.stride, 0, True]
    result = draft.emit(
        Op.TRANSPOSE_CONV_2D, [as_image(draft, value), moved, bias, *numbers]
    )
    if min(left, top) < 0:
        raise node.refuse("padding that adds elements before the first one")
    return of_rank(draft, result, value.rank)


def _cut_off(node: OnnxNode, value: Value, kernel: Sequence[int]) -> list[SlidingAxis]:
    """Return with pads what is cut off each axis; negative to add behind."""
    axes, rank = _unpadded(node, kernel), len(kernel)
    extra = node.attribute("output_padding", [0] * rank)
    if len(extra) != rank or any(not 0 <= n < 1 << 16 for n in extra):
        raise InvalidArgumentError(f"output_padding of {extra}")
    wanted = node.attribute("output_shape")
    mode, sizes = node.attribute("auto_pad", "NOTSET"), value.shape[2:]
    if wanted is None and mode in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [n * axis.stride for n, axis in zip(sizes, axes, strict=True)]
    pads = []
    if wanted is None:
        axes = sliding_of(node, value, kernel)
        pads = [axis.pads for axis in axes]
    else:
        rows = zip(axes, sizes, extra, list(wanted)[-rank:], strict=True)
        for axis, size, more, length in rows:
            total = (size - 1) * axis.stride + axis.extent + more - length
            less = total // 2 if total > 0 else 0
            rest = total - less
            pads.append(
                (less, rest) if mode == "SAME_UPPER" or total <= 0 else (rest, less)
            )
    cut = zip(axes, pads, extra, strict=True)
    return [axis._replace(pads=(a, b - more)) for axis, (a, b), more in cut]


def product(draft: Composer, first: Value, second: Value) -> Value:
    """Return the product of two stacks of matrices, as NumPy's ``matmul``."""
    if not first.rank or not second.rank:
        raise InvalidArgumentError("a product of scalars")
    one = draft.reshape(first, (1, *first.shape)) if first.rank == 1 else first
    two = draft.reshape(second, (*second.shape, 1)) if second.rank == 1 else second
    lines, inner = one.shape[-2:]
    if inner != two.shape[-2]:
        raise InvalidArgumentError(
            f"{list(first.shape)} and {list(second.shape)} do not multiply"
        )
    try:
        outer = np.broadcast_shapes(one.shape[:-2], two.shape[:-2])
    except ValueError:
        raise InvalidArgumentError("the stacks do not broadcast") from None
    columns = two.shape[-1]
    shape = (
        *outer,
        *([lines] if first.rank > 1 else []),
        *([columns] if second.rank > 1 else []),
    )
    if two.rank == 2:
        rows = draft.reshape(one, (math.prod(one.shape[:-1]), inner))
        if two.is_constant and rows.type != I32:
            weights = filter_of(draft, two, (1, 0), 0)
            return draft.reshape(draft.connected(rows, weights), shape)
        flat = draft.emit(Op.BATCH_MATMUL, [rows, two, False, False])
        return draft.reshape(flat, shape)
    count = math.prod(outer)
    stacks = [
        draft.reshape(
            draft.expand(value, (*outer, *value.shape[-2:])), (count, *value.shape[-2:])
        )
        for value in (one, two)
    ]
    result = draft.emit(Op.BATCH_MATMUL, [*stacks, False, False])
    return draft.reshape(result, shape)


def _gemm(node: OnnxNode) -> Value:
    first, second, draft = node.input(0), node.input(1), node.draft
    if first.rank != 2 or second.rank != 2:
        raise InvalidArgumentError("Gemm of what are no matrices")
    alpha, beta = node.attribute("alpha", 1.0), node.attribute("beta", 1.0)
    if node.attribute("transA", 0):
        first = transpose(draft, first, (1, 0))
    is_transposed = bool(node.attribute("transB", 0))
    depth = second.shape[1 if is_transposed else 0]
    units = second.shape[0 if is_transposed else 1]
    if first.shape[1] != depth:
        raise InvalidArgumentError(f"{list(first.shape)} by {list(second.shape)}")
    rest = node.input(2) if node.has(2) and beta else None
    weights = second if is_transposed else filter_of(draft, second, (1, 0), 0)
    bias = None
    is_plain = rest is not None and rest.is_constant and alpha == beta == 1.0
    if rest is not None and is_plain and rest.shape in ((units,), (1, units)):
        bias, rest = draft.reshape(rest, (units,)), None
    if first.type == I32:
        weights = transpose(draft, weights, (1, 0))
        result = draft.emit(Op.BATCH_MATMUL, [first, weights, False, False])
    else:
        result = draft.connected(first, weights, bias)
    if alpha != 1.0:
        result = draft.mul(result, alpha)
    if rest is not None:
        result = draft.add(result, rest if beta == 1.0 else draft.mul(rest, beta))
    return result


CONVERTERS: dict[str, Converter] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MatMul": lambda n: product(n.draft, n.input(0), n.input(1)),
    "Gemm": _gemm,
}
