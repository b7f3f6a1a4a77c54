"""Normalisation along axes: L2, local response, instance; SOFTMAX and LOG_SOFTMAX.

Floats are computed in float32, float16 rounded once at the end. Codes of SOFTMAX and
L2_NORMALIZATION are read as real values, and results rounded to the fixed output scale
that the HAL demands (1/256 and 1/128).

Source: 1.3/types.hal (L2_NORMALIZATION, LOCAL_RESPONSE_NORMALIZATION,
INSTANCE_NORMALIZATION, SOFTMAX, LOG_SOFTMAX); L2Normalization.cpp for the smallest
norm.
"""

import math

import numpy as np

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import Array, BoundOperation, Shape
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    Prepare,
    PreparedKernel,
    Run,
    Scratch,
    stateless,
    with_scratch,
)
from asyncnn.kernels.numerics import code_limits, code_store, look_up, widen_float16
from asyncnn.kernels.reduction import kept_shape

_SMALLEST_NORM = 1e-6
"""A slice of zeros is divided by this, and stays zero."""


def _prepare_l2(operation: BoundOperation) -> PreparedKernel:
    """Divide each slice along an axis by its Euclidean norm.

    Quantised: the output's scale is 1/128; norms are float64, rounded once.
    """
    shape = operation.shape(0)
    axis = operation.axis(1, len(shape), -1)
    if operation.input(0).type in QUANT8_TYPES:
        return _quantized_l2(operation, axis)
    smallest = np.array(_SMALLEST_NORM, np.float32)

    def run(norms: Array, inputs: Inputs, outputs: Outputs) -> None:
        np.multiply(inputs[0], inputs[0], out=outputs[0])
        np.add.reduce(outputs[0], axis, out=norms, keepdims=True)
        np.sqrt(norms, out=norms)
        np.maximum(norms, smallest, out=norms)
        np.divide(inputs[0], norms, out=outputs[0])

    return widen_float16(
        operation, with_scratch(run, (kept_shape(shape, (axis,)), np.float32))
    )


def _quantized_l2(operation: BoundOperation, axis: int) -> PreparedKernel:
    operand, output = operation.input(0), operation.outputs[0]
    shape = operand.require_shape()
    zero_point = np.array(operand.zero_point, np.int16)
    bounds = code_limits(output.dtype)
    one, codes_per_unit = np.array(1.0), np.array(128.0)

    def instantiate(scratch: Scratch) -> Run:
        values = scratch.transient(shape, np.float64)
        squares = scratch.transient(shape, np.float64)
        factors = scratch.transient(kept_shape(shape, (axis,)), np.float64)
        store = code_store(scratch, shape, np.float64, output.zero_point, bounds)

        def run(inputs: Inputs, outputs: Outputs) -> None:
            np.subtract(inputs[0], zero_point, out=values)
            np.multiply(values, values, out=squares)
            np.add.reduce(squares, axis, out=factors, keepdims=True)
            np.sqrt(factors, out=factors)
            np.maximum(factors, one, out=factors)
            np.divide(codes_per_unit, factors, out=factors)
            np.multiply(values, factors, out=values)
            store(values, outputs[0])

        return run

    return instantiate


