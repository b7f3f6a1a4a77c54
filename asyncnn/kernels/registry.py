"""Finds the kernel of an operation type. Each family contributes one table."""

from asyncnn.errors import GeneralFailureError
from asyncnn.hal.operations.bound import BoundOperation
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import Prepare, PreparedKernel

_FAMILIES: tuple[dict[OperationType, Prepare], ...] = ()
_PREPARE: dict[OperationType, Prepare] = {
    type_: prepare for family in _FAMILIES for type_, prepare in family.items()
}


def supported_operations() -> frozenset[OperationType]:
    """Return the operation types that have a kernel."""
    return frozenset(_PREPARE)


def prepare(operation: BoundOperation) -> PreparedKernel:
    """Prepare the kernel of ``operation``, all of whose shapes are known.

    :raises GeneralFailureError: if the operation has no kernel or an operand has an
        illegal value.
    :raises ValueNeededError: if the value of a non-constant operand is needed.
    """
    try:
        prepare_one = _PREPARE[operation.type]
    except KeyError:
        raise GeneralFailureError(f"no kernel for {operation.type.name}") from None
    return prepare_one(operation)
