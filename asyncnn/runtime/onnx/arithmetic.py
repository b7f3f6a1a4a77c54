"""Arithmetic, comparisons, logic, casts, and what selects by conditions."""

import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.composing import Composer
from asyncnn.runtime.drafting import B8, I32, Q8, Q8S, Value
from asyncnn.runtime.onnx.node import Converter, OnnxNode

BYTES = (Q8, Q8S)


def _arithmetic(type_: Op) -> Converter:
    def convert(node: OnnxNode) -> Value:
        first, second, draft = node.input(0), node.input(1), node.draft
        if first.type in BYTES or (type_ == Op.DIV and first.type == I32):
            raise node.refuse("ONNX's arithmetic of bytes, or division of integers")
        return draft.binary(type_, first, second)

    return convert


def _folded(type_: Op) -> Converter:
    """Return what combines any number of inputs."""

    def convert(node: OnnxNode) -> Value:
        total, *terms = node.inputs()
        for term in terms:
            total = node.draft.binary(type_, total, term)
        return total

    return convert


def _mean(node: OnnxNode) -> Value:
    total = _folded(Op.ADD)(node)
    assert isinstance(total, Value)
    return node.draft.mul(total, 1 / len(node.inputs()))


def _unary(type_: Op) -> Converter:
    def convert(node: OnnxNode) -> Value:
        if node.input(0).type in BYTES:
            raise node.refuse("ONNX's arithmetic of bytes")
        return node.draft.unary(type_, node.input(0))

    return convert


def _compare(type_: Op) -> Converter:
    return lambda node: node.draft.compare(type_, node.input(0), node.input(1))


def _logical(type_: Op) -> Converter:
    return lambda node: node.draft.binary(type_, node.input(0), node.input(1))


def ceil(draft: Composer, value: Value) -> Value:
    """Return the elements rounded up."""
    return draft.chain(value, Op.NEG, Op.FLOOR, Op.NEG)


def _pow(node: OnnxNode) -> Value:
    base, draft = node.input(0), node.draft
    exponent = node.input(1)
    power = exponent.data if exponent.is_constant else None
    if power is not None and power.size == 1 and float(power.reshape(())) == 2.0:
        return draft.mul(base, base)
    if base.type == I32:
        raise node.refuse("a power of integers")
    if exponent.is_constant and exponent.data is not None:
        typed = draft.constant(exponent.data.astype(base.dtype))
    else:
        typed = draft.cast(exponent, base.dtype)
    shape = np.broadcast_shapes(base.shape, typed.shape)
    return draft.binary(Op.POW, draft.expand(base, shape), draft.expand(typed, shape))


def _clip(node: OnnxNode) -> Value:
    value, draft = node.input(0), node.draft
    for index, (name, type_) in enumerate((("min", Op.MAXIMUM), ("max", Op.MINIMUM))):
        if node.has(index + 1):
            value = draft.binary(type_, value, node.input(index + 1))
        elif node.attribute(name) is not None:
            value = draft.binary(type_, value, node.attribute(name))
    return value


def _cast(node: OnnxNode) -> Value:
    value = node.input(0)
    if node.name == "CastLike":
        return node.draft.cast(value, node.input(1).dtype)
    return node.draft.cast(value, node.dtype("to"))


def _if(node: OnnxNode) -> list[Value]:
    """Pick the branch of a condition that is known."""
    condition = node.data(0)
    if condition.size != 1:
        raise InvalidArgumentError("a condition of several elements")
    branch = "then_branch" if condition.reshape(()) else "else_branch"
    return node.run(node.attribute(branch))


def _not(node: OnnxNode) -> Value:
    if node.input(0).type != B8:
        raise node.refuse("a logical operator on numbers")
    return node.draft.unary(Op.LOGICAL_NOT, node.input(0))


CONVERTERS: dict[str, Converter] = {
    "Add": _arithmetic(Op.ADD),
    "Sub": _arithmetic(Op.SUB),
    "Mul": _arithmetic(Op.MUL),
    "Div": _arithmetic(Op.DIV),
    "Max": _folded(Op.MAXIMUM),
    "Min": _folded(Op.MINIMUM),
    "Sum": _folded(Op.ADD),
    "Mean": _mean,
    "Pow": _pow,
    "Clip": _clip,
    "Abs": _unary(Op.ABS),
    "Neg": _unary(Op.NEG),
    "Exp": _unary(Op.EXP),
    "Log": _unary(Op.LOG),
    "Sqrt": _unary(Op.SQRT),
    "Sin": _unary(Op.SIN),
    "Floor": _unary(Op.FLOOR),
    "Ceil": lambda n: ceil(n.draft, n.input(0)),
    "Reciprocal": lambda node: node.draft.reciprocal(node.input(0)),
    "Equal": _compare(Op.EQUAL),
    "Greater": _compare(Op.GREATER),
    "Less": _compare(Op.LESS),
    "GreaterOrEqual": _compare(Op.GREATER_EQUAL),
    "LessOrEqual": _compare(Op.LESS_EQUAL),
    "Xor": _compare(Op.NOT_EQUAL),
    "Not": _not,
    "And": _logical(Op.LOGICAL_AND),
    "Or": _logical(Op.LOGICAL_OR),
    "IsNaN": lambda n: n.draft.compare(Op.NOT_EQUAL, n.input(0), n.input(0)),
    "Where": lambda n: n.draft.select(*map(n.input, range(3))),
    "If": _if,
    "Cast": _cast,
    "CastLike": _cast,
}