def _prepare_local_response(operation: BoundOperation) -> PreparedKernel:
    """Compute ``x * (bias + alpha * s) ** -beta``.

    ``s`` sums the squares of the elements at most ``radius`` away along an axis.
    """
    shape = operation.shape(0)
    axis = operation.axis(5, len(shape), -1)
    radius = min(operation.integer(1), max(shape[axis] - 1, 0))
    bias, alpha, exponent = (
        np.array(sign * operation.real(index), np.float32)
        for index, sign in ((2, 1), (3, 1), (4, -1))
    )
    before = (slice(None),) * axis
    shifts = [
        ((*before, slice(distance, None)), (*before, slice(None, -distance)))
        for distance in range(1, radius + 1)
    ]

    def instantiate(scratch: Scratch) -> Run:
        squares = scratch.transient(shape, np.float32)
        sums = scratch.transient(shape, np.float32)
        neighbours = [
            (sums[later], sums[earlier], squares[later], squares[earlier])
            for later, earlier in shifts
        ]

        def run(inputs: Inputs, outputs: Outputs) -> None:
            np.multiply(inputs[0], inputs[0], out=squares)
            np.copyto(sums, squares)
            for later_sum, earlier_sum, later, earlier in neighbours:
                np.add(later_sum, earlier, out=later_sum)
                np.add(earlier_sum, later, out=earlier_sum)
            np.multiply(sums, alpha, out=sums)
            np.add(sums, bias, out=sums)
            np.power(sums, exponent, out=sums)
            np.multiply(inputs[0], sums, out=outputs[0])

        return run

    return widen_float16(operation, instantiate)


def _prepare_instance(operation: BoundOperation) -> PreparedKernel:
    """Compute ``(x - mean) * gamma / sqrt(variance + epsilon) + beta``.

    Mean and variance are of one channel of one image.
    """
    shape = operation.shape(0)
    axes = (2, 3) if operation.boolean(4) else (1, 2)
    gamma, beta, epsilon, count = (
        np.array(value, np.float32)
        for value in (
            *map(operation.real, (1, 2, 3)),
            math.prod(shape[axis] for axis in axes),
        )
    )

    def run(squares: Array, moments: Array, inputs: Inputs, outputs: Outputs) -> None:
        output = outputs[0]
        np.add.reduce(inputs[0], axes, out=moments, keepdims=True)
        np.divide(moments, count, out=moments)
        np.subtract(inputs[0], moments, out=output)
        np.multiply(output, output, out=squares)
        np.add.reduce(squares, axes, out=moments, keepdims=True)
        np.divide(moments, count, out=moments)
        np.add(moments, epsilon, out=moments)
        np.sqrt(moments, out=moments)
        np.divide(gamma, moments, out=moments)
        np.multiply(output, moments, out=output)
        np.add(output, beta, out=output)

    return widen_float16(
        operation,
        with_scratch(run, (shape, np.float32), (kept_shape(shape, axes), np.float32)),
    )


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


def _float_softmax(
    shape: Shape, axis: int, beta: float, *, is_log: bool = False
) -> PreparedKernel:
    factor = np.array(beta, np.float32)

    def instantiate(scratch: Scratch) -> Run:
        slices = scratch.transient(kept_shape(shape, (axis,)), np.float32)
        powers = scratch.transient(shape, np.float32) if is_log else None

        def run(inputs: Inputs, outputs: Outputs) -> None:
            output = outputs[0]
            np.maximum.reduce(inputs[0], axis, out=slices, keepdims=True)
            np.subtract(inputs[0], slices, out=output)
            np.multiply(output, factor, out=output)
            exponentials = np.exp(output, out=output if powers is None else powers)
            np.add.reduce(exponentials, axis, out=slices, keepdims=True)
            if powers is None:
                np.divide(output, slices, out=output)
            else:
                np.log(slices, out=slices)
                np.subtract(output, slices, out=output)

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
    axis, beta = operation.axis(2, len(shape)), operation.real(1)
    if math.prod(shape) == 0:
        return stateless(_nothing)
    return widen_float16(operation, _float_softmax(shape, axis, beta, is_log=True))


KERNELS: dict[OperationType, Prepare] = {
    OperationType.L2_NORMALIZATION: _prepare_l2,
    OperationType.LOCAL_RESPONSE_NORMALIZATION: _prepare_local_response,
    OperationType.INSTANCE_NORMALIZATION: _prepare_instance,
    OperationType.SOFTMAX: _prepare_softmax,
    OperationType.LOG_SOFTMAX: _prepare_log_softmax,
}
