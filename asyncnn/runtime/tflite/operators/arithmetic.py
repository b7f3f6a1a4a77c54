"""Arithmetic of several tensors, which the HAL broadcasts as TFLite does."""

import math

from msgspec.structs import replace

from asyncnn.hal.types import FusedActivationFunc, OperandType, OperationType
from asyncnn.runtime.tflite.errors import UnsupportedOperatorError
from asyncnn.runtime.tflite.node import Converter, Node

_ARITHMETIC = {
    "ADD": (OperationType.ADD, "AddOptions"),
    "SUB": (OperationType.SUB, "SubOptions"),
}


def _arithmetic(type_: OperationType, options: str) -> Converter:
    def convert(node: Node) -> None:
        act = node.fused(node.options(options).FusedActivationFunction())
        node.emit(type_, [node.read(0), node.read(1), act])

    return convert


def _mul(node: Node) -> None:
    act = node.fused(node.options("MulOptions").FusedActivationFunction())
    operands = [node.read(0), node.read(1)]
    product = math.prod(node.builder.operand(index).scale for index in operands)
    if product and node.target().scale <= product:
        # The HAL multiplies quantised values only if the product is scaled up.
        node.emit_float(OperationType.MUL, [*operands, act])
    else:
        node.emit(OperationType.MUL, [*operands, act])


def _div(node: Node) -> None:
    if node.type == OperandType.TENSOR_INT32:
        raise UnsupportedOperatorError("TFLite rounds quotients to 0, the HAL down")
    act = node.fused(node.options("DivOptions").FusedActivationFunction())
    node.emit_float(OperationType.DIV, [node.read(0), node.read(1), act])


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


CONVERTERS: dict[str, Converter] = {
    **{name: _arithmetic(*entry) for name, entry in _ARITHMETIC.items()},
    "ADD_N": _add_n,
    "MUL": _mul,
    "DIV": _div,
    "FLOOR_DIV": _floor_div,
    "FLOOR_MOD": _floor_mod,
    "SQUARE": _square,
    "SQUARED_DIFFERENCE": _squared_difference,
}
