"""The messages between client and driver, and how they become bytes.

Each is a record in a tagged union, encoded as MessagePack. Each side numbers its calls,
and the client the objects that it owns: callbacks, prepared models, pools, requests
that it executes again and again. Numbers mean nothing on another connection. Pools are
announced once with their descriptor and named by number from then on.

Models travel in slices that follow the message, and only so; see `slices`.

The first message of each side is a greeting with the version of this protocol; the
other side hangs up if it is not its own.
"""

from typing import Annotated, Any, Generic, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from asyncnn import hal
from asyncnn.devices.statistics import DeviceStatistics
from asyncnn.hal.routes import Route
from asyncnn.hal.slices import SlicedModel, sliced
from asyncnn.hal.types import OutputShapes

PROTOCOL_VERSION = 8

ModelT = TypeVar("ModelT", hal.Model, SlicedModel)

MAX_BOUND_BYTES = 16 * 1024
"""A `BindRequest` is no longer: bounds what a client can have the driver keep."""
MAX_WHOLE_BYTES = 2**18
"""Nor is a message to a driver, but for slices and values: decoding takes long."""
MAX_SLICES_BYTES = 2**24
"""Nor are the slices: in memory they can take up twenty times as much."""
MAX_TOGETHER = 256
"""Executions of a `Several`, which a driver's loop launches one after the other."""
MAX_ANNOUNCED = 16
"""Pools of an `AnnouncePools`, each of which costs a few system calls."""
MAX_FORGOTTEN = 4096
"""Pools of a `ForgetPools`."""

NO_POOL = 0
"""Stands for the number of a pool that holds no bytes, and so cannot be mapped."""


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all messages; the class name is the tag."""


class Hello(_Message, frozen=True):
    """The client's greeting."""

    version: int


class Welcome(_Message, frozen=True):
    """The driver's greeting: all that does not change while it lives."""

    version: int
    device_name: str
    driver_version: str
    device_type: hal.DeviceType
    capabilities: hal.Capabilities
    extensions: tuple[hal.Extension, ...]
    model_cache_files: int
    data_cache_files: int
    max_bound_requests: int
    max_pools: int
    max_pool_bytes: int
    seals_caches: bool = False
    hal_hints: dict[str, str] = {}
    has_measured_capabilities: bool = False
    kernel_capabilities: hal.Capabilities | None = None


class Refused(_Message, frozen=True):
    """The driver does not serve this client, and hangs up; ``reason`` says why."""

    reason: str


class PoolInfo(msgspec.Struct, frozen=True, array_like=True):
    """A pool that travels: its kind and the integers of its handle.

    Its descriptors are the next ``fds`` ones beside the message.
    """

    number: int
    name: str
    size: int
    ints: tuple[int, ...]
    fds: int


class AnnouncePools(_Message, frozen=True):
    """Pools that later messages name by number."""

    pools: Annotated[tuple[PoolInfo, ...], Meta(max_length=MAX_ANNOUNCED)]


class PoolsRefused(_Message, frozen=True):
    """Pools that the driver has no room for now: to be announced anew if need be."""

    numbers: tuple[int, ...]


class ForgetPools(_Message, frozen=True):
    """Pools, buffers and bound requests that no later message is going to name."""

    numbers: Annotated[tuple[int, ...], Meta(max_length=MAX_FORGOTTEN)]


class GetSupportedOperations(_Message, Generic[ModelT], frozen=True):
    """`IDevice.get_supported_operations_1_3`; pools are the model's."""

    call: int
    model: ModelT
    pools: tuple[int, ...]


class SupportedOperations(_Message, frozen=True):
    """Answers `GetSupportedOperations`."""

    call: int
    status: int
    supported: tuple[bool, ...] = ()


class StatusChanged(_Message, frozen=True):
    """What ``IDevice.getStatus`` answers from now on; at first, AVAILABLE."""

    status: int


class GetStatistics(_Message, frozen=True):
    """`IMeasured.get_statistics`."""

    call: int


class Statistics(_Message, frozen=True):
    """Answers `GetStatistics` with what this client may know, or a status."""

    call: int
    status: int
    statistics: DeviceStatistics | None = None


class CacheInfo(msgspec.Struct, frozen=True, array_like=True):
    """The cache arguments of a call that travels, each file with one descriptor.

    Beside the message are descriptors of the model files, then of the data files.
    """

    model_files: int
    data_files: int
    token: bytes


NO_CACHE = CacheInfo(0, 0, b"")


class PrepareModel(_Message, Generic[ModelT], frozen=True):
    """`IDevice.prepare_model_1_3`; the client numbers the prepared model to be.

    ``cache`` counts the descriptors beside the message.
    """

    prepared: int
    model: ModelT
    pools: tuple[int, ...]
    preference: int
    priority: int
    deadline: int | None
    cache: CacheInfo = NO_CACHE


