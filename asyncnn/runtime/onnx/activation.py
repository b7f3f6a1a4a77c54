"""Activations: those of the HAL, and the others as their formulas."""

import numpy as np

from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.axes import MAX_RANK
from asyncnn.runtime.onnx.approximation import error_function, log_of_1_and
from asyncnn.runtime.onnx.composing import Composer
from asyncnn.runtime.onnx.elementwise import in_float32
from asyncnn.runtime.onnx.emitter import F16, F32, I32, Value
from asyncnn.runtime.onnx.node import Converter, Node

_SELU = 1.67326319217681884765625, 1.05070102214813232421875


def _relu(node: Node) -> Value:
    value = node.input(0)
    if value.type not in (F16, F32):
        return node.draft.binary(Op.MAXIMUM, value, 0)
    return node.draft.unary(Op.RELU, value)


def _prelu(node: Node) -> Value:
    value, slope, draft = node.input(0), node.input(1), node.draft
    if value.type == I32:
        return leaky(draft, value, slope)
    return draft.binary(Op.PRELU, value, slope)


def leaky(draft: Composer, value: Value, slope: Value | float) -> Value:
    """Return elements above zero, and ``slope`` times those below."""
    is_below = draft.compare(Op.LESS, value, 0)
    return draft.select(is_below, draft.mul(value, slope), value)


def _leaky_relu(node: Node) -> Value:
    alpha = node.attribute("alpha", 0.01)
    return node.draft.binary(Op.PRELU, node.input(0), alpha)


def _elu(node: Node) -> Value:
    return node.draft.unary(Op.ELU, node.input(0), node.attribute("alpha", 1.0))


def _selu(node: Node) -> Value:
    alpha, gamma = node.attribute("alpha", _SELU[0]), node.attribute("gamma", _SELU[1])
    return node.draft.mul(node.draft.unary(Op.ELU, node.input(0), alpha), gamma)


def _celu(node: Node) -> Value:
    alpha, draft = node.attribute("alpha", 1.0), node.draft
    scaled = draft.mul(node.input(0), 1 / alpha)
    return draft.mul(draft.unary(Op.ELU, scaled, 1.0), alpha)


def clipped(draft: Composer, value: Value, low: float, high: float) -> Value:
    """Return the elements within ``low`` and ``high``."""
    return draft.binary(Op.MINIMUM, draft.binary(Op.MAXIMUM, value, low), high)


def _hard_sigmoid(node: Node) -> Value:
    draft = node.draft
    slope, offset = node.attribute("alpha", 0.2), node.attribute("beta", 0.5)
    return clipped(draft, draft.add(draft.mul(node.input(0), slope), offset), 0.0, 1.0)


def softplus(draft: Composer, value: Value) -> Value:
    """Return log(1 + exp(x)), as max(x, 0) + log(1 + exp(-|x|)): it cannot overflow."""
    tail = draft.chain(value, Op.ABS, Op.NEG, Op.EXP)
    limited = draft.binary(Op.MAXIMUM, value, 0.0)
    return draft.add(limited, log_of_1_and(draft, tail))


def _softplus(node: Node) -> Value:
    return softplus(node.draft, node.input(0))


def _softsign(node: Node) -> Value:
    value, draft = node.input(0), node.draft
    return draft.div(value, draft.add(draft.unary(Op.ABS, value), 1.0))


def _mish(node: Node) -> Value:
    value, draft = node.input(0), node.draft
    return draft.mul(value, draft.unary(Op.TANH, softplus(draft, value)))


def _swish(node: Node) -> Value:
    value, draft = node.input(0), node.draft
    scaled = value
    if node.attribute("alpha", 1.0) != 1.0:
        scaled = draft.mul(value, node.attribute("alpha", 1.0))
    return draft.mul(value, draft.unary(Op.LOGISTIC, scaled))


