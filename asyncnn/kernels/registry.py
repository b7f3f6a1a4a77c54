"""Finds the kernel of an operation type. Each family contributes one table."""

from collections.abc import Sequence
from types import ModuleType

from asyncnn.errors import GeneralFailureError
from asyncnn.hal.operations import infer_shapes
from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.hal.types import OperationType
from asyncnn.kernels import (
    activation,
    arithmetic,
    comparison,
    convolution,
    depthwise,
    detection,
    fully_connected,
    grouped_convolution,
    joining,
    lookup,
    lsh_projection,
    matmul,
    multinomial,
    normalization,
    padding,
    pooling,
    quantization,
    ranking,
    recurrent,
    reduction,
    reshaping,
    resize,
    slicing,
    softmax,
    spatial,
    transpose_convolution,
    unary,
)
from asyncnn.kernels.kernel import Compute, Prepare, PreparedKernel

_FAMILIES: tuple[ModuleType, ...] = (
    activation,
    arithmetic,
    comparison,
    convolution,
    depthwise,
    detection,
    fully_connected,
    grouped_convolution,
    joining,
    lookup,
    lsh_projection,
    matmul,
    multinomial,
    normalization,
    padding,
    pooling,
    quantization,
    ranking,
    recurrent,
    reduction,
    reshaping,
    resize,
    slicing,
    softmax,
    spatial,
    transpose_convolution,
    unary,
)
"""Each has ``KERNELS``; those with data-dependent operations ``DATA_DEPENDENT`` too."""

_PREPARE: dict[OperationType, Prepare] = {}
_COMPUTE: dict[OperationType, Compute] = {}
for _family in _FAMILIES:
    _PREPARE.update(_family.KERNELS)
    _COMPUTE.update(getattr(_family, "DATA_DEPENDENT", {}))


def supported_operations() -> frozenset[OperationType]:
    """Return the operation types that have a kernel."""
    return frozenset(_PREPARE.keys() | _COMPUTE.keys())


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


def is_data_dependent(type_: OperationType) -> bool:
    """Tell whether output shapes of ``type_`` depend on data: use `compute` for it."""
    return type_ in _COMPUTE


def compute(operation: BoundOperation) -> Sequence[Array]:
    """Compute the outputs of a data-dependent operation, all values known.

    :raises GeneralFailureError: if an operand has an illegal value.
    """
    infer_shapes(operation)  # for what it checks: it cannot know all shapes
    return _COMPUTE[operation.type](operation)
