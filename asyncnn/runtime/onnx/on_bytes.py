"""Drafts on bytes what a model computes between dequantised and quantised values.

An operation that was drafted on floats is drafted once more, on the bytes that its
inputs stand for, when its result is quantised. Weights and biases follow.
"""

from typing import Any

import numpy as np

from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.composing import Composer
from asyncnn.runtime.drafting import (
    F32,
    FIXED_SCALES,
    Q8,
    Q8C,
    Drafted,
    Form,
    Scalar,
    Value,
    fixed_form,
)
from asyncnn.runtime.onnx.weighted import codes_of
from asyncnn.runtime.unsupported import UnsupportedOperatorError


def only(value: Value | None) -> Array | None:
    """Return the elements of a constant that has one, as a vector."""
    if value is None or value.data is None or value.data.size != 1:
        return None
    return value.data.reshape(-1)


def as_form(draft: Composer, value: Value, form: Form) -> Value:
    """Return bytes taken for other numbers than so far."""
    if value.form == form:
        return value
    if value.data is not None:
        return draft.quantized(value.data, form)
    plain = draft.cast(value, np.float32)
    steps = draft.sub(plain, float(form.zero_point))
    real = draft.mul(steps, form.scale)
    return draft.unary_to(Op.QUANTIZE, real, form, value.dtype)


def quantize(draft: Composer, value: Value, form: Form, dtype: np.dtype[Any]) -> Value:
    """Return ``value`` as bytes of ``form``, computed on bytes if that can be."""
    found = _on_bytes(draft, value, form)
    if found is not None:
        return found
    real = draft.cast(value, np.float32)
    return draft.unary_to(Op.QUANTIZE, real, form, dtype)


_LIKE = frozenset(
    (
        *(Op.RESHAPE, Op.TRANSPOSE, Op.SLICE, Op.STRIDED_SLICE, Op.MAX_POOL_2D),
        *(Op.AVERAGE_POOL_2D, Op.GATHER, Op.DEPTH_TO_SPACE, Op.SPACE_TO_DEPTH),
        *(Op.RESIZE_BILINEAR, Op.RESIZE_NEAREST_NEIGHBOR, Op.TILE, Op.REVERSE),
        *(Op.MEAN, Op.REDUCE_MAX, Op.REDUCE_MIN, Op.RELU),
    )
)
"""Operations whose result on bytes has the form of their input."""

_MOVES = frozenset((Op.RESHAPE, Op.TRANSPOSE, Op.SLICE, Op.STRIDED_SLICE, Op.GATHER))
"""Operations that do nothing but move elements."""

_ROUNDING = frozenset((Op.AVERAGE_POOL_2D, Op.RESIZE_BILINEAR, Op.MEAN))
"""Operations of them that round: to a step of the input, which may be a long one."""

_ANY = frozenset((Op.ADD, Op.SUB, Op.MUL, Op.CONCATENATION, Op.HARD_SWISH))
_WEIGHTED = frozenset(
    (Op.CONV_2D, Op.DEPTHWISE_CONV_2D, Op.GROUPED_CONV_2D, Op.FULLY_CONNECTED)
) | {Op.TRANSPOSE_CONV_2D}


def _on_bytes(draft: Composer, value: Value, form: Form) -> Value | None:
    """Return ``value`` of ``form`` by the operation that computes it, on bytes."""
    operation = value.source.producer
    if operation is None or value.is_constant:
        return None
    codes = codes_of(value)
    if codes is not None:
        return codes if codes.form == form else None
    try:
        found = _drafted(draft, operation, form)
    except UnsupportedOperatorError:
        return None
    if found is None:
        return None
    dtype = np.dtype(np.uint8 if form.type == Q8 else np.int8)
    if found.form != form:
        real = draft.unary_to(Op.DEQUANTIZE, found, Form(F32), np.float32)
        found = draft.unary_to(Op.QUANTIZE, real, form, dtype)
    return found.alias(value.shape, dtype)


