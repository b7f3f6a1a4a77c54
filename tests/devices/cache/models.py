"""Models whose weights are worth a data cache, and what they compute."""

import numpy as np

from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import FusedActivationFunc, Operand, OperandType, OperationType
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel

F32, U8 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_QUANT8_ASYMM
NONE = FusedActivationFunc.NONE

INPUTS, UNITS = 128, 160


def image(quantized: bool, batch: int = 1, seed: int = 0) -> Array:
    """What the dense models take."""
    rng = np.random.default_rng(seed)
    if quantized:
        return rng.integers(0, 256, (batch, INPUTS), np.uint8)
    return rng.standard_normal((batch, INPUTS), np.float32)


def dense(quantized: bool, seed: int = 0, batch: int = 1) -> NamedModel:
    """One fully connected layer; a ``batch`` of 0 is left to the request."""
    rng = np.random.default_rng(seed)
    builder = ModelBuilder()
    if quantized:
        x = builder.input("x", U8, (batch, INPUTS), scale=0.5, zero_point=128)
        codes = rng.integers(0, 256, (UNITS, INPUTS), np.uint8)
        weights = builder.constant(codes, U8, scale=0.25, zero_point=120)
        sums = rng.integers(-1000, 1000, UNITS, np.int32)
        bias = builder.constant(sums, scale=0.125)
        result = Operand(U8, (batch, UNITS), scale=16.0, zero_point=100)
    else:
        x = builder.input("x", F32, (batch, INPUTS))
        weights = builder.constant(rng.standard_normal((UNITS, INPUTS), np.float32))
        bias = builder.constant(rng.standard_normal(UNITS, np.float32))
        result = Operand(F32, (batch, UNITS))
    inputs = [x, weights, bias, builder.scalar(NONE)]
    y = builder.operation(OperationType.FULLY_CONNECTED, inputs, result)
    builder.output(y, "y")
    return builder.build()


def folding() -> NamedModel:
    """``y = x + (a * b)``, of which the product is known when it is prepared."""
    builder = ModelBuilder()
    rng = np.random.default_rng(7)
    x = builder.input("x", F32, (1, INPUTS, INPUTS))
    shape = Operand(F32, (1, INPUTS, INPUTS))
    a, b = (
        builder.constant(rng.standard_normal((1, INPUTS, INPUTS), np.float32))
        for _ in range(2)
    )
    none = builder.scalar(NONE)
    product = builder.operation(OperationType.MUL, [a, b, none], shape)
    builder.output(builder.operation(OperationType.ADD, [x, product, none], shape), "y")
    return builder.build()


def repeated(operation: OperationType, times: int = 100) -> NamedModel:
    """``y = x`` with 1.5 added to it, or multiplied by it, again and again."""
    builder = ModelBuilder()
    value = builder.input("x", F32, (1,))
    other = builder.constant(np.array([1.01], np.float32))
    none = builder.scalar(NONE)
    for _ in range(times):
        value = builder.operation(operation, [value, other, none], Operand(F32, (1,)))
    builder.output(value, "y")
    return builder.build()
