"""Shapes of sequences, in one or two directions, with or without state outputs."""

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.shapes import require, shape_of_rank
from asyncnn.hal.operations.signature import arguments

MERGED = arguments("T", "merged_output")
SEPARATE = arguments("T", "forward_output", "backward_output")


def sequence_sizes(
    operation: BoundOperation, time_major: bool
) -> tuple[Shape, int, int]:
    """Return a sequence's two outer axes, its batch count and its element count."""
    *outer, size = shape_of_rank(operation, 0, 3)
    return tuple(outer), outer[1 if time_major else 0], size


def merged(
    operation: BoundOperation, merge: bool, outer: Shape, forward: int, backward: int
) -> tuple[Shape, ...]:
    """Return the shapes of two directions' sequences, joined at the last axis or not.

    :raises OperationFailedError: if the number of outputs says otherwise.
    """
    require(
        operation,
        merge == (len(operation.outputs) % 2 == 1),
        f"{len(operation.outputs)} outputs contradict merge_outputs = {merge}",
    )
    if merge:
        return ((*outer, forward + backward),)
    return (*outer, forward), (*outer, backward)


def with_states(
    operation: BoundOperation, results: tuple[Shape, ...], states: tuple[Shape, ...]
) -> tuple[Shape, ...]:
    """Return the output shapes, with those of the states if they are outputs too."""
    return results if len(operation.outputs) == len(results) else results + states
