"""Finds the kernel of an operation type. Each family contributes one table.

A family is imported when one of its operations is first prepared: a process starts
sooner without those that its models do not have.
"""

from collections.abc import Sequence
from importlib import import_module

from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operations import infer_shapes
from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import Compute, ExtensionOperation, Prepare, PreparedKernel

FAMILIES = {
    "activation": "ELU HARD_SWISH LOGISTIC RELU RELU1 RELU6 TANH",
    "arithmetic": "ABS ADD CAST DIV EQUAL EXP FLOOR GREATER GREATER_EQUAL LESS "
    "LESS_EQUAL LOG LOGICAL_AND LOGICAL_NOT LOGICAL_OR MAXIMUM MINIMUM MUL NEG "
    "NOT_EQUAL POW PRELU RSQRT SELECT SIN SQRT SUB",
    "joining": "CONCATENATION GATHER MIRROR_PAD PACK PAD PAD_V2 SLICE SPLIT "
    "STRIDED_SLICE",
    "lookup": "EMBEDDING_LOOKUP HASHTABLE_LOOKUP LSH_PROJECTION",
    "multinomial": "RANDOM_MULTINOMIAL",
    "normalization": "INSTANCE_NORMALIZATION L2_NORMALIZATION "
    "LOCAL_RESPONSE_NORMALIZATION LOG_SOFTMAX SOFTMAX",
    "pooling": "AVERAGE_POOL_2D L2_POOL_2D MAX_POOL_2D",
    "quantization": "DEQUANTIZE QUANTIZE",
    "reduction": "ARGMAX ARGMIN MEAN REDUCE_ALL REDUCE_ANY REDUCE_MAX REDUCE_MIN "
    "REDUCE_PROD REDUCE_SUM TOPK_V2",
    "reshaping": "BATCH_TO_SPACE_ND CHANNEL_SHUFFLE DEPTH_TO_SPACE EXPAND_DIMS FILL "
    "RANK RESHAPE REVERSE SPACE_TO_BATCH_ND SPACE_TO_DEPTH SQUEEZE TILE TRANSPOSE",
    "resize": "RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR",
    "detection.boxes": "AXIS_ALIGNED_BBOX_TRANSFORM",
    "detection.heatmap_max_keypoint": "HEATMAP_MAX_KEYPOINT",
    "detection.postprocessing": "DETECTION_POSTPROCESSING",
    "detection.proposals": "BOX_WITH_NMS_LIMIT GENERATE_PROPOSALS",
    "detection.roi": "ROI_ALIGN ROI_POOLING",
    "linear.convolution": "CONV_2D DEPTHWISE_CONV_2D GROUPED_CONV_2D TRANSPOSE_CONV_2D",
    "linear.matmul": "BATCH_MATMUL FULLY_CONNECTED",
    "recurrent.lstm": "BIDIRECTIONAL_SEQUENCE_LSTM LSTM UNIDIRECTIONAL_SEQUENCE_LSTM",
    "recurrent.rnn": "BIDIRECTIONAL_SEQUENCE_RNN RNN SVDF UNIDIRECTIONAL_SEQUENCE_RNN",
    "recurrent.quantized_lstm": "QUANTIZED_16BIT_LSTM QUANTIZED_LSTM",
}
"""Operations by module, which has ``KERNELS`` or ``DATA_DEPENDENT`` of them."""

_DATA_DEPENDENT = frozenset(
    {OperationType.BOX_WITH_NMS_LIMIT, OperationType.GENERATE_PROPOSALS}
)
_FAMILY_OF = {
    OperationType[operation]: family
    for family, operations in FAMILIES.items()
    for operation in operations.split()
}
_PREPARE: dict[int, Prepare] = {}
_COMPUTE: dict[int, Compute] = {}


def load(*families: str) -> None:
    """Import families of kernels, all by default."""
    for family in families or FAMILIES:
        module = import_module(f"asyncnn.kernels.{family}")
        _PREPARE.update(getattr(module, "KERNELS", {}))
        _COMPUTE.update(getattr(module, "DATA_DEPENDENT", {}))


def supported_operations() -> frozenset[OperationType]:
    """Return the operation types of the HAL that have a kernel."""
    return frozenset(_FAMILY_OF)


def is_supported(type_: int) -> bool:
    """Tell whether an operation has a kernel, be it the HAL's or an extension's."""
    if isinstance(type_, ExtensionOperation):
        return type_.prepare is not None or type_.compute is not None
    return type_ in _FAMILY_OF


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
    if isinstance(type_, ExtensionOperation):
        return type_.compute is not None
    return type_ in _DATA_DEPENDENT


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
    if type_ in _FAMILY_OF and type_ not in _PREPARE:
        load(_FAMILY_OF[OperationType(type_)])
    return _PREPARE.get(type_)


def _compute_of(type_: int) -> Compute | None:
    if isinstance(type_, ExtensionOperation):
        return type_.compute
    if type_ in _DATA_DEPENDENT and type_ not in _COMPUTE:
        load(_FAMILY_OF[OperationType(type_)])
    return _COMPUTE.get(type_)
