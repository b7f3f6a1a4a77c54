"""The HAL's data, in its newest form: enumerations, structures and constants.

Numbers are as in ``neuralnetworks/1.0`` to ``1.3/types.hal``; the four operations
102 to 105 come from the later AIDL interface. Older structures convert losslessly to
these. Structures are frozen and compare by value, except `Memory`, which is a handle.
"""

from enum import IntEnum
from typing import TypeAlias

import msgspec

UINT64_MAX = 2**64 - 1
"""Stands for "not available" in `Timing` and "no limit" in time points."""

BYTE_SIZE_OF_CACHE_TOKEN = 32
"""Bytes of the token that identifies a model in a cache."""

MAX_NUMBER_OF_CACHE_FILES = 32
"""The most cache files of each kind, model or data, that a device may ask for."""

LOOP_TIMEOUT_DEFAULT_NS = 2_000_000_000
"""Nanoseconds that a WHILE operation may take if the request names no other limit."""

LOOP_TIMEOUT_MAXIMUM_NS = 15_000_000_000
"""Nanoseconds that a WHILE operation may take at most, whatever the request asks."""

EXTENSION_TYPE_BITS = 16
BASE_MAX = 0xFFFF
"""Largest operand or operation type that is not an extension's."""

Dimensions: TypeAlias = tuple[int, ...]
"""Axis lengths; 0 is an unknown axis, an empty tuple of a tensor an unknown rank."""


class HalVersion(IntEnum):
    """Interface versions in order; the values are the feature levels."""

    V1_0 = 1
    V1_1 = 2
    V1_2 = 3
    V1_3 = 4
    AIDL_V1 = 5
    AIDL_V2 = 6
    AIDL_V3 = 7
    AIDL_V4 = 8

    @property
    def title(self) -> str:
        """What people call it: ``HAL 1.3``, or ``AIDL HAL 3``, which is newer."""
        kind, _, number = self.name.rpartition("V")
        return f"AIDL HAL {number}" if kind else f"HAL {number.replace('_', '.')}"


class ErrorStatus(IntEnum):
    """Outcome of a HAL call (1.0/types.hal, 5 to 8 from 1.3/types.hal)."""

    NONE = 0
    DEVICE_UNAVAILABLE = 1
    GENERAL_FAILURE = 2
    OUTPUT_INSUFFICIENT_SIZE = 3
    INVALID_ARGUMENT = 4
    MISSED_DEADLINE_TRANSIENT = 5
    MISSED_DEADLINE_PERSISTENT = 6
    RESOURCE_EXHAUSTED_TRANSIENT = 7
    RESOURCE_EXHAUSTED_PERSISTENT = 8


class DeviceStatus(IntEnum):
    """State of a device (1.0/types.hal)."""

    AVAILABLE = 0
    BUSY = 1
    OFFLINE = 2
    UNKNOWN = 3


class DeviceType(IntEnum):
    """Kind of hardware behind a device (1.2/types.hal)."""

    OTHER = 1
    CPU = 2
    GPU = 3
    ACCELERATOR = 4


class ExecutionPreference(IntEnum):
    """What a prepared model is optimised for (1.1/types.hal)."""

    LOW_POWER = 0
    FAST_SINGLE_ANSWER = 1
    SUSTAINED_SPEED = 2


class Priority(IntEnum):
    """Priority among the prepared models of one client (1.3/types.hal)."""

    LOW = 0
    MEDIUM = 1
    HIGH = 2


class MeasureTiming(IntEnum):
    """Whether an execution reports `Timing` (1.2/types.hal)."""

    NO = 0
    YES = 1


class FusedActivationFunc(IntEnum):
    """Activation applied to an operation's result (1.0/types.hal)."""

    NONE = 0
    RELU = 1
    RELU1 = 2
    RELU6 = 3