def _gelu(node: Node) -> Value:
    draft = node.draft

    def exact(value: Value) -> Value:
        error = error_function(draft, draft.mul(value, float(np.sqrt(0.5))))
        return draft.mul(draft.mul(value, 0.5), draft.add(error, 1.0))

    def by_tanh(value: Value) -> Value:
        cube = draft.mul(draft.mul(value, value), value)
        inner = draft.add(value, draft.mul(cube, 0.044715))
        tanh = draft.unary(Op.TANH, draft.mul(inner, float(np.sqrt(2 / np.pi))))
        return draft.mul(draft.mul(value, 0.5), draft.add(tanh, 1.0))

    is_exact = node.attribute("approximate", "none") == "none"
    return in_float32(draft, node.input(0), exact if is_exact else by_tanh)


def _thresholded_relu(node: Node) -> Value:
    value, draft = node.input(0), node.draft
    is_above = draft.compare(Op.GREATER, value, node.attribute("alpha", 1.0))
    return draft.select(is_above, value, 0.0, like=value)


def _shrink(node: Node) -> Value:
    value, draft = node.input(0), node.draft
    limit, bias = node.attribute("lambd", 0.5), node.attribute("bias", 0.0)
    below = draft.compare(Op.LESS, value, -limit)
    above = draft.compare(Op.GREATER, value, limit)
    upper = draft.select(above, draft.sub(value, bias), 0.0, like=value)
    return draft.select(below, draft.add(value, bias), upper)


def axiswise(node: Node, type_: Op, *scalars: float) -> Value:
    """Draft an operation along an axis, with the rules of ONNX for it."""
    value, draft = node.input(0), node.draft
    if node.opset < 13:
        # Older ones work on a matrix, of all axes from the given one on.
        axis = node.axis(node.attribute("axis", 1), value.rank)
        shape = value.shape
        rows = int(np.prod(shape[:axis])), int(np.prod(shape[axis:]))
        flat = draft.emit(type_, [draft.reshape(value, rows), *scalars, 1])
        return draft.reshape(flat, shape)
    axis = node.axis(node.attribute("axis", -1), value.rank)
    if value.rank <= MAX_RANK:
        return draft.emit(type_, [value, *scalars, axis], shape=value.shape)
    merged = draft.as_three(value, axis)
    return draft.reshape(draft.emit(type_, [merged, *scalars, 1]), value.shape)


def _softmax(node: Node) -> Value:
    return axiswise(node, Op.SOFTMAX, 1.0)


def _log_softmax(node: Node) -> Value:
    return axiswise(node, Op.LOG_SOFTMAX, 1.0)


def _hardmax(node: Node) -> Value:
    value, draft = node.input(0), node.draft
    axis = node.axis(node.attribute("axis", -1 if node.opset > 12 else 1), value.rank)
    shape = value.shape
    if node.opset < 13:
        rows = int(np.prod(shape[:axis])), int(np.prod(shape[axis:])), 1
        three = draft.reshape(value, rows)
    else:
        three = draft.as_three(value, axis)
    where = draft.emit(
        Op.ARGMAX, [three, 1], draft.constant(np.zeros(1, np.int32)).form
    )
    outer, length, inner = three.shape
    steps = np.arange(length, dtype=np.int32).reshape(1, length, 1)
    is_there = draft.compare(
        Op.EQUAL, draft.reshape(where, (outer, 1, inner)), draft.constant(steps)
    )
    return draft.reshape(draft.cast(is_there, value.dtype), shape)


def _unary(type_: Op) -> Converter:
    return lambda node: node.draft.unary(type_, node.input(0))


CONVERTERS: dict[str, Converter] = {
    "Relu": _relu,
    "PRelu": _prelu,
    "LeakyRelu": _leaky_relu,
    "Elu": _elu,
    "Selu": _selu,
    "Celu": _celu,
    "HardSigmoid": _hard_sigmoid,
    "Mish": _mish,
    "Sigmoid": _unary(Op.LOGISTIC),
    "Tanh": _unary(Op.TANH),
    "HardSwish": _unary(Op.HARD_SWISH),
    "Softplus": _softplus,
    "Softsign": _softsign,
    "Swish": _swish,
    "Gelu": _gelu,
    "Shrink": _shrink,
    "ThresholdedRelu": _thresholded_relu,
    "Softmax": _softmax,
    "LogSoftmax": _log_softmax,
    "Hardmax": _hardmax,
}
