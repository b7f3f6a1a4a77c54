"""Plain recurrent networks, singular value decomposition filters, and their sequences.

Source: 1.3/types.hal (RNN, SVDF, UNIDIRECTIONAL_SEQUENCE_RNN,
BIDIRECTIONAL_SEQUENCE_RNN).
"""

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.declaring import declare


def directed_layouts(inputs: str, states: str) -> tuple[str, ...]:
    """Return layouts with merged or separate outputs; since 1.3 also with states."""
    results = "merged_output", "forward_output backward_output"
    return (
        *(f"1.2: {inputs} -> {outputs}" for outputs in results),
        *(f"1.3: {inputs} -> {outputs} {states}" for outputs in results),
    )


def sequence_sizes(
    operation: BoundOperation, time_major: bool
) -> tuple[Shape, int, int]:
    """Return a sequence's two outer axes, its batch count and its element count."""
    *outer, size = operation.shape_of_rank(0, 3)
    return tuple(outer), outer[1 if time_major else 0], size


def merged(
    operation: BoundOperation, merge: bool, outer: Shape, forward: int, backward: int
) -> tuple[Shape, ...]:
    """Return the shapes of two directions' sequences, joined at the last axis or not.

    :raises OperationFailedError: if the number of outputs says otherwise.
    """
    operation.require(
        merge == (len(operation.outputs) % 2 == 1),
        f"{len(operation.outputs)} outputs contradict merge_outputs = {merge}",
    )
    if merge:
        return ((*outer, forward + backward),)
    return (*outer, forward), (*outer, backward)


def with_states(
    operation: BoundOperation, results: tuple[Shape, ...], states: tuple[Shape, ...]
) -> tuple[Shape, ...]:
    """Return the output shapes, with the states' if they are outputs too."""
    return results if len(operation.outputs) == len(results) else results + states


def _check_cell(operation: BoundOperation, first: int, batches: int, size: int) -> int:
    """Return the units of the cell whose weights are input ``first``.

    Recurrent weights, bias and state follow them.
    """
    units = operation.shape_of_rank(first, 2)[0]
    operation.check_shape(first, (units, size), f"input {first}")
    operation.check_shape(first + 1, (units, units), f"input {first + 1}")
    operation.check_shape(first + 2, (units,), f"input {first + 2}")
    operation.check_shape(first + 3, (batches, units), f"input {first + 3}")
    return units


def _step_shapes(operation: BoundOperation) -> tuple[Shape, Shape]:
    batches, size = operation.shape_of_rank(0, 2)
    shape = batches, _check_cell(operation, 1, batches, size)
    return shape, shape


def _sequence_shapes(operation: BoundOperation) -> tuple[Shape, ...]:
    time_major = operation.integer(6)
    operation.require(time_major in (0, 1), f"time_major is {time_major}, not 0 or 1")
    outer, batches, size = sequence_sizes(operation, time_major == 1)
    units = _check_cell(operation, 1, batches, size)
    return ((*outer, units), (batches, units))[: len(operation.outputs)]


def _bidirectional_shapes(operation: BoundOperation) -> tuple[Shape, ...]:
    outer, batches, size = sequence_sizes(operation, operation.boolean(13))
    weighted, backward_size = _check_auxiliary(operation, outer, size)
    forward = _check_cell(operation, 1, batches, size)
    backward = _check_cell(operation, 5, batches, backward_size)
    if weighted:
        auxiliary_size = operation.shape(9)[2]
        operation.check_shape(10, (forward, auxiliary_size), "input 10")
        operation.check_shape(11, (backward, auxiliary_size), "input 11")
    results = merged(operation, operation.boolean(14), outer, forward, backward)
    return with_states(operation, results, ((batches, forward), (batches, backward)))


def _check_auxiliary(
    operation: BoundOperation, outer: Shape, size: int
) -> tuple[bool, int]:
    """Return whether auxiliary weights exist, and the size of the backward input."""
    weighted = operation.has(10)
    operation.require(
        weighted == operation.has(11) and (operation.has(9) or not weighted),
        "auxiliary input and weights are incomplete",
    )
    if not operation.has(9):
        return False, size
    auxiliary_size = operation.shape_of_rank(9, 3)[2]
    operation.check_shape(9, (*outer, auxiliary_size), "auxiliary_input")
    return weighted, size if weighted else auxiliary_size


def _svdf_shapes(operation: BoundOperation) -> tuple[Shape, Shape]:
    batches, size = operation.shape_of_rank(0, 2)
    filters = operation.shape_of_rank(1, 2)[0]
    memory = operation.shape_of_rank(2, 2)[1]
    units = operation.whole_quotient(filters, operation.integer(5), "filter count")
    operation.check_shape(1, (filters, size), "feature_weights")
    operation.check_shape(2, (filters, memory), "time_weights")
    if operation.has(3):
        operation.check_shape(3, (units,), "bias")
    operation.check_shape(4, (batches, memory * filters), "state_in")
    return (batches, memory * filters), (batches, units)


_OLD_FLOATS = "1.0: F32; 1.2: F16"
_CELL = "input weights recurrent_weights bias state_in, activation"

SIGNATURES = (
    declare(f"RNN {_OLD_FLOATS}", f"{_CELL}: INT32 -> state_out output", _step_shapes),
    declare(
        "UNIDIRECTIONAL_SEQUENCE_RNN 1.2: F16 F32",
        (
            f"1.2: {_CELL} time_major: INT32",
            f"1.3: {_CELL} time_major: INT32 -> output state_out",
        ),
        _sequence_shapes,
    ),
    declare(
        "BIDIRECTIONAL_SEQUENCE_RNN 1.2: F16 F32",
        directed_layouts(
            "input forward_weights forward_recurrent_weights forward_bias "
            "forward_state_in backward_weights backward_recurrent_weights "
            "backward_bias backward_state_in auxiliary_input? "
            "forward_auxiliary_weights? backward_auxiliary_weights?, "
            "activation: INT32, time_major merge_outputs: BOOL",
            "forward_state backward_state",
        ),
        _bidirectional_shapes,
    ),
    declare(
        f"SVDF {_OLD_FLOATS}",
        "input feature_weights time_weights bias? state_in, rank activation: INT32 "
        "-> state_out output",
        _svdf_shapes,
    ),
)