class OperandLifeTime(IntEnum):
    """Where an operand's data come from (1.3/types.hal)."""

    TEMPORARY_VARIABLE = 0
    SUBGRAPH_INPUT = 1
    SUBGRAPH_OUTPUT = 2
    CONSTANT_COPY = 3
    CONSTANT_REFERENCE = 4
    NO_VALUE = 5
    SUBGRAPH = 6


class OperandType(IntEnum):
    """Element type and kind of an operand (1.3/types.hal)."""

    FLOAT32 = 0
    INT32 = 1
    UINT32 = 2
    TENSOR_FLOAT32 = 3
    TENSOR_INT32 = 4
    TENSOR_QUANT8_ASYMM = 5
    BOOL = 6
    TENSOR_QUANT16_SYMM = 7
    TENSOR_FLOAT16 = 8
    TENSOR_BOOL8 = 9
    FLOAT16 = 10
    TENSOR_QUANT8_SYMM_PER_CHANNEL = 11
    TENSOR_QUANT16_ASYMM = 12
    TENSOR_QUANT8_SYMM = 13
    TENSOR_QUANT8_ASYMM_SIGNED = 14
    SUBGRAPH = 15
    OEM = 10000
    TENSOR_OEM_BYTE = 10001


class OperationType(IntEnum):
    """What an operation computes (1.3/types.hal; 102 to 105 from the AIDL HAL)."""

    ADD = 0
    AVERAGE_POOL_2D = 1
    CONCATENATION = 2
    CONV_2D = 3
    DEPTHWISE_CONV_2D = 4
    DEPTH_TO_SPACE = 5
    DEQUANTIZE = 6
    EMBEDDING_LOOKUP = 7
    FLOOR = 8
    FULLY_CONNECTED = 9
    HASHTABLE_LOOKUP = 10
    L2_NORMALIZATION = 11
    L2_POOL_2D = 12
    LOCAL_RESPONSE_NORMALIZATION = 13
    LOGISTIC = 14
    LSH_PROJECTION = 15
    LSTM = 16
    MAX_POOL_2D = 17
    MUL = 18
    RELU = 19
    RELU1 = 20
    RELU6 = 21
    RESHAPE = 22
    RESIZE_BILINEAR = 23
    RNN = 24
    SOFTMAX = 25
    SPACE_TO_DEPTH = 26
    SVDF = 27
    TANH = 28
    BATCH_TO_SPACE_ND = 29
    DIV = 30
    MEAN = 31
    PAD = 32
    SPACE_TO_BATCH_ND = 33
    SQUEEZE = 34
    STRIDED_SLICE = 35
    SUB = 36
    TRANSPOSE = 37
    ABS = 38
    ARGMAX = 39
    ARGMIN = 40
    AXIS_ALIGNED_BBOX_TRANSFORM = 41
    BIDIRECTIONAL_SEQUENCE_LSTM = 42
    BIDIRECTIONAL_SEQUENCE_RNN = 43
    BOX_WITH_NMS_LIMIT = 44
    CAST = 45
    CHANNEL_SHUFFLE = 46
    DETECTION_POSTPROCESSING = 47
    EQUAL = 48
    EXP = 49
    EXPAND_DIMS = 50
    GATHER = 51
    GENERATE_PROPOSALS = 52
    GREATER = 53
    GREATER_EQUAL = 54
    GROUPED_CONV_2D = 55
    HEATMAP_MAX_KEYPOINT = 56
    INSTANCE_NORMALIZATION = 57
    LESS = 58
    LESS_EQUAL = 59
    LOG = 60
    LOGICAL_AND = 61
    LOGICAL_NOT = 62
    LOGICAL_OR = 63
    LOG_SOFTMAX = 64
    MAXIMUM = 65
    MINIMUM = 66
    NEG = 67
    NOT_EQUAL = 68
    PAD_V2 = 69
    POW = 70
    PRELU = 71
    QUANTIZE = 72
    QUANTIZED_16BIT_LSTM = 73
    RANDOM_MULTINOMIAL = 74
    REDUCE_ALL = 75
    REDUCE_ANY = 76
    REDUCE_MAX = 77
    REDUCE_MIN = 78
    REDUCE_PROD = 79
    REDUCE_SUM = 80
    ROI_ALIGN = 81
    ROI_POOLING = 82
    RSQRT = 83
    SELECT = 84
    SIN = 85
    SLICE = 86
    SPLIT = 87
    SQRT = 88
    TILE = 89
    TOPK_V2 = 90
    TRANSPOSE_CONV_2D = 91
    UNIDIRECTIONAL_SEQUENCE_LSTM = 92
    UNIDIRECTIONAL_SEQUENCE_RNN = 93
    RESIZE_NEAREST_NEIGHBOR = 94
    QUANTIZED_LSTM = 95
    IF = 96
    WHILE = 97
    ELU = 98
    HARD_SWISH = 99
    FILL = 100
    RANK = 101
    BATCH_MATMUL = 102
    PACK = 103
    MIRROR_PAD = 104
    REVERSE = 105
    OEM_OPERATION = 10000


