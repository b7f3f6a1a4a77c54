"""LSTM, UNIDIRECTIONAL_SEQUENCE_LSTM and BIDIRECTIONAL_SEQUENCE_LSTM.

Source: 1.3/types.hal (the operations above).
"""

from asyncnn.hal.operations.bound import BoundOperation
from asyncnn.hal.operations.lstm import BACKWARD_CELL, FORWARD_CELL, CellInputs
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import Outputs, Prepare, PreparedKernel
from asyncnn.kernels.recurrent.lstm_packing import Settings, pack
from asyncnn.kernels.recurrent.unroll import (
    Direction,
    Extent,
    Results,
    auxiliary_role,
    both_directions,
    one_direction,
    unrolled,
)

_STATES = (18, 19)
_SETTINGS = Settings(activation=20, cell_clip=21, projection_clip=22)
_TWO_WAY_SETTINGS = Settings(activation=48, cell_clip=49, projection_clip=50)


def _prepare_step(operation: BoundOperation) -> PreparedKernel:
    """Compute one step; the scratch buffer, an output of the HAL, is zero."""
    batches = operation.shape(0)[0]
    cell = CellInputs(weights=1, states=18, layer_norm=23)
    weights = pack(operation, cell, _SETTINGS)

    def arrange(outputs: Outputs) -> Results:
        scratch, *states, output = outputs
        scratch.fill(0)
        return Results([output[None]], states)

    extent = Extent((1, batches), time_major=True)
    return unrolled([Direction(weights, (0,), _STATES)], extent, arrange)
