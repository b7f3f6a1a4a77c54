"""LSTM, UNIDIRECTIONAL_SEQUENCE_LSTM and BIDIRECTIONAL_SEQUENCE_LSTM.

Source: 1.3/types.hal (the operations above).
"""

from asyncnn.hal.operations.bound import BoundOperation
from asyncnn.hal.operations.lstm import BACKWARD_CELL, FORWARD_CELL
from asyncnn.hal.operations.lstm_cell import CellInputs
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import Outputs, Prepare, PreparedKernel
from asyncnn.kernels.recurrent.lstm_packing import Settings, pack
from asyncnn.kernels.recurrent.two_way import Auxiliary, two_way
from asyncnn.kernels.recurrent.unroll import Direction, Extent, Results, unrolled

_STATES = (18, 19)
_SETTINGS = Settings(activation=20, cell_clip=21, projection_clip=22)
_TWO_WAY_SETTINGS = Settings(activation=48, cell_clip=49, projection_clip=50)


def _prepare_step(operation: BoundOperation) -> PreparedKernel:
    """Compute one step; the scratch buffer, which is an output, becomes zero.

    ``input: T [batches, inputs]`` gives ``output_state_out`` and ``output: T [batches,
    outputs]``, which are the same, and ``cell_state_out: T [batches, units]``.
    """
    cell = CellInputs(weights=1, states=18, layer_norm=23)
    weights = pack(operation, cell, _SETTINGS)

    def arrange(outputs: Outputs) -> Results:
        scratch, output_state, cell_state, output = outputs
        scratch.fill(0)
        return Results([output[None]], [output_state, cell_state])

    extent = Extent((1, operation.shape(0)[0]), time_major=True)
    return unrolled([Direction(weights, (0,), _STATES)], extent, arrange)


def _prepare_sequence(operation: BoundOperation) -> PreparedKernel:
    """Compute all steps of ``input: T [steps, batches, inputs]``, in either layout.

    Gives ``output: T [steps, batches, outputs]`` in the same layout and, if they are
    outputs, the states after the last step.
    """
    cell = CellInputs(weights=1, states=18, layer_norm=24)
    weights = pack(operation, cell, _SETTINGS)
    extent = Extent.of(operation, time_major=operation.boolean(23))

    def arrange(outputs: Outputs) -> Results:
        return Results([extent.by_step(outputs[0])], outputs[1:])

    return unrolled([Direction(weights, (0,), _STATES)], extent, arrange)


def _prepare_two_way(operation: BoundOperation) -> PreparedKernel:
    """Compute the sequence forwards by one cell and backwards by another."""
    auxiliary = Auxiliary.of(operation, 39, weights=41)
    forward, backward = (
        pack(operation, cell, _TWO_WAY_SETTINGS, weights if auxiliary.joined else None)
        for cell, weights in ((FORWARD_CELL, 40), (BACKWARD_CELL, 44))
    )
    return two_way(
        Direction(forward, auxiliary.forward, (35, 36)),
        Direction(backward, auxiliary.backward, (37, 38), backward=True),
        Extent.of(operation, time_major=operation.boolean(52)),
        forward_outputs=operation.shape(35)[1],
        merge=operation.boolean(51),
    )


KERNELS: dict[OperationType, Prepare] = {
    OperationType.LSTM: _prepare_step,
    OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM: _prepare_sequence,
    OperationType.BIDIRECTIONAL_SEQUENCE_LSTM: _prepare_two_way,
}
