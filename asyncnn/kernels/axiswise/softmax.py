"""SOFTMAX and LOG_SOFTMAX along one axis.

Source: 1.3/types.hal (SOFTMAX, LOG_SOFTMAX).
"""

import math

import numpy as np

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.types import OperationType
from asyncnn.kernels.axiswise.reduction import kept_shape
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    Prepare,
    PreparedKernel,
    Run,
    Scratch,
    stateless,
)
from asyncnn.kernels.numerics.float16 import widen_float16
from asyncnn.kernels.numerics.tables import look_up


def _nothing(inputs: Inputs, outputs: Outputs) -> None:
    """Fill outputs without elements."""


def _prepare_softmax(operation: BoundOperation) -> PreparedKernel:
    """Compute ``exp((x - max) * beta) / sum`` along an axis.

    Quantised: exponentials of the 256 possible differences and their sums are float64,
    the quotient is rounded once, halves up; the output's scale is 1/256.
    """
    operand = operation.input(0)
    shape = operand.require_shape()
    axis = operation.axis(2, len(shape), -1)
    beta = operation.real(1)
    if math.prod(shape) == 0:
        return stateless(_nothing)
    if operand.type in QUANT8_TYPES:
        return _quantized_softmax(operation, axis, beta * operand.scale)
    return widen_float16(operation, _float_softmax(shape, axis, beta))


def _float_softmax(shape: Shape, axis: int, beta: float) -> PreparedKernel:
    factor = np.array(beta, np.float32)

    def instantiate(scratch: Scratch) -> Run:
        slices = scratch.transient(kept_shape(shape, (axis,)), np.float32)

        def run(inputs: Inputs, outputs: Outputs) -> None:
            output = outputs[0]
            np.maximum.reduce(inputs[0], axis, out=slices, keepdims=True)
            np.subtract(inputs[0], slices, out=output)
            np.multiply(output, factor, out=output)
            np.exp(output, out=output)
            np.add.reduce(output, axis, out=slices, keepdims=True)
            np.divide(output, slices, out=output)

        return run

    return instantiate


def _quantized_softmax(
    operation: BoundOperation, axis: int, exponent_step: float
) -> PreparedKernel:
    shape, dtype = operation.shape(0), operation.input(0).dtype
    reduced = kept_shape(shape, (axis,))
    exponentials = np.exp(-exponent_step * np.arange(256))
    levels, half, highest = np.array(256.0), np.array(0.5), np.array(255.0)
    lowest_code = np.array(operation.outputs[0].zero_point, np.int16)

    def instantiate(scratch: Scratch) -> Run:
        largest = scratch.transient(reduced, dtype)
        below = scratch.transient(shape, np.uint8)
        # The difference of two codes wraps around to the right byte, signed or not.
        difference = below.view(dtype)
        weights = scratch.transient(shape, np.float64)
        factors = scratch.transient(reduced, np.float64)

        def run(inputs: Inputs, outputs: Outputs) -> None:
            np.maximum.reduce(inputs[0], axis, out=largest, keepdims=True)
            np.subtract(largest, inputs[0], out=difference)
            look_up(exponentials, below, weights)
            np.add.reduce(weights, axis, out=factors, keepdims=True)
            np.divide(levels, factors, out=factors)
            np.multiply(weights, factors, out=weights)
            np.add(weights, half, out=weights)
            np.minimum(weights, highest, out=weights)
            np.copyto(below, weights, casting="unsafe")
            np.add(below, lowest_code, out=outputs[0], casting="unsafe")

        return run

    return instantiate


def _prepare_log_softmax(operation: BoundOperation) -> PreparedKernel:
    """Compute ``(x - max) * beta - log(sum(exp((x - max) * beta)))`` along an axis."""
    shape = operation.shape(0)
    axis = operation.axis(2, len(shape))
    beta = np.array(operation.real(1), np.float32)
    if math.prod(shape) == 0:
        return stateless(_nothing)

    def instantiate(scratch: Scratch) -> Run:
        slices = scratch.transient(kept_shape(shape, (axis,)), np.float32)
        exponentials = scratch.transient(shape, np.float32)

        def run(inputs: Inputs, outputs: Outputs) -> None:
            output = outputs[0]
            np.maximum.reduce(inputs[0], axis, out=slices, keepdims=True)
            np.subtract(inputs[0], slices, out=output)
            np.multiply(output, beta, out=output)
            np.exp(output, out=exponentials)
            np.add.reduce(exponentials, axis, out=slices, keepdims=True)
            np.log(slices, out=slices)
            np.subtract(output, slices, out=output)

        return run

    return widen_float16(operation, instantiate)


KERNELS: dict[OperationType, Prepare] = {
    OperationType.SOFTMAX: _prepare_softmax,
    OperationType.LOG_SOFTMAX: _prepare_log_softmax,
}
