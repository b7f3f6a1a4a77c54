"""SVDF: a feature filter, a memory of its latest results, and a filter over time.

Source: 1.3/types.hal (SVDF); the reference device's SVDF.cpp for the size of a state.
"""

import numpy as np

from asyncnn.hal.operations.bound import BoundOperation
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    Prepare,
    PreparedKernel,
    Run,
    Scratch,
)
from asyncnn.kernels.recurrent.activations import read_activation


def _prepare(operation: BoundOperation) -> PreparedKernel:
    """Filter features, then each feature's past.

    ``memory[b, f] = state_in[b, f]`` with its last entry replaced by
    ``input[b] @ feature_weights[f]``;
    ``output[b, u] = activation(sum(memory[b, f] * time_weights[f]) + bias[u])`` over
    the ``rank`` filters ``f`` of unit ``u``; ``state_out`` is the memory one entry
    further, with a zero at the end.

    ``input: T [batches, inputs]``, ``feature_weights: T [filters, inputs]``,
    ``time_weights: T [filters, memory]``, ``bias: T [units]`` (optional),
    ``state_in: T [batches, filters * memory]``; gives ``state_out`` alike and
    ``output: T [batches, units]``, where ``filters = units * rank``.
    """
    features = np.ascontiguousarray(operation.value(1).T, np.float32)
    times = operation.value(2).astype(np.float32)
    bias = operation.value(3).astype(np.float32) if operation.has(3) else None
    activation = read_activation(operation, 6)
    filters, length = times.shape
    batches, units = operation.outputs[1].require_shape()

    def instantiate(scratch: Scratch) -> Run:
        data = scratch.transient(operation.shape(0), np.float32)
        feature = scratch.transient((batches, filters), np.float32)
        memory = scratch.transient((batches, filters, length), np.float32)
        weighted = scratch.transient(memory.shape, np.float32)
        by_unit = weighted.reshape(batches, units, filters // units * length)
        sums = scratch.transient((batches, units), np.float32)

        def run(inputs: Inputs, outputs: Outputs) -> None:
            np.copyto(data, inputs[0])
            np.copyto(memory, inputs[4].reshape(memory.shape))
            np.matmul(data, features, out=feature)
            memory[..., -1] = feature
            np.multiply(memory, times, out=weighted)
            np.add.reduce(by_unit, axis=2, out=sums)
            if bias is not None:
                np.add(sums, bias, out=sums)
            activation(sums, sums)
            np.copyto(outputs[1], sums)
            moved = outputs[0].reshape(memory.shape)
            np.copyto(moved[..., :-1], memory[..., 1:])
            moved[..., -1] = 0

        return run

    return instantiate


KERNELS: dict[OperationType, Prepare] = {OperationType.SVDF: _prepare}
