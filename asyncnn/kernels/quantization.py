"""DEQUANTIZE and QUANTIZE.

Any shape. A code stands for ``(code - zero_point) * scale`` in float32; a real value is
rounded half away from zero and clamped to the type. Per-channel codes have one scale
for each index of their channel axis.

Source: 1.3/types.hal (DEQUANTIZE, QUANTIZE).
"""

import math

import numpy as np

from asyncnn.hal.operations.bound import BoundOperand, BoundOperation
from asyncnn.hal.types import OperationType, SymmPerChannelQuantParams
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    Prepare,
    PreparedKernel,
    Run,
    Scratch,
    stateless,
)
from asyncnn.kernels.numerics import code_limits, code_steps, code_store, unary_lookup

_WORTH_ARITHMETIC = 1024
"""With so many elements, computing float32 values takes less than looking them up."""


def _prepare_dequantize(operation: BoundOperation) -> PreparedKernel:
    """Compute ``(stored - zero_point) * scale`` in float32, rounded to the output."""
    operand = operation.input(0)
    if operand.channel_quant is not None:
        return _dequantize_channels(operation, operand.channel_quant)
    output, size = operation.outputs[0], math.prod(operation.shape(0))
    if output.dtype == np.float32 and size >= _WORTH_ARITHMETIC:
        return _dequantize_many(operand)
    real = code_steps(operand).astype(np.float32) * np.float32(operand.scale)
    with np.errstate(over="ignore"):
        table = real.astype(output.dtype)
    return unary_lookup(table, size)


def _dequantize_many(operand: BoundOperand) -> PreparedKernel:
    zero_point = np.array(operand.zero_point, np.float32)
    scale = np.array(operand.scale, np.float32)

    def run(inputs: Inputs, outputs: Outputs) -> None:
        np.subtract(inputs[0], zero_point, out=outputs[0])
        np.multiply(outputs[0], scale, out=outputs[0])

    return stateless(run)


def _dequantize_channels(
    operation: BoundOperation, channels: SymmPerChannelQuantParams
) -> PreparedKernel:
    rank = len(operation.shape(0))
    along_channels = [1] * rank
    along_channels[channels.channel_dim] = -1
    scales = np.array(channels.scales, np.float32).reshape(along_channels)

    def run(inputs: Inputs, outputs: Outputs) -> None:
        np.multiply(inputs[0], scales, out=outputs[0], casting="same_kind")

    return stateless(run)


def _prepare_quantize(operation: BoundOperation) -> PreparedKernel:
    """Compute ``round(real / scale) + zero_point`` with a float32 quotient, clamped."""
    output = operation.outputs[0]
    shape = output.require_shape()
    scale = np.array(output.scale, np.float32)
    bounds = code_limits(output.dtype)

    def instantiate(scratch: Scratch) -> Run:
        steps = scratch.transient(shape, np.float32)
        store = code_store(scratch, shape, np.float32, output.zero_point, bounds)

        def run(inputs: Inputs, outputs: Outputs) -> None:
            np.divide(inputs[0], scale, out=steps)
            store(steps, outputs[0])

        return run

    return instantiate


KERNELS: dict[OperationType, Prepare] = {
    OperationType.DEQUANTIZE: _prepare_dequantize,
    OperationType.QUANTIZE: _prepare_quantize,
}
