"""Taking some of the elements: a box, every n-th element, or listed ones.

Source: 1.3/types.hal (SLICE, STRIDED_SLICE, GATHER).
"""

import numpy as np

from asyncnn.hal.operations.bound import Array, BoundOperation, OperationFailedError
from asyncnn.hal.operations.slicing import slices_of, strided_slices_of
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    Prepare,
    PreparedKernel,
    stateless,
)


def _taken(place: tuple[slice | int, ...]) -> PreparedKernel:
    def run(inputs: Inputs, outputs: Outputs) -> None:
        np.copyto(outputs[0], inputs[0][place])

    return stateless(run)


def _prepare_slice(operation: BoundOperation) -> PreparedKernel:
    """Take ``size[i]`` elements from ``begin[i]`` on along every axis."""
    return _taken(slices_of(operation))


def _prepare_strided_slice(operation: BoundOperation) -> PreparedKernel:
    """Take every ``strides[i]``-th element, and drop the axes of the shrink mask."""
    slices, dropped = strided_slices_of(operation)
    lengths = operation.shape(0)
    place = tuple(
        taken.indices(lengths[axis])[0] if axis in dropped else taken
        for axis, taken in enumerate(slices)
    )
    return _taken(place)


def _prepare_gather(operation: BoundOperation) -> PreparedKernel:
    """Take the elements at ``indices`` along an axis.

    An index outside of the axis fails the preparation or, if it is only known then,
    the execution.
    """
    shape = operation.shape(0)
    axis = operation.axis(1, len(shape))
    length = shape[axis]
    constant = operation.input(2).value
    if constant is not None:
        _require_within(constant, length)

    def run(inputs: Inputs, outputs: Outputs) -> None:
        if constant is None:
            _require_within(inputs[2], length)
        inputs[0].take(inputs[2], axis, outputs[0], "clip")

    return stateless(run)


def _require_within(indices: Array, length: int) -> None:
    # Read without a sign, a negative index is larger than any length.
    largest = np.maximum.reduce(indices.view(np.uint32), axis=None, initial=0)
    if indices.size and largest >= length:
        raise OperationFailedError(
            f"GATHER: index {largest.view(np.int32)} is outside an axis of {length}"
        )


KERNELS: dict[OperationType, Prepare] = {
    OperationType.SLICE: _prepare_slice,
    OperationType.STRIDED_SLICE: _prepare_strided_slice,
    OperationType.GATHER: _prepare_gather,
}
