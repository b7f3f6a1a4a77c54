"""Finds the kernel of an operation type. Each family contributes one table.

A family is imported when one of its operations is prepared first: a device whose engine
computes a model needs none.
"""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, TypeAlias

from msgspec.structs import astuple

from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operations import infer_shapes
from asyncnn.hal.operations.bound import Array, BoundOperation, Shape, ValueNeededError
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import (
    Compute,
    EngineKernel,
    ExtensionOperation,
    InterruptibleRun,
    Prepare,
    PreparedKernel,
)

Shapes: TypeAlias = tuple[Shape | None, ...]

_DATA_DEPENDENT = "detection.proposals"
"""Its operations have shapes that depend on data."""

_FAMILIES = {
    "activation": "RELU RELU1 RELU6 LOGISTIC TANH HARD_SWISH ELU",
    "arithmetic": (
        "ABS NEG EXP LOG SQRT SIN FLOOR RSQRT CAST ADD SUB MUL DIV MAXIMUM MINIMUM "
        "POW PRELU EQUAL NOT_EQUAL LESS LESS_EQUAL GREATER GREATER_EQUAL LOGICAL_AND "
        "LOGICAL_OR LOGICAL_NOT SELECT"
    ),
    "joining": (
        "CONCATENATION PACK SPLIT PAD PAD_V2 MIRROR_PAD SLICE STRIDED_SLICE GATHER"
    ),
    "lookup": "EMBEDDING_LOOKUP HASHTABLE_LOOKUP LSH_PROJECTION",
    "multinomial": "RANDOM_MULTINOMIAL",
    "normalization": (
        "L2_NORMALIZATION LOCAL_RESPONSE_NORMALIZATION INSTANCE_NORMALIZATION SOFTMAX "
        "LOG_SOFTMAX"
    ),
    "pooling": "AVERAGE_POOL_2D L2_POOL_2D MAX_POOL_2D",
    "quantization": "DEQUANTIZE QUANTIZE",
    "reduction": (
        "MEAN REDUCE_ALL REDUCE_ANY REDUCE_MAX REDUCE_MIN REDUCE_PROD REDUCE_SUM "
        "ARGMAX ARGMIN TOPK_V2"
    ),
    "reshaping": (
        "RESHAPE SQUEEZE EXPAND_DIMS TRANSPOSE CHANNEL_SHUFFLE REVERSE TILE FILL RANK "
        "DEPTH_TO_SPACE SPACE_TO_DEPTH BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND"
    ),
    "resize": "RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR",
    "detection.boxes": "AXIS_ALIGNED_BBOX_TRANSFORM",
    "detection.heatmap_max_keypoint": "HEATMAP_MAX_KEYPOINT",
    "detection.postprocessing": "DETECTION_POSTPROCESSING",
    _DATA_DEPENDENT: "BOX_WITH_NMS_LIMIT GENERATE_PROPOSALS",
    "detection.roi": "ROI_ALIGN ROI_POOLING",
    "linear.convolution": (
        "CONV_2D GROUPED_CONV_2D DEPTHWISE_CONV_2D TRANSPOSE_CONV_2D"
    ),
    "linear.matmul": "BATCH_MATMUL FULLY_CONNECTED",
    "recurrent.lstm": "LSTM UNIDIRECTIONAL_SEQUENCE_LSTM BIDIRECTIONAL_SEQUENCE_LSTM",
    "recurrent.rnn": (
        "RNN UNIDIRECTIONAL_SEQUENCE_RNN BIDIRECTIONAL_SEQUENCE_RNN SVDF"
    ),
    "recurrent.quantized_lstm": "QUANTIZED_LSTM QUANTIZED_16BIT_LSTM",
}
"""Modules below `asyncnn.kernels`. Each has ``KERNELS`` or, if they are data-dependent,
``DATA_DEPENDENT``: functions by these types.
"""

_FAMILY_OF: dict[int, str] = {
    OperationType[name]: family
    for family, names in _FAMILIES.items()
    for name in names.split()
}

_MULTIPLYING = ("linear.", "recurrent.", "lookup")


def load_kernels() -> None:
    """Import all families, as a driver does while it still has descriptors for that."""
    for family in _FAMILIES:
        import_module(f"asyncnn.kernels.{family}")


def family_of(type_: int) -> str:
    """Return the name of the family that has the kernel; empty if none has.

    That is a module below `asyncnn.kernels`, or ``extension``.
    """
    if isinstance(type_, ExtensionOperation):
        return "extension"
    return _FAMILY_OF.get(type_, "")


