"""Quantised models: QuantizeLinear, DequantizeLinear, QLinear* and integer products.

Dequantised values know the bytes that they stand for. Where a result is quantised, the
operation that computes it is drafted once more on bytes, if the HAL has it so; what was
drafted on floats is then needed by nothing. All else is computed as the standard says:
on real numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import OperationType as Op
from asyncnn.hal.types import SymmPerChannelQuantParams
from asyncnn.runtime.composing import Composer
from asyncnn.runtime.drafting import F32, Q8, Q8C, Q8S, Form, Value
from asyncnn.runtime.onnx.activation import leaky_relu
from asyncnn.runtime.onnx.node import Converter, OnnxNode
from asyncnn.runtime.onnx.on_bytes import as_form, only, quantize
from asyncnn.runtime.onnx.reduction import reduce
from asyncnn.runtime.onnx.weighted import (
    as_image,
    convolved,
    dequantized_constant,
    image_filter,
    of_rank,
    product,
    sliding_of,
)

_BYTES: Mapping[np.dtype[Any], Any] = {np.dtype(np.uint8): Q8, np.dtype(np.int8): Q8S}


def form_of(
    dtype: np.dtype[Any], scale: Value | None, zero_point: Value | None
) -> Form | None:
    """Return the form of bytes with constant parameters, None for all else.

    :raises InvalidArgumentError: if the scale is not positive and finite.
    """
    factor, zero = only(scale), only(zero_point)
    if (
        dtype not in _BYTES
        or factor is None
        or (zero_point is not None and zero is None)
    ):
        return None
    number = float(np.float32(factor[0]))
    if not np.isfinite(number) or number <= 0:
        raise InvalidArgumentError(f"a scale of {number}")
    return Form(_BYTES[dtype], number, 0 if zero is None else int(zero[0]))


Readers: TypeAlias = Mapping[str, Sequence[tuple[Any, int]]]
"""The nodes that read tensors, by name, and at which place."""


def readers_of(graph: Any) -> Readers:
    """Return who reads each tensor of a graph."""
    readers: dict[str, list[tuple[Any, int]]] = {}
    for node in graph.node:
        for place, read in enumerate(node.input):
            readers.setdefault(read, []).append((node, place))
    return readers


def bytes_of(
    readers: Readers, name: str, weights: Mapping[str, Array], dtype: np.dtype[Any]
) -> Form | None:
    """Return the form of an input of bytes that ``readers`` take for the same numbers.

    None if they do not.
    """
    forms: set[Form | None] = set()
    for node, place in readers.get(name, ()):
        known = node.op_type == "DequantizeLinear" and not place
        known |= node.op_type in ("QLinearConv", "QLinearMatMul") and not place
        parts = [weights.get(n) for n in node.input[1:3]]
        if not known or len(parts) < 2 or any(p is None for p in parts):
            forms.add(None)
            continue
        pair = [_constant(part) for part in parts if part is not None]
        forms.add(form_of(dtype, *pair))
    return forms.pop() if len(forms) == 1 else None


def _constant(array: Array) -> Value:
    return Value(array.dtype, array.shape, Form(F32), array)


def _along(draft: Composer, value: Value, rank: int, axis: int) -> Value:
    if value.rank != 1 or value.shape == (1,):
        return value
    shape = [1] * rank
    shape[axis] = value.shape[0]
    return draft.reshape(value, tuple(shape))


def _per_channel(node: OnnxNode, value: Value, axis: int) -> Form | None:
    """Return the form of a constant with a scale for each index of ``axis``."""
    scales = node.input(1)
    zeros = node.input(2).data if node.has(2) else None
    if scales.data is None or value.dtype != np.int8:
        return None
    if scales.data.ndim != 1 or scales.data.shape[0] != value.shape[axis]:
        return None
    if (zeros is not None and zeros.any()) or (node.has(2) and zeros is None):
        return None
    if not (np.isfinite(scales.data).all() and (scales.data > 0).all()):
        raise InvalidArgumentError("a scale that is not positive")
    factors = tuple(float(x) for x in scales.data.astype(np.float32))
    return Form(Q8C, 0.0, 0, SymmPerChannelQuantParams(factors, axis))


def _dequantize_linear(node: OnnxNode) -> Value:
    value, draft = node.input(0), node.draft
    scale = node.input(1)
    zero_point = node.input(2) if node.has(2) else None
    result = scale.dtype
    if node.attribute("output_dtype", 0):
        result = node.dtype("output_dtype")
    axis = node.attribute("axis", 1)
    form = form_of(value.dtype, scale, zero_point)
    if value.data is not None:
        channels = None
        if form is None and scale.rank == 1 and scale.shape[0] > 1:
            channels = _per_channel(node, value, node.axis(axis, value.rank))
        if form or channels:
            codes = draft.quantized(value.data, form or channels or Form(F32))
            return draft.cast(dequantized_constant(codes), result)
        return _known(node, value, axis, result)
    if node.attribute("block_size", 0):
        raise node.refuse("a scale for each block")
    if form is not None:
        codes = as_form(draft, value, form)
        real = draft.unary_to(Op.DEQUANTIZE, codes, Form(F32), np.float32)
        return draft.cast(real, result)
    real = draft.cast(value, np.float32)
    axis = node.axis(axis, value.rank) if scale.rank and scale.shape[0] > 1 else 0
    if zero_point is not None:
        zero = draft.cast(_along(draft, zero_point, value.rank, axis), np.float32)
        real = draft.sub(real, zero)
    scale = draft.cast(_along(draft, scale, value.rank, axis), np.float32)
    return draft.cast(draft.mul(real, scale), result)


def _known(node: OnnxNode, value: Value, axis: int, result: np.dtype[Any]) -> Value:
    """Return a constant with any parameters, per block as well."""
    data, scale = node.data(0), node.data(1)
    zero = node.data(2) if node.has(2) else np.zeros((), data.dtype)
    block = node.attribute("block_size", 0)

    def spread(part: Array) -> Array:
        if part.size == 1:
            return part.reshape(())
        place = node.axis(axis, value.rank)
        if block:
            whole = np.repeat(part, block, place) if part.ndim == data.ndim else part
            return whole[tuple(slice(n) for n in data.shape)]
        if part.shape != (data.shape[place],):
            raise InvalidArgumentError(f"{part.shape} scales for {data.shape}")
        shape = [1] * data.ndim
        shape[place] = -1
        return part.reshape(shape)

    node.draft.allowance.take_elements((1,))
    real = (data.astype(np.float32) - spread(zero).astype(np.float32)) * spread(scale)
    return node.draft.constant(real.astype(result))


def _quantize_linear(node: OnnxNode) -> Value:
    value, scale, draft = node.input(0), node.input(1), node.draft
    zero_point = node.input(2) if node.has(2) else None
    dtype = np.dtype(np.uint8)
    if zero_point is not None:
        dtype = zero_point.dtype
    elif node.attribute("output_dtype", 0):
        dtype = node.dtype("output_dtype")
    if node.attribute("block_size", 0) or dtype not in _BYTES:
        raise node.refuse(f"quantisation to {dtype}, or by blocks")
    form = form_of(dtype, scale, zero_point)
    if form is None:
        raise node.refuse("a quantisation that is not constant, or by channels")
    return quantize(draft, value, form, dtype)


def _real(node: OnnxNode, index: int) -> Value:
    """Return input ``index`` of a QLinear operator with its scale and zero point."""
    value, draft = node.input(index), node.draft
    form = form_of(value.dtype, node.input(index + 1), node.input(index + 2))
    if form is not None:
        if value.data is not None:
            return dequantized_constant(draft.quantized(value.data, form))
        codes = as_form(draft, value, form)
        return draft.unary_to(Op.DEQUANTIZE, codes, Form(F32), np.float32)
    scale, zero = node.input(index + 1), node.input(index + 2)
    steps = draft.sub(draft.cast(value, np.float32), draft.cast(zero, np.float32))
    return draft.mul(steps, draft.cast(scale, np.float32))


def _stored(node: OnnxNode, real: Value, index: int) -> Value:
    """Return ``real`` quantised by inputs ``index`` and the next one."""
    zero = node.input(index + 1)
    form = form_of(zero.dtype, node.input(index), zero)
    if form is None:
        raise node.refuse("a quantisation that is not constant")
    return quantize(node.draft, real, form, zero.dtype)


def _q_linear_conv(node: OnnxNode) -> Value:
    draft = node.draft
    value, filter_ = _real(node, 0), node.input(3)
    if value.rank not in (3, 4) or filter_.rank != value.rank:
        raise node.refuse(f"a convolution of rank {value.rank}")
    weights = image_filter(draft, _filter(node, filter_))
    bias = None
    if node.has(8):
        scales = node.data(1).reshape(-1) * node.data(4).reshape(-1)
        steps = node.data(8).astype(np.float64)
        bias = draft.constant((steps * scales).astype(np.float32))
    sliding = sliding_of(node, value, filter_.shape[2:])
    groups = node.attribute("group", 1)
    image = as_image(draft, value)
    result = convolved(draft, image, weights, bias, sliding, groups)
    return _stored(node, of_rank(draft, result, value.rank), 6)


def _filter(node: OnnxNode, filter_: Value) -> Value:
    scales, zeros = node.data(4), node.data(5)
    form = form_of(filter_.dtype, node.input(4), node.input(5))
    data = node.data(3)
    if form is not None:
        return dequantized_constant(node.draft.quantized(data, form))
    along = [-1] + [1] * (data.ndim - 1)
    if scales.size != data.shape[0] or zeros.size not in (1, data.shape[0]):
        raise InvalidArgumentError(f"{scales.size} scales for {list(data.shape)}")
    if zeros.any() or data.dtype != np.int8:
        steps = data.astype(np.float32) - zeros.astype(np.float32).reshape(along)
        return node.draft.constant(steps * scales.reshape(along))
    factors = tuple(float(x) for x in scales.reshape(-1))
    channels = Form(Q8C, 0.0, 0, SymmPerChannelQuantParams(factors, 0))
    return dequantized_constant(node.draft.quantized(data, channels))


def _q_linear_pair(compute: Callable[[Composer, Value, Value], Value]) -> Converter:
    return lambda n: _stored(n, compute(n.draft, _real(n, 0), _real(n, 3)), 6)


def _q_linear_unary(compute: Callable[[OnnxNode, Value], Value]) -> Converter:
    return lambda node: _stored(node, compute(node, _real(node, 0)), 3)


def _pooled(node: OnnxNode, value: Value) -> Value:
    return reduce(node.draft, Op.MEAN, value, list(range(2, value.rank)))


_MICROSOFT: dict[str, Converter] = {
    "QLinearAdd": _q_linear_pair(lambda d, x, y: d.binary(Op.ADD, x, y)),
    "QLinearMul": _q_linear_pair(lambda d, x, y: d.binary(Op.MUL, x, y)),
    "QLinearSigmoid": _q_linear_unary(lambda n, v: n.draft.unary(Op.LOGISTIC, v)),
    "QLinearLeakyRelu": _q_linear_unary(leaky_relu),
    "QLinearGlobalAveragePool": _q_linear_unary(_pooled),
}

KEEPING_QUANTIZATION = frozenset(
    (
        *("QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul"),
        *_MICROSOFT,
        *("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"),
        *("Slice", "Split", "Concat", "Gather", "Expand", "Tile", "Pad", "MaxPool"),
        *("DepthToSpace", "SpaceToDepth", "If", "Loop", "Scan"),
    )
)
"""Operators that read bytes with scale and zero point; others read plain integers."""

CONVERTERS: dict[str, Converter] = {
    "QuantizeLinear": _quantize_linear,
    "DequantizeLinear": _dequantize_linear,
    "QLinearConv": _q_linear_conv,
    "QLinearMatMul": _q_linear_pair(product),
    **{f"com.microsoft.{name}": found for name, found in _MICROSOFT.items()},
}
