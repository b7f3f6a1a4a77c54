"""Arithmetic, comparisons, activations, normalisations, casts and quantisation.

The HAL broadcasts as TFLite does.
"""

import math

import numpy as np
from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operands import DTYPES, QUANT8_TYPES
from asyncnn.hal.types import FusedActivationFunc, OperandType, OperationType
from asyncnn.runtime.drafting import fixed_form
from asyncnn.runtime.tflite.node import (
    Converter,
    Node,
    constant,
    emitting,
    exact,
    fused_by,
    in_float,
    last_axis,
    like_input,
    option,
)
from asyncnn.runtime.unsupported import UnsupportedOperatorError


def _mul(node: Node) -> None:
    act = node.fused(node.options("MulOptions").FusedActivationFunction())
    operands = [node.read(0), node.read(1)]
    product = math.prod(node.builder.operand(index).scale for index in operands)
    if product and node.target().scale <= product:
        # The HAL multiplies quantised values only if the product is scaled up.
        node.emit_float(OperationType.MUL, [*operands, act])
    else:
        node.emit(OperationType.MUL, [*operands, act])


def _floor_div(node: Node) -> None:
    operands = [node.read(0), node.read(1), node.scalar(FusedActivationFunc.NONE)]
    quotient = node.compute(OperationType.DIV, operands, node.target())
    if node.type != OperandType.TENSOR_INT32:
        quotient = node.compute(OperationType.FLOOR, [quotient], node.target())
    node.store(quotient)


def _floor_mod(node: Node) -> None:
    if node.type != OperandType.TENSOR_INT32:
        raise UnsupportedOperatorError("a remainder of floats is not exact in the HAL")
    dividend, divisor = node.read(0), node.read(1)
    none = node.scalar(FusedActivationFunc.NONE)
    result = divisor
    for type_, first in (
        (OperationType.DIV, dividend),
        (OperationType.MUL, divisor),
        (OperationType.SUB, dividend),
    ):
        result = node.compute(type_, [first, result, none], node.target())
    node.store(result)


def _add_n(node: Node) -> None:
    total, *terms = node.read_all()
    none = node.scalar(FusedActivationFunc.NONE)
    for term in terms:
        total = node.compute(OperationType.ADD, [total, term, none], node.target())
    node.store(total)


def _square(node: Node) -> None:
    operand = node.dequantize(node.read(0))
    none = node.scalar(FusedActivationFunc.NONE)
    node.emit_float(OperationType.MUL, [operand, operand, none])


def _squared_difference(node: Node) -> None:
    operands = [node.dequantize(operand) for operand in node.read_all()]
    none = node.scalar(FusedActivationFunc.NONE)
    like = node.builder.operand(operands[0])
    output = replace(node.target(), type=like.type, scale=0.0, zero_point=0)
    difference = node.compute(OperationType.SUB, [*operands, none], output)
    node.store(node.compute(OperationType.MUL, [difference, difference, none], output))


_EXACT = (
    *("FLOOR", "HARD_SWISH", "PRELU", "MAXIMUM", "MINIMUM"),
    *("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"),
    *("LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT"),
)
"""Same names and inputs, and any output quantisation that TFLite allows."""

_FLOAT = ("ABS", "EXP", "LOG", "NEG", "POW", "RSQRT", "SIN", "SQRT")
"""Same names; quantised inputs are dequantised first."""


def _ceil(node: Node) -> None:
    operand = node.read(0)
    for type_ in (OperationType.NEG, OperationType.FLOOR, OperationType.NEG):
        operand = node.compute(type_, [operand], node.target())
    node.store(operand)


def _cos(node: Node) -> None:
    # As 1 - 2 sin(x / 2)**2, which loses no digits of x.
    none = node.scalar(FusedActivationFunc.NONE)

    def combine(type_: OperationType, first: int, second: int | float) -> int:
        if isinstance(second, float):
            second = node.builder.constant(np.array([second], np.float32))
        return node.compute(type_, [first, second, none], node.target())

    half = combine(OperationType.MUL, node.read(0), 0.5)
    sine = node.compute(OperationType.SIN, [half], node.target())
    square = combine(OperationType.MUL, sine, sine)
    twice = combine(OperationType.MUL, square, -2.0)
    node.store(combine(OperationType.ADD, twice, 1.0))


