"""Finds the kernel of an operation type. Each family contributes one table."""

from collections.abc import Sequence
from importlib import import_module

from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operations import infer_shapes
from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import Compute, ExtensionOperation, Prepare, PreparedKernel

_FAMILIES = tuple(
    import_module(f"asyncnn.kernels.{name}")
    for name in (
        *("activation", "arithmetic", "joining", "lookup", "multinomial"),
        *("normalization", "pooling", "quantization", "reduction", "reshaping"),
        *("resize", "detection.boxes", "detection.heatmap_max_keypoint"),
        *("detection.postprocessing", "detection.proposals", "detection.roi"),
        *("linear.convolution", "linear.matmul", "recurrent.lstm", "recurrent.rnn"),
        "recurrent.quantized_lstm",
    )
)
"""Each has ``KERNELS`` or, if they are data-dependent, ``DATA_DEPENDENT``."""

_PREPARE: dict[int, Prepare] = {}
_COMPUTE: dict[int, Compute] = {}
for _family in _FAMILIES:
    _PREPARE.update(getattr(_family, "KERNELS", {}))
    _COMPUTE.update(getattr(_family, "DATA_DEPENDENT", {}))


def family_of(type_: int) -> str:
    """Return the name of the family that has the kernel; empty if none has.

    That is a module below `asyncnn.kernels`, or ``extension``.
    """
    if isinstance(type_, ExtensionOperation):
        return "extension"
    for family in _FAMILIES:
        if type_ in getattr(family, "KERNELS", getattr(family, "DATA_DEPENDENT", {})):
            return family.__name__.removeprefix("asyncnn.kernels.")
    return ""


_MULTIPLYING = frozenset[int]().union(
    *(
        getattr(family, "KERNELS", getattr(family, "DATA_DEPENDENT", {}))
        for family in _FAMILIES
        if {"linear", "recurrent", "lookup"} & set(family.__name__.split("."))
    )
)


def may_use_blas(type_: int) -> bool:
    """Tell whether the kernel of an operation may multiply matrices."""
    return isinstance(type_, ExtensionOperation) or type_ in _MULTIPLYING


def supported_operations() -> frozenset[OperationType]:
    """Return the operation types of the HAL that have a kernel."""
    return frozenset(map(OperationType, _PREPARE.keys() | _COMPUTE.keys()))


def is_supported(type_: int) -> bool:
    """Tell whether an operation has a kernel, be it the HAL's or an extension's."""
    return _prepare_of(type_) is not None or is_data_dependent(type_)


def prepare(operation: BoundOperation) -> PreparedKernel:
    """Prepare the kernel of ``operation``, all of whose shapes are known.

    :raises GeneralFailureError: if the operation has no kernel or an operand has an
        illegal value.
    :raises ValueNeededError: if the value of a non-constant operand is needed.
    """
    prepare_one = _prepare_of(operation.type)
    if prepare_one is None:
        raise GeneralFailureError(f"no kernel for {operation.type.name}")
    return prepare_one(operation)


def is_data_dependent(type_: int) -> bool:
    """Tell whether output shapes of ``type_`` depend on data: use `compute` for it."""
    return _compute_of(type_) is not None


def compute(operation: BoundOperation) -> Sequence[Array]:
    """Compute the outputs of a data-dependent operation, all values known.

    :raises GeneralFailureError: if the operation has no such kernel or an operand has
        an illegal value.
    """
    compute_one = _compute_of(operation.type)
    if compute_one is None:
        raise GeneralFailureError(f"no kernel for {operation.type.name}")
    infer_shapes(operation)  # for what it checks: it cannot know all shapes
    return compute_one(operation)


def _prepare_of(type_: int) -> Prepare | None:
    if isinstance(type_, ExtensionOperation):
        return type_.prepare
    return _PREPARE.get(type_)


def _compute_of(type_: int) -> Compute | None:
    if isinstance(type_, ExtensionOperation):
        return type_.compute
    return _COMPUTE.get(type_)
