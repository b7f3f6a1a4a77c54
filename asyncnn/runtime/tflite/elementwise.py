"""Arithmetic, comparisons, activations, normalisations, casts and quantisation.

The HAL broadcasts as TFLite does.
"""

import math

import numpy as np
from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operands import DTYPES, QUANT8_TYPES
from asyncnn.hal.types import OperandType, OperationType
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
    of_codes,
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


_EXACT = (
    *("FLOOR", "HARD_SWISH", "PRELU"),
    *("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"),
    *("LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT"),
)
"""Same names and inputs, and any output quantisation that TFLite allows."""

_FLOAT = ("ABS", "EXP", "POW", "RSQRT", "SIN", "SQRT")
"""Same names; quantised inputs are dequantised first."""


def _log(node: Node) -> None:
    value = node.real(0)
    if node.type in QUANT8_TYPES:  # of codes below 0, too, LiteRT has the least one
        value = node.draft.binary(OperationType.MAXIMUM, value, 0.0)
    node.put(node.draft.unary(OperationType.LOG, value))


def _neg(node: Node) -> None:
    if any(node.tensor(0).zero_points):
        raise UnsupportedOperatorError("of codes, whatever stands for 0")
    of_codes(in_float(OperationType.NEG))(node)


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
    "MUL": _mul,
    **{name: exact(OperationType[name]) for name in _EXACT},
    **{name: in_float(OperationType[name]) for name in _FLOAT},
    **{name: of_codes(exact(OperationType[name])) for name in ("MAXIMUM", "MINIMUM")},
    "LOG": _log,
    "NEG": _neg,
    "RELU": like_input(OperationType.RELU, 0),
    "RELU_N1_TO_1": like_input(OperationType.RELU1, 0),
    "RELU6": like_input(OperationType.RELU6, 0),
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
