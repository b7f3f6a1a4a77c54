"""Which operations of a model the reference kernels can run."""

from asyncnn import kernels
from asyncnn.hal.types import Model


def supported_by_kernels(model: Model) -> tuple[bool, ...]:
    """Tell for each operation of a validated model's main subgraph if it would run."""
    known = kernels.supported_operations()
    return tuple(operation.type in known for operation in model.main.operations)
