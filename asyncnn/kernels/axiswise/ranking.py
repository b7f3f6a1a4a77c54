"""ARGMAX, ARGMIN and TOPK_V2: which elements are the largest or smallest.

Source: 1.3/types.hal (ARGMAX, ARGMIN, TOPK_V2).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from asyncnn.hal.operations.bound import BoundOperation, OperationFailedError
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    Prepare,
    PreparedKernel,
    Run,
    Scratch,
    stateless,
)


def _arg(find: Callable[..., Any]) -> Prepare:
    """Give the index along an axis of the first extreme element."""

    def prepare(operation: BoundOperation) -> PreparedKernel:
        shape = operation.shape(0)
        axis = operation.axis(1, len(shape))
        rest = (*shape[:axis], *shape[axis + 1 :])
        if 0 in shape:
            raise OperationFailedError(
                f"{operation.type.name}: the input {list(shape)} has no element"
            )

        def instantiate(scratch: Scratch) -> Run:
            indices = scratch.transient(rest, np.intp)

            def run(inputs: Inputs, outputs: Outputs) -> None:
                find(inputs[0], axis, indices)
                np.copyto(outputs[0], indices, casting="same_kind")

            return run

        return instantiate

    return prepare


def _prepare_top_k(operation: BoundOperation) -> PreparedKernel:
    """Give the ``k`` largest elements of each row and their indices, in falling order.

    Of equal elements the one with the larger index comes first.
    """
    length, k = operation.shape(0)[-1], operation.integer(1)
    falling = (..., slice(length - 1, length - 1 - k if k < length else None, -1))

    def run(inputs: Inputs, outputs: Outputs) -> None:
        rising = inputs[0].argsort(axis=-1, kind="stable")
        indices = rising[falling]
        np.copyto(outputs[0], np.take_along_axis(inputs[0], indices, -1))
        np.copyto(outputs[1], indices, casting="same_kind")

    return stateless(run)


KERNELS: dict[OperationType, Prepare] = {
    OperationType.ARGMAX: _arg(np.ndarray.argmax),
    OperationType.ARGMIN: _arg(np.ndarray.argmin),
    OperationType.TOPK_V2: _prepare_top_k,
}