class DataLocation(msgspec.Struct, frozen=True, gc=False):
    """A span of bytes: ``[offset, offset + length)`` of pool ``pool_index``."""

    pool_index: int = 0
    offset: int = 0
    length: int = 0


class SymmPerChannelQuantParams(msgspec.Struct, frozen=True, gc=False):
    """One scale for each index of axis ``channel_dim`` (1.2/types.hal)."""

    scales: tuple[float, ...]
    channel_dim: int


ExtraParams: TypeAlias = SymmPerChannelQuantParams | bytes | None
"""Per-channel scales, the opaque bytes of an extension operand, or nothing."""


class Operand(msgspec.Struct, frozen=True, gc=False):
    """One value of a graph. Real value = ``scale * (stored - zero_point)``.

    ``type`` is an `OperandType`, or a plain integer above `BASE_MAX` for an
    extension's type (and whatever a peer sent, until it has been validated).
    """

    type: int
    dimensions: Dimensions = ()
    number_of_consumers: int = 0
    scale: float = 0.0
    zero_point: int = 0
    lifetime: int = OperandLifeTime.TEMPORARY_VARIABLE
    location: DataLocation = DataLocation()
    extra_params: ExtraParams = None


class Operation(msgspec.Struct, frozen=True, gc=False):
    """One node of a graph: operand indices that it reads and writes."""

    type: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Subgraph(msgspec.Struct, frozen=True):
    """Operands, operations in execution order, and the operands at its border."""

    operands: tuple[Operand, ...]
    operations: tuple[Operation, ...]
    input_indexes: tuple[int, ...]
    output_indexes: tuple[int, ...]


class Handle(msgspec.Struct, frozen=True):
    """File descriptors and integers, as ``native_handle_t`` carries them."""

    fds: tuple[int, ...] = ()
    ints: tuple[int, ...] = ()