def _leaky_relu(node: Node) -> None:
    slope = node.options("LeakyReluOptions").Alpha()
    if not math.isfinite(slope):
        raise InvalidArgumentError(f"slope {slope}")
    if node.type in QUANT8_TYPES and slope > 0:
        one = np.array([1], DTYPES[node.type])
        alpha = node.builder.constant(one, node.type, scale=slope)
        node.emit(OperationType.PRELU, [node.read(0), alpha])
    else:
        alpha = node.builder.constant(np.array([slope], np.float32))
        node.emit_float(OperationType.PRELU, [node.read(0), alpha])


def _fixed(node: Node, type_: OperationType, inputs: list[int], act: int = 0) -> None:
    """Add an operation whose quantised output the HAL allows in one form only."""
    output = node.target()
    if output.type in QUANT8_TYPES:
        form = fixed_form(type_, OperandType(output.type))
        output = replace(output, scale=form.scale, zero_point=form.zero_point)
    node.store(node.activate(node.compute(type_, inputs, output), act))


def _softmax(node: Node) -> None:
    inputs = [node.read(0), node.scalar(float(node.options("SoftmaxOptions").Beta()))]
    if node.rank() not in (2, 4):
        inputs.append(last_axis(node))
    _fixed(node, OperationType.SOFTMAX, inputs)


def _l2_normalization(node: Node) -> None:
    activation = node.options("L2NormOptions").FusedActivationFunction()
    inputs = [node.read(0)]
    if node.rank() != 4:
        inputs.append(last_axis(node))
    _fixed(node, OperationType.L2_NORMALIZATION, inputs, activation)


def _convert(node: Node) -> None:
    # Storing adds the operations that lead from one quantisation to the other.
    node.store(node.read(0))


CONVERTERS: dict[str, Converter] = {
    "ADD": exact(OperationType.ADD, 0, 1, fused_by("AddOptions")),
    "SUB": exact(OperationType.SUB, 0, 1, fused_by("SubOptions")),
    "ADD_N": _add_n,
    "MUL": _mul,
    "FLOOR_DIV": _floor_div,
    "FLOOR_MOD": _floor_mod,
    "SQUARE": _square,
    "SQUARED_DIFFERENCE": _squared_difference,
    **{name: exact(OperationType[name]) for name in _EXACT},
    **{name: in_float(OperationType[name]) for name in _FLOAT},
    "RELU": like_input(OperationType.RELU, 0),
    "RELU_N1_TO_1": like_input(OperationType.RELU1, 0),
    "RELU6": like_input(OperationType.RELU6, 0),
    "CEIL": _ceil,
    "COS": _cos,
    "ELU": in_float(OperationType.ELU, 0, constant(1.0)),
    "LEAKY_RELU": _leaky_relu,
    "LOGISTIC": emitting(_fixed, OperationType.LOGISTIC, 0),
    "TANH": emitting(_fixed, OperationType.TANH, 0),
    "SOFTMAX": _softmax,
    "LOG_SOFTMAX": in_float(OperationType.LOG_SOFTMAX, 0, constant(1.0), last_axis),
    "L2_NORMALIZATION": _l2_normalization,
    "LOCAL_RESPONSE_NORMALIZATION": exact(
        OperationType.LOCAL_RESPONSE_NORMALIZATION,
        0,
        option("LocalResponseNormalizationOptions", "Radius"),
        option("LocalResponseNormalizationOptions", "Bias", float),
        option("LocalResponseNormalizationOptions", "Alpha", float),
        option("LocalResponseNormalizationOptions", "Beta", float),
    ),
    "QUANTIZE": _convert,
    "DEQUANTIZE": _convert,
}
