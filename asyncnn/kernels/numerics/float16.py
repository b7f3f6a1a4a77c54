"""Float16 operands for kernels that compute in float32: widen, compute, round once."""

from collections.abc import Iterator

import numpy as np

from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation
from asyncnn.hal.types import OperandType
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    PreparedKernel,
    Run,
    Scratch,
    TiledRun,
    tiles_of,
)


def widen_float16(operation: BoundOperation, kernel: PreparedKernel) -> PreparedKernel:
    """Return ``kernel`` such that every float16 tensor reaches it as float32.

    Results are rounded to float16 once, at the end. Other operands pass unchanged;
    without float16 tensors the result is ``kernel`` itself.
    """
    if not any(map(_is_float16, operation.inputs + operation.outputs)):
        return kernel

    def instantiate(scratch: Scratch) -> Run:
        wide_inputs = _float32_copies(operation.inputs, scratch)
        wide_outputs = _float32_copies(operation.outputs, scratch)
        run = kernel(scratch)

        def run_widened(inputs: Inputs, outputs: Outputs) -> Iterator[None]:
            arguments, results = list(inputs), list(outputs)
            for index, copy in wide_inputs.items():
                np.copyto(copy, inputs[index])
                arguments[index] = copy
            for index, copy in wide_outputs.items():
                results[index] = copy
            yield from tiles_of(run, arguments, results)
            for index, copy in wide_outputs.items():
                np.copyto(outputs[index], copy)

        return TiledRun(run_widened)

    return instantiate


def _is_float16(operand: BoundOperand | None) -> bool:
    return operand is not None and operand.type is OperandType.TENSOR_FLOAT16


def _float32_copies(
    operands: tuple[BoundOperand | None, ...], scratch: Scratch
) -> dict[int, Array]:
    return {
        index: scratch.transient(operand.require_shape(), np.float32)
        for index, operand in enumerate(operands)
        if operand is not None and _is_float16(operand)
    }