class Memory(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """A memory pool (``hidl_memory``), compared and hashed by identity.

    ``name`` is the pool's kind: ``ashmem``, ``mmap_fd``, ``hardware_buffer_blob`` or
    ``hardware_buffer``. ``buffer`` holds the bytes themselves where the pool is
    mapped in this process already; elsewhere the handle says how to map it.
    """

    name: str
    size: int
    handle: Handle = Handle()
    buffer: memoryview | None = None


class ExtensionNameAndPrefix(msgspec.Struct, frozen=True):
    """Names the extension that owns the types with this 16-bit prefix."""

    name: str
    prefix: int


class Model(msgspec.Struct, frozen=True, weakref=True):
    """A graph with its constants (1.3/types.hal).

    Constants lie in ``operand_values`` (CONSTANT_COPY) or ``pools``
    (CONSTANT_REFERENCE); operands of every subgraph share them.
    """

    main: Subgraph
    referenced: tuple[Subgraph, ...] = ()
    operand_values: bytes = b""
    pools: tuple[Memory, ...] = ()
    relax_computation_float32_to_float16: bool = False
    extension_name_to_prefix: tuple[ExtensionNameAndPrefix, ...] = ()

    @property
    def operation_count(self) -> int:
        """Number of operations, with the operations of referenced subgraphs."""
        subgraphs = (self.main, *self.referenced)
        return sum([len(subgraph.operations) for subgraph in subgraphs])


class RequestArgument(msgspec.Struct, frozen=True):
    """Where one input or output of an execution lies, and its dimensions if the
    model left some open.
    """

    has_no_value: bool = False
    location: DataLocation = DataLocation()
    dimensions: Dimensions = ()


class BufferToken(msgspec.Struct, frozen=True, weakref=True):
    """A device-managed buffer as a request's pool (1.3/types.hal)."""

    token: int


class Request(msgspec.Struct, frozen=True, weakref=True):
    """Arguments of one execution and the pools that they lie in (1.3/types.hal)."""

    inputs: tuple[RequestArgument, ...]
    outputs: tuple[RequestArgument, ...]
    pools: tuple[Memory | BufferToken, ...]


class ExecutionOptions(msgspec.Struct, frozen=True, gc=False):
    """What the HAL's execute calls take beside a request.

    ``deadline`` is an absolute time of the steady clock; ``loop_timeout`` bounds each
    WHILE operation and ``duration`` the time since the last fence has signalled. All
    are in nanoseconds, None if none is given. Plain executions share
    `DEFAULT_OPTIONS`.
    """

    measure: MeasureTiming = MeasureTiming.NO
    deadline: int | None = None
    loop_timeout: int | None = None
    duration: int | None = None


DEFAULT_OPTIONS = ExecutionOptions()


class OutputShape(msgspec.Struct, frozen=True):
    """Dimensions of an output, 0 where unknown, and whether its buffer sufficed."""

    dimensions: Dimensions
    is_sufficient: bool


OutputShapes: TypeAlias = tuple[OutputShape, ...]


class Timing(msgspec.Struct, frozen=True):
    """Durations of an execution in microseconds; `UINT64_MAX` is unavailable."""

    time_on_device: int = UINT64_MAX
    time_in_driver: int = UINT64_MAX


NO_TIMING = Timing()
"""The timing of an execution that was not measured, or of which nothing is known."""


class PerformanceInfo(msgspec.Struct, frozen=True):
    """Time and power relative to the CPU; lower is better, both are positive."""

    exec_time: float
    power_usage: float


class OperandPerformance(msgspec.Struct, frozen=True):
    """Performance of operations whose main operand has this type."""

    type: OperandType
    info: PerformanceInfo


class Capabilities(msgspec.Struct, frozen=True):
    """Performance of a device, ``operand_performance`` sorted by type (1.3)."""

    relaxed_float32_to_float16_performance_scalar: PerformanceInfo
    relaxed_float32_to_float16_performance_tensor: PerformanceInfo
    operand_performance: tuple[OperandPerformance, ...]
    if_performance: PerformanceInfo
    while_performance: PerformanceInfo


class ExtensionOperandTypeInformation(msgspec.Struct, frozen=True):
    """An operand type of an extension: its number, kind and element size."""

    type: int
    is_tensor: bool
    byte_size: int


class Extension(msgspec.Struct, frozen=True):
    """A vendor extension that a device supports (1.2/types.hal)."""

    name: str
    operand_types: tuple[ExtensionOperandTypeInformation, ...]


class BufferDesc(msgspec.Struct, frozen=True):
    """Requested dimensions of a device-managed buffer (1.3/types.hal)."""

    dimensions: Dimensions


class BufferRole(msgspec.Struct, frozen=True):
    """An input or output that a device-managed buffer serves, and how often."""

    model_index: int
    io_index: int
    frequency: float