def may_use_blas(type_: int) -> bool:
    """Return whether the kernel of an operation may multiply matrices."""
    is_extended = isinstance(type_, ExtensionOperation)
    return is_extended or family_of(type_).startswith(_MULTIPLYING)


def supported_operations() -> frozenset[OperationType]:
    """Return the operation types of the HAL that have a kernel."""
    return frozenset(map(OperationType, _FAMILY_OF))


def is_supported(type_: int) -> bool:
    """Return whether an operation has a kernel, be it the HAL's or an extension's."""
    if isinstance(type_, ExtensionOperation):
        return type_.prepare is not None or type_.compute is not None
    return type_ in _FAMILY_OF


def prepare(operation: BoundOperation) -> PreparedKernel:
    """Prepare the kernel of ``operation``, all of whose shapes are known.

    :raises GeneralFailureError: if the operation has no kernel or an operand has an
        illegal value.
    :raises ValueNeededError: if the value of a non-constant operand is needed.
    """
    type_ = operation.type
    prepare_one: Prepare | None = _own(type_, "KERNELS")
    if isinstance(type_, ExtensionOperation):
        prepare_one = type_.prepare
    if prepare_one is None:
        raise GeneralFailureError(f"no kernel for {type_.name}")
    return prepare_one(operation)


class SharedKernels:
    """Prepares the kernels of one plan: one for all operations that are alike.

    Such are the steps of a recurrence, which have the same weights.
    """

    def __init__(self) -> None:
        self._known: defaultdict[int, dict[object, tuple[Shapes, PreparedKernel]]]
        self._known = defaultdict(dict)

    def prepare(self, operation: BoundOperation) -> PreparedKernel:
        """Prepare a kernel, or return the kernel of an operation like this one.

        :raises AsyncnnError: as the function.
        """
        _, kernel = self.like(operation)
        if kernel is None:
            kernel = prepare(operation)
            shapes = tuple([output.shape for output in operation.outputs])
            self._known[operation.type][_likeness(operation)] = shapes, kernel
        return kernel

    def like(self, operation: BoundOperation) -> tuple[Shapes, PreparedKernel | None]:
        """Return the output shapes and the kernel of operations like this one.

        No shapes, and None, if there was none. Its own outputs' need not be known.
        """
        known = self._known.get(operation.type)
        return known.get(_likeness(operation), ((), None)) if known else ((), None)


def _likeness(operation: BoundOperation) -> tuple[object, ...]:
    # Constants live as long as the plan; of all else, this is what is known.
    return (
        operation.relaxed,
        *[
            id(each) if each is None or each.value is not None else astuple(each)
            for each in operation.inputs
        ],
        *[(each.type, *astuple(each)[2:]) for each in operation.outputs],
    )


def is_data_dependent(type_: int) -> bool:
    """Return whether output shapes of ``type_`` depend on data: use `compute` for it.

    Shapes of an extension's operation that can be prepared as well may do.
    """
    if isinstance(type_, ExtensionOperation):
        return type_.compute is not None and type_.prepare is None
    return family_of(type_) == _DATA_DEPENDENT


def may_learn_shapes(type_: int) -> bool:
    """Return whether runs may teach the output shapes of ``type_``: an engine's."""
    if not isinstance(type_, ExtensionOperation):
        return False
    teaches = type_.compute is not None or type_.prepare_open is not None
    return teaches and type_.prepare is not None


def prepare_open(operation: BoundOperation) -> EngineKernel | None:
    """Prepare a kernel for inputs of any lengths; None if there is no such thing.

    :raises AsyncnnError: if an engine does not take the operation.
    """
    type_ = operation.type
    if not isinstance(type_, ExtensionOperation) or type_.prepare_open is None:
        return None
    with suppress(ValueNeededError):
        infer_shapes(operation)  # for what it checks: it cannot know all shapes
    return type_.prepare_open(operation)


def compute(operation: BoundOperation) -> Sequence[Array] | InterruptibleRun:
    """Compute the outputs of a data-dependent operation, all values known.

    An engine's are computed by a run; see `Compute`.

    :raises GeneralFailureError: if the operation has no such kernel or an operand has
        an illegal value.
    """
    type_ = operation.type
    compute_one: Compute | None = _own(type_, "DATA_DEPENDENT")
    if isinstance(type_, ExtensionOperation):
        compute_one = type_.compute
    if compute_one is None:
        raise GeneralFailureError(f"no kernel for {type_.name}")
    infer_shapes(operation)  # for what it checks: it cannot know all shapes
    return compute_one(operation)


def _own(type_: int, table: str) -> Any:
    family = _FAMILY_OF.get(type_)
    module = import_module(f"asyncnn.kernels.{family}") if family else None
    return getattr(module, table, {}).get(type_)
