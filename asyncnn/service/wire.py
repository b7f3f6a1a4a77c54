"""The messages between client and driver, and how they become bytes.

Each is a record in a tagged union, encoded as MessagePack. A client numbers its calls
and the objects that it owns: callbacks, prepared models, pools. Numbers mean nothing on
another connection. Pools are announced once with their descriptor and named by number
from then on.

The first message of each side is a greeting with the version of this protocol; the
other side hangs up if it is not its own.
"""

from typing import TypeAlias

import msgspec

from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.types import (
    Capabilities,
    DeviceType,
    Extension,
    Model,
    OutputShape,
    RequestArgument,
    Timing,
)

PROTOCOL_VERSION = 1


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


class GetStatus(_Message, frozen=True):
    """`IDevice.get_status`."""

    call: int


class Status(_Message, frozen=True):
    """Answers `GetStatus`."""

    call: int
    status: int


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


class PrepareModel(_Message, frozen=True):
    """`IDevice.prepare_model_1_3`; the client numbers the prepared model to be."""

    prepared: int
    model: Model
    pools: tuple[int, ...]
    preference: int
    priority: int
    deadline: int | None


class Prepared(_Message, frozen=True):
    """Notifies an `IPreparedModelCallback`; ``reason`` explains a failure."""

    prepared: int
    status: int
    reason: str


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


ToDriver: TypeAlias = (
    Hello
    | AnnouncePools
    | ForgetPools
    | GetStatus
    | GetSupportedOperations
    | PrepareModel
    | ReleasePreparedModel
    | Execute
    | CancelExecution
)
ToClient: TypeAlias = Welcome | Status | SupportedOperations | Prepared | Executed

_encoder = msgspec.msgpack.Encoder()
_to_driver: msgspec.msgpack.Decoder[ToDriver] = msgspec.msgpack.Decoder(ToDriver)
_to_client: msgspec.msgpack.Decoder[ToClient] = msgspec.msgpack.Decoder(ToClient)
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def encode(message: ToDriver | ToClient) -> bytes:
    """Return the bytes of ``message``."""
    return _encoder.encode(message)


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