class PrepareModelFromCache(_Message, frozen=True):
    """`IDevice.prepare_model_from_cache_1_3`; likewise."""

    prepared: int
    cache: CacheInfo
    deadline: int | None


class Prepared(_Message, frozen=True):
    """Notifies an `IPreparedModelCallback`; ``reason`` explains a failure.

    Of a model from a cache, which the client has not seen, it gets the ``signature``.
    If the device is made of several, ``route`` is how executions usually go.
    """

    prepared: int
    status: int
    reason: str
    signature: hal.Model | None = None
    route: Route | None = None


class SaveModel(_Message, frozen=True):
    """Write a prepared model to cache files, whose descriptors come beside this."""

    call: int
    prepared: int
    cache: CacheInfo


class ModelSaved(_Message, frozen=True):
    """What became of `SaveModel`."""

    call: int
    status: int


class ReleasePreparedModel(_Message, frozen=True):
    """The client dropped a prepared model, or no longer waits for it."""

    prepared: int


class Execute(_Message, frozen=True):
    """`IPreparedModel.execute_1_3`; pools are the request's."""

    execution: int
    prepared: int
    inputs: tuple[hal.RequestArgument, ...]
    outputs: tuple[hal.RequestArgument, ...]
    pools: tuple[int, ...]
    measure: int
    deadline: int | None
    loop_timeout: int | None


class BindRequest(_Message, frozen=True):
    """A request that is going to be executed more than once: gives it a number.

    The driver forgets it with the prepared model or a pool of it, or by `ForgetPools`.
    """

    bound: int
    prepared: int
    inputs: tuple[hal.RequestArgument, ...]
    outputs: tuple[hal.RequestArgument, ...]
    pools: tuple[int, ...]


class ExecuteBound(_Message, frozen=True):
    """`IPreparedModel.execute_1_3` of a request that was bound."""

    execution: int
    bound: int
    measure: int
    deadline: int | None
    loop_timeout: int | None


class ExecuteFenced(_Message, frozen=True):
    """`IPreparedModel.execute_fenced`, of what ``order`` would execute at once.

    ``wait_for`` has the numbers of fenced executions of this connection, 0 for the next
    descriptor beside the message. ``seen`` counts the ends reported to the client.
    """

    order: Execute | ExecuteBound
    wait_for: tuple[int, ...]
    duration: int | None
    seen: int


class Several(_Message, frozen=True):
    """`ExecuteFenced` messages without descriptors, sent as one."""

    messages: Annotated[tuple[ExecuteFenced, ...], Meta(max_length=MAX_TOGETHER)]


class FencedEnd(msgspec.Struct, frozen=True, array_like=True):
    """How a fenced execution ended, and when on the steady clock."""

    execution: int
    status: int
    reason: str
    at_ns: int
    launched: hal.Timing | None
    fenced: hal.Timing | None


class FencedDone(_Message, frozen=True):
    """Fenced executions that have ended."""

    ends: tuple[FencedEnd, ...]


class ExportFence(_Message, frozen=True):
    """Others wait for a fenced execution, at a pipe whose write end comes beside."""

    execution: int


class Executed(_Message, frozen=True):
    """Notifies an `IExecutionCallback`; ``reason`` explains a failure."""

    execution: int
    status: int
    output_shapes: OutputShapes
    timing: hal.Timing
    reason: str


class Took(_Message, frozen=True):
    """How an execution went whose end follows; what ``is_left`` may yet be written to.

    A message of its own: the many that go as usual are spared the fields.
    """

    execution: int
    route: Route | None
    is_left: bool = False


class CancelExecution(_Message, frozen=True):
    """Nobody waits for an execution any more; it is still notified."""

    execution: int


class Allocate(_Message, frozen=True):
    """`IDevice.allocate`; the client numbers the buffer to be, as it does pools.

    Requests name it like a pool, and `ForgetPools` lets go of it.
    """

    buffer: int
    dimensions: tuple[int, ...]
    models: tuple[int, ...]
    input_roles: tuple[hal.BufferRole, ...]
    output_roles: tuple[hal.BufferRole, ...]


class Allocated(_Message, frozen=True):
    """Answers `Allocate`."""

    buffer: int
    status: int
    token: int = 0


class CopyBufferTo(_Message, frozen=True):
    """`IBuffer.copy_to`; a pool without bytes is `NO_POOL`."""

    call: int
    buffer: int
    pool: int


