"""The messages between client and driver, and how they become bytes.

Each is a record in a tagged union, encoded as MessagePack. Each side numbers its calls,
and the client the objects that it owns: callbacks, prepared models, pools, requests
that it executes again and again. Numbers mean nothing on another connection. Pools are
announced once with their descriptor and named by number from then on.

The first message of each side is a greeting with the version of this protocol; the
other side hangs up if it is not its own.
"""

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from asyncnn.devices.statistics import DeviceStatistics
from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.types import (
    BufferRole,
    Capabilities,
    DeviceType,
    ErrorStatus,
    Extension,
    Model,
    OutputShape,
    RequestArgument,
    Timing,
)
from asyncnn.service.caches import NO_CACHE, CacheInfo

PROTOCOL_VERSION = 2

MAX_BOUND_BYTES = 16 * 1024
"""A `BindRequest` is no longer: bounds what a client can have the driver keep."""

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
    driver_version: str
    device_type: DeviceType
    capabilities: Capabilities
    extensions: tuple[Extension, ...]
    model_cache_files: int
    data_cache_files: int
    max_bound_requests: int
    max_pools: int


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

    pools: tuple[PoolInfo, ...]


class ForgetPools(_Message, frozen=True):
    """Pools that no later message is going to name."""

    numbers: tuple[int, ...]


class GetSupportedOperations(_Message, frozen=True):
    """`IDevice.get_supported_operations_1_3`; pools are the model's."""

    call: int
    model: Model
    pools: tuple[int, ...]


class SupportedOperations(_Message, frozen=True):
    """Answers `GetSupportedOperations`."""

    call: int
    status: int
    supported: tuple[bool, ...]


class GetStatistics(_Message, frozen=True):
    """`IMeasured.get_statistics`."""

    call: int


class Statistics(_Message, frozen=True):
    """Answers `GetStatistics` with what this client may know, or a status."""

    call: int
    status: int
    statistics: DeviceStatistics | None


class PrepareModel(_Message, frozen=True):
    """`IDevice.prepare_model_1_3`; the client numbers the prepared model to be.

    ``cache`` counts the descriptors beside the message.
    """

    prepared: int
    model: Model
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
    """

    prepared: int
    status: int
    reason: str
    signature: Model | None = None


class ReleasePreparedModel(_Message, frozen=True):
    """The client dropped a prepared model, or no longer waits for it."""

    prepared: int


class Execute(_Message, frozen=True):
    """`IPreparedModel.execute_1_3`; pools are the request's."""

    execution: int
    prepared: int
    inputs: tuple[RequestArgument, ...]
    outputs: tuple[RequestArgument, ...]
    pools: tuple[int, ...]
    measure: int
    deadline: int | None
    loop_timeout: int | None


class BindRequest(_Message, frozen=True):
    """A request that is going to be executed more than once: gives it a number.

    The driver forgets it with the prepared model or with one of the pools.
    """

    bound: int
    prepared: int
    inputs: tuple[RequestArgument, ...]
    outputs: tuple[RequestArgument, ...]
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
    descriptor beside the message. ``seen`` counts the ends that the client was told of.
    """

    order: Execute | ExecuteBound
    wait_for: tuple[int, ...]
    duration: int | None
    seen: int


class Several(_Message, frozen=True):
    """`ExecuteFenced` messages without descriptors, sent as one."""

    messages: tuple[ExecuteFenced, ...]


class FencedEnd(msgspec.Struct, frozen=True, array_like=True):
    """How a fenced execution ended, and when on the steady clock.

    Timings that are not available are left out.
    """

    execution: int
    status: int
    reason: str
    at_ns: int
    launched: Timing | None
    fenced: Timing | None


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
    output_shapes: tuple[OutputShape, ...]
    timing: Timing
    reason: str


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
    input_roles: tuple[BufferRole, ...]
    output_roles: tuple[BufferRole, ...]


class Allocated(_Message, frozen=True):
    """Answers `Allocate`."""

    buffer: int
    status: int
    token: int


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

    Of the descriptors beside it, the first ``request_fds`` are those of the queue for
    requests, all others those of the queue for results.
    """

    burst: int
    prepared: int
    request_ints: tuple[int, ...]
    result_ints: tuple[int, ...]
    request_fds: int


class BurstConfigured(_Message, frozen=True):
    """Answers `ConfigureBurst`."""

    burst: int
    status: int


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


ToDriver: TypeAlias = (
    Hello
    | AnnouncePools
    | ForgetPools
    | Memories
    | GetSupportedOperations
    | GetStatistics
    | PrepareModel
    | PrepareModelFromCache
    | ReleasePreparedModel
    | Execute
    | BindRequest
    | ExecuteBound
    | ExecuteFenced
    | ExportFence
    | Several
    | CancelExecution
    | ConfigureBurst
    | FreeMemory
    | CancelBurstRequest
    | ReleaseBurst
    | Allocate
    | CopyBufferTo
    | CopyBufferFrom
)
ToClient: TypeAlias = (
    Welcome
    | SupportedOperations
    | Statistics
    | Prepared
    | Executed
    | FencedDone
    | GetMemories
    | BurstConfigured
    | BurstEnded
    | Allocated
    | BufferCopied
)

encode: Callable[[ToDriver | ToClient], bytes] = msgspec.msgpack.Encoder().encode
"""Returns the bytes of a message."""

_to_driver: msgspec.msgpack.Decoder[ToDriver] = msgspec.msgpack.Decoder(ToDriver)
_to_client: msgspec.msgpack.Decoder[ToClient] = msgspec.msgpack.Decoder(ToClient)
_STATUSES = {int(status): status for status in ErrorStatus}
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def status_of(number: int) -> ErrorStatus:
    """Return the status that a driver, maybe a newer one, means."""
    return _STATUSES.get(number, ErrorStatus.GENERAL_FAILURE)


def encode_given(message: ToDriver) -> bytes:
    """Return the bytes of a message that holds what an application gave.

    :raises InvalidArgumentError: if that cannot be encoded.
    """
    try:
        return encode(message)
    except (msgspec.MsgspecError, OverflowError, TypeError) as error:
        raise InvalidArgumentError(f"cannot be sent: {error}") from error


def decode_to_driver(data: bytes | memoryview) -> ToDriver:
    """Return the message that a client sent.

    :raises InvalidArgumentError: if it is none; the path to the wrong field is named.
    """
    try:
        return _to_driver.decode(data)
    except _UNDECODABLE as error:
        raise InvalidArgumentError(f"not a message to a driver: {error}") from error


def decode_to_client(data: bytes | memoryview) -> ToClient:
    """Return the message that a driver sent.

    :raises InvalidArgumentError: if it is none; the path to the wrong field is named.
    """
    try:
        return _to_client.decode(data)
    except _UNDECODABLE as error:
        raise InvalidArgumentError(f"not a message to a client: {error}") from error