def _drafted(draft: Composer, operation: Drafted, form: Form) -> Value | None:
    type_, given = operation.type, list(operation.inputs)
    tensors = [value for value in given if isinstance(value, Value)]
    if type_ in (Op.RELU, Op.MAXIMUM, Op.MINIMUM):
        return _limited(draft, operation, form)
    if type_ in _LIKE or type_ in FIXED_SCALES:
        codes = _codes(draft, tensors[0], form)
        if codes is None or codes.type != form.type:
            return None
        like = codes.form
        if type_ in FIXED_SCALES:
            like = fixed_form(type_, form.type)
        if like != form and type_ in _ROUNDING.union(FIXED_SCALES):
            return None  # it would round twice
        return draft.emit(type_, [codes, *given[1:]], like)
    if type_ in _ANY:
        parts = [_moved_codes(draft, value) for value in tensors]
        known = [part for part in parts if part is not None]
        if len(known) != len(parts) or any(part.type != form.type for part in known):
            return None
        scalars = [value for value in given if isinstance(value, Scalar)]
        if type_ == Op.MUL and known[0].form.scale * known[1].form.scale >= form.scale:
            return None
        return draft.emit(type_, [*known, *scalars], form)
    return _weighted(draft, operation, form) if type_ in _WEIGHTED else None


def _codes(draft: Composer, value: Value, form: Form) -> Value | None:
    """Return the bytes of ``value``: those that it stands for, or of its operation."""
    known = codes_of(value)
    return known if known is not None else _on_bytes(draft, value, form)


def _moved_codes(draft: Composer, value: Value) -> Value | None:
    """Return the bytes of ``value``, which operations may have moved only."""
    codes = codes_of(value)
    operation = value.source.producer
    if codes is not None or operation is None or operation.type not in _MOVES:
        return codes
    source = operation.inputs[0]
    assert isinstance(source, Value)
    codes = _moved_codes(draft, source)
    if codes is None:
        return None
    moved = draft.emit(operation.type, [codes, *operation.inputs[1:]], codes.form)
    return moved.alias(value.shape, moved.dtype)


def _limited(draft: Composer, operation: Drafted, form: Form) -> Value | None:
    """Return elements limited below or above: on bytes, by a limit that is a byte."""
    source, limit = operation.inputs[0], 0.0
    assert isinstance(source, Value)
    if operation.type != Op.RELU:
        bound = operation.inputs[1]
        if not isinstance(bound, Value) or (known := only(bound)) is None:
            return None
        limit = float(known[0])
    codes = _on_bytes(draft, source, form)
    if codes is None:
        known_codes = codes_of(source)
        if known_codes is None or known_codes.type != form.type:
            return None
        codes = known_codes
    dtype = np.uint8 if form.type == Q8 else np.int8
    limits = np.iinfo(dtype)
    steps = round(limit / codes.form.scale) + codes.form.zero_point
    code = np.full((1,), min(max(steps, limits.min), limits.max), dtype)
    type_ = Op.MAXIMUM if operation.type == Op.RELU else operation.type
    return draft.emit(type_, [codes, draft.quantized(code, codes.form)], codes.form)


def _weighted(draft: Composer, operation: Drafted, form: Form) -> Value | None:
    source, filter_, bias = operation.inputs[:3]
    assert isinstance(source, Value)
    assert isinstance(filter_, Value)
    assert isinstance(bias, Value)
    codes, weights = _moved_codes(draft, source), codes_of(filter_)
    if codes is None or weights is None or codes.type != form.type:
        return None
    if weights.data is None or bias.data is None:
        return None
    if operation.type == Op.FULLY_CONNECTED and weights.type == Q8C:
        return None
    own = _typed_weights(draft, weights, codes.type)
    channels = own.form.channels
    factors = np.array(channels.scales if channels else own.form.scale, np.float32)
    scales = np.float32(codes.form.scale) * factors
    with np.errstate(all="ignore"):
        steps = np.rint(bias.data.astype(np.float64) / scales)
    if not (np.abs(steps) < 2**31).all():
        return None
    scale = 0.0 if channels else float(scales)
    rest = Value(
        np.dtype(np.int32),
        bias.shape,
        Form(draft.constant(np.zeros(1, np.int32)).type, scale),
        steps.astype(np.int32),
    )
    return draft.emit(operation.type, [codes, own, rest, *operation.inputs[3:]], form)


def _typed_weights(draft: Composer, weights: Value, type_: Any) -> Value:
    """Return weights of the type that the HAL wants beside inputs of ``type_``."""
    if weights.type in (type_, Q8C):
        return weights
    assert weights.data is not None
    offset = 128 if type_ == Q8 else -128
    dtype = np.uint8 if type_ == Q8 else np.int8
    data = (weights.data.astype(np.int16) + offset).astype(dtype)
    zero = weights.form.zero_point + offset
    return draft.quantized(data, Form(type_, weights.form.scale, zero))
