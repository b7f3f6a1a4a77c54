"""RNN, UNIDIRECTIONAL_SEQUENCE_RNN, BIDIRECTIONAL_SEQUENCE_RNN, and SVDF.

Each step of an RNN computes ``h' = activation(x @ weights.T + h @ recurrent_weights.T +
bias)``; in two directions, an auxiliary input may add ``aux @ auxiliary_weights.T``.
SVDF is a feature filter, a memory of its latest results, and a filter over time.

Source: 1.3/types.hal (the operations above); the reference device's SVDF.cpp for the
size of a state.
"""

import msgspec
import numpy as np

from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import Inputs, Outputs, Prepare, PreparedKernel, stateless
from asyncnn.kernels.recurrent.lstm import Activation, read_activation
from asyncnn.kernels.recurrent.unroll import (
    Auxiliary,
    Direction,
    Extent,
    one_step,
    one_way,
    two_way,
)


class _RnnWeights(msgspec.Struct, frozen=True, eq=False):
    """Weights [inputs, units] and [units, units], bias [units], all float32."""

    input_weights: Array
    recurrent_weights: Array
    input_bias: Array
    activation: Activation

    def step(self, products: Array, *states: Array) -> tuple[Array, ...]:
        """Return the output after a step; see `CellWeights`."""
        return (self.activation(states[0].dot(self.recurrent_weights) + products),)


def _pack(
    operation: BoundOperation, first: int, activation: int, auxiliary: int | None = None
) -> _RnnWeights:
    """Read the cell whose weights are input ``first``; the rest follows them."""
    inputs = [first] if auxiliary is None else [first, auxiliary]
    weights = [operation.value(index).T for index in inputs]
    recurrent, bias = operation.value(first + 1), operation.value(first + 2)
    return _RnnWeights(
        np.concatenate(weights, dtype=np.float32),
        np.ascontiguousarray(recurrent.T, np.float32),
        bias.astype(np.float32),
        read_activation(operation, activation),
    )


def _prepare_step(operation: BoundOperation) -> PreparedKernel:
    """Compute one step of ``input: T [batches, inputs]``; both outputs are the same."""
    return one_step(_pack(operation, 1, activation=5), operation, (4,))


def _prepare_sequence(operation: BoundOperation) -> PreparedKernel:
    """Compute all steps of ``input: T [steps, batches, inputs]``, in either layout.

    Gives ``output: T [steps, batches, units]`` in the same layout and, if it is an
    output, the state after the last step.
    """
    extent = Extent.of(operation, time_major=operation.integer(6) == 1)
    return one_way(_pack(operation, 1, activation=5), extent, (4,))


def _prepare_two_way(operation: BoundOperation) -> PreparedKernel:
    """Compute the sequence forwards by one cell and backwards by another."""
    auxiliary = Auxiliary.of(operation, 9, weights=10)
    forward, backward = (
        _pack(operation, first, 12, weights if auxiliary.joined else None)
        for first, weights in ((1, 10), (5, 11))
    )
    return two_way(
        Direction(forward, auxiliary.forward, (4,)),
        Direction(backward, auxiliary.backward, (8,), backward=True),
        Extent.of(operation, time_major=operation.boolean(13)),
        forward_outputs=operation.shape(4)[1],
        merge=operation.boolean(14),
    )


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

    def run(inputs: Inputs, outputs: Outputs) -> None:
        memory = inputs[4].reshape(batches, filters, length).astype(np.float32)
        memory[..., -1] = inputs[0].astype(np.float32) @ features
        by_unit = (memory * times).reshape(batches, units, filters // units * length)
        sums = by_unit.sum(axis=2)
        if bias is not None:
            sums += bias
        outputs[1][...] = activation(sums)
        moved = outputs[0].reshape(memory.shape)
        moved[..., :-1] = memory[..., 1:]
        moved[..., -1] = 0

    return stateless(run)


KERNELS: dict[OperationType, Prepare] = {
    OperationType.RNN: _prepare_step,
    OperationType.UNIDIRECTIONAL_SEQUENCE_RNN: _prepare_sequence,
    OperationType.BIDIRECTIONAL_SEQUENCE_RNN: _prepare_two_way,
    OperationType.SVDF: _prepare,
}
