"""Activations: the HAL's, and the others as their formulas."""

import numpy as np

from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.axes import MAX_RANK
from asyncnn.runtime.drafting import F16, F32, Value
from asyncnn.runtime.onnx.node import Converter, OnnxNode

_SELU = 1.67326319217681884765625, 1.05070102214813232421875


def _relu(node: OnnxNode) -> Value:
    value = node.input(0)
    if value.type not in (F16, F32):
        return node.draft.binary(Op.MAXIMUM, value, 0)
    return node.draft.unary(Op.RELU, value)


def leaky_relu(node: OnnxNode, value: Value) -> Value:
    """Return a value whose negative elements are small, as the node says."""
    return node.draft.binary(Op.PRELU, value, node.attribute("alpha", 0.01))


def _selu(node: OnnxNode) -> Value:
    alpha, gamma = node.attribute("alpha", _SELU[0]), node.attribute("gamma", _SELU[1])
    return node.draft.mul(node.draft.unary(Op.ELU, node.input(0), alpha), gamma)


def _celu(node: OnnxNode) -> Value:
    alpha, draft = node.attribute("alpha", 1.0), node.draft
    scaled = draft.mul(node.input(0), 1 / alpha)
    return draft.mul(draft.unary(Op.ELU, scaled, 1.0), alpha)


def _hard_sigmoid(node: OnnxNode) -> Value:
    draft = node.draft
    slope, offset = node.attribute("alpha", 0.2), node.attribute("beta", 0.5)
    return draft.clamp(draft.add(draft.mul(node.input(0), slope), offset), 0.0, 1.0)


def _softsign(node: OnnxNode) -> Value:
    value, draft = node.input(0), node.draft
    return draft.div(value, draft.add(draft.unary(Op.ABS, value), 1.0))


def _swish(node: OnnxNode) -> Value:
    value, draft = node.input(0), node.draft
    scaled = value
    if node.attribute("alpha", 1.0) != 1.0:
        scaled = draft.mul(value, node.attribute("alpha", 1.0))
    return draft.mul(value, draft.unary(Op.LOGISTIC, scaled))


def axiswise(node: OnnxNode, type_: Op, *scalars: float) -> Value:
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


def _hardmax(node: OnnxNode) -> Value:
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
    "PRelu": lambda n: n.draft.binary(Op.PRELU, n.input(0), n.input(1)),
    "LeakyRelu": lambda n: leaky_relu(n, n.input(0)),
    "Elu": lambda n: n.draft.unary(Op.ELU, n.input(0), n.attribute("alpha", 1.0)),
    "Selu": _selu,
    "Celu": _celu,
    "HardSigmoid": _hard_sigmoid,
    "Sigmoid": _unary(Op.LOGISTIC),
    "Tanh": _unary(Op.TANH),
    "HardSwish": _unary(Op.HARD_SWISH),
    "Softsign": _softsign,
    "Swish": _swish,
    "Softmax": lambda n: axiswise(n, Op.SOFTMAX, 1.0),
    "LogSoftmax": lambda n: axiswise(n, Op.LOG_SOFTMAX, 1.0),
    "Hardmax": _hardmax,
}