class CopyBufferFrom(_Message, frozen=True):
    """`IBuffer.copy_from`; a pool without bytes is `NO_POOL`."""

    call: int
    buffer: int
    pool: int
    dimensions: tuple[int, ...]


class BufferCopied(_Message, frozen=True):
    """Answers `CopyBufferTo` and `CopyBufferFrom`."""

    call: int
    status: int


class GetMemories(_Message, frozen=True):
    """`IBurstCallback.get_memories`, asked by the driver, which numbers the call."""

    call: int
    burst: int
    slots: tuple[int, ...]


class Memories(_Message, frozen=True):
    """Answers `GetMemories` with one pool for each slot, or a status and no pool."""

    call: int
    status: int
    pools: tuple[int, ...]


class ConfigureBurst(_Message, frozen=True):
    """`IPreparedModel.configure_execution_burst`; the client numbers the burst.

    The first ``request_fds`` descriptors are the request queue's; see `IBurstCallback`.
    """

    burst: int
    prepared: int
    request_ints: tuple[int, ...]
    result_ints: tuple[int, ...]
    request_fds: int
    carries_deadlines: bool = False


class BurstConfigured(_Message, frozen=True):
    """Answers `ConfigureBurst`; see `IBurstCallback`."""

    burst: int
    status: int
    carries_deadlines: bool = False


class FreeMemory(_Message, frozen=True):
    """`IBurstContext.free_memory`."""

    burst: int
    slot: int


class CancelBurstRequest(_Message, frozen=True):
    """`IBurstContext.cancel`; its result is sent all the same."""

    burst: int
    request: int


class ReleaseBurst(_Message, frozen=True):
    """`IBurstContext.close`; the client no longer names the burst."""

    burst: int


class BurstEnded(_Message, frozen=True):
    """No more results of a burst will come."""

    burst: int


_OfPools: TypeAlias = AnnouncePools | ForgetPools | Memories
_OfModels: TypeAlias = PrepareModelFromCache | SaveModel | ReleasePreparedModel
_OfExecutions: TypeAlias = Execute | BindRequest | ExecuteBound | CancelExecution
_OfFences: TypeAlias = ExecuteFenced | Several | ExportFence
_OfBursts: TypeAlias = ConfigureBurst | FreeMemory | CancelBurstRequest | ReleaseBurst
_OfBuffers: TypeAlias = Allocate | CopyBufferTo | CopyBufferFrom
_OfWork: TypeAlias = _OfExecutions | _OfFences | _OfBursts
WithoutModel: TypeAlias = (
    Hello | GetStatistics | _OfPools | _OfModels | _OfBuffers | _OfWork
)
WithModel: TypeAlias = GetSupportedOperations[hal.Model] | PrepareModel[hal.Model]
WithSlices: TypeAlias = GetSupportedOperations[SlicedModel] | PrepareModel[SlicedModel]
ToDriver: TypeAlias = WithoutModel | WithModel
_AboutModels: TypeAlias = SupportedOperations | Prepared | ModelSaved
_AboutBursts: TypeAlias = GetMemories | BurstConfigured | BurstEnded
_AboutBuffers: TypeAlias = Allocated | BufferCopied | PoolsRefused
_AboutDevice: TypeAlias = Welcome | Refused | StatusChanged | Statistics
_AboutExecutions: TypeAlias = Executed | FencedDone | Took
ToClient: TypeAlias = (
    _AboutExecutions | _AboutDevice | _AboutModels | _AboutBursts | _AboutBuffers
)

encode_flat = msgspec.msgpack.Encoder().encode
"""Returns the bytes of a message without a model."""
SLICED = b"\xc1"
"""Begins a message with a model; no other does. The length of its head follows."""

LENGTH_BYTES = 4
MESSAGES_WITH_MODELS = (GetSupportedOperations, PrepareModel)


class _Statuses(dict[int, hal.ErrorStatus]):
    """Statuses by number."""

    def __missing__(self, number: int) -> hal.ErrorStatus:
        return hal.ErrorStatus.GENERAL_FAILURE


status_of = _Statuses({int(status): status for status in hal.ErrorStatus}).__getitem__
"""Returns the status that a driver, maybe a newer one, means."""


def encode(message: ToDriver | ToClient) -> bytes:
    """Return the bytes of a message."""
    if not isinstance(message, MESSAGES_WITH_MODELS):
        return encode_flat(message)
    return b"".join(parts_of(message))


def parts_of(message: WithModel) -> tuple[bytes, ...]:
    """Return the start of a message, its head, its model's slices, and the values."""
    model, slices = sliced(message.model)
    head = encode_flat(replace(cast("Any", message), model=model))
    return (SLICED + len(head).to_bytes(LENGTH_BYTES), head, *slices)
