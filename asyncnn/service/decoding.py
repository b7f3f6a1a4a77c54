"""What bytes from the other end mean; a client's are anything but trusted.

The interpreter does nothing else while something is decoded. So what a driver decodes
at once is bounded, and a large message is fetched from its file and decoded in slices,
on a thread.
"""

from typing import Any, NamedTuple, TypeAlias, cast

import msgspec
from msgspec.structs import replace

from asyncnn.errors import (
    AsyncnnError,
    InvalidArgumentError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.slices import Source, joined
from asyncnn.service.message_files import ReceivedFile
from asyncnn.service.wire import (
    LENGTH_BYTES,
    MAX_BOUND_BYTES,
    MAX_SLICES_BYTES,
    MAX_WHOLE_BYTES,
    SLICED,
    BindRequest,
    ToClient,
    ToDriver,
    WithModel,
    WithoutModel,
    WithSlices,
)

_without_model: msgspec.msgpack.Decoder[WithoutModel]
_without_model = msgspec.msgpack.Decoder(WithoutModel)
_with_slices: msgspec.msgpack.Decoder[WithSlices] = msgspec.msgpack.Decoder(WithSlices)
_to_client: msgspec.msgpack.Decoder[ToClient] = msgspec.msgpack.Decoder(ToClient)
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Unread(NamedTuple):
    """A client's message that resources did not suffice for: all but its slices."""

    message: WithSlices
    error: ResourceExhaustedTransientError


FromClient: TypeAlias = ToDriver | Unread


def decode_to_driver(data: bytes | memoryview) -> FromClient:
    """Return the message that a client sent.

    :raises InvalidArgumentError: if it is none; the path to the wrong field is named.
    """
    try:
        if data[:1] == SLICED:
            return _decode_sliced(memoryview(data), None)
        return _decode_whole(data)
    except _UNDECODABLE as error:
        raise InvalidArgumentError(f"not a message to a driver: {error}") from error


def decode_file_to_driver(file: ReceivedFile, error: AsyncnnError | None) -> FromClient:
    """Return the message that a client sent in a file, piece by piece.

    What would take much time or memory is not done if there is an ``error``.

    :raises InvalidArgumentError: as `decode_to_driver`, or if the file is not as it
        should be.
    """
    file.check()
    try:
        if file[:1] == SLICED:
            return _decode_sliced(file, error)
        _check_whole(len(file))
        return _decode_whole(file[:])
    except _UNDECODABLE as failure:
        raise InvalidArgumentError(f"not a message to a driver: {failure}") from failure


def _decode_whole(data: bytes | memoryview) -> ToDriver:
    _check_whole(len(data))
    message = _without_model.decode(data)
    if len(data) > MAX_BOUND_BYTES and type(message) is BindRequest:
        raise InvalidArgumentError("a request is too large to be bound")
    return cast("ToDriver", message)


def _check_whole(size: int) -> None:
    if size > MAX_WHOLE_BYTES:
        raise InvalidArgumentError(f"a message of {size} bytes is not sliced")


def _decode_sliced(data: Source, error: AsyncnnError | None) -> FromClient:
    start = len(SLICED) + LENGTH_BYTES
    length = int.from_bytes(data[len(SLICED) : start])
    _check_whole(length)
    message = _with_slices.decode(data[start : start + length])
    end = start + length
    if len(data) - end - message.model.operand_values > MAX_SLICES_BYTES:
        raise InvalidArgumentError("the slices of a model are too large")
    if error is not None:
        return Unread(message, ResourceExhaustedTransientError(str(error)))
    try:
        model = joined(message.model, data, start=end)
    except MemoryError:
        out = ResourceExhaustedTransientError("the driver has no memory for the model")
        return Unread(message, out)
    return cast("WithModel", replace(cast("Any", message), model=model))


def decode_to_client(data: bytes | memoryview) -> ToClient:
    """Return the message that a driver sent.

    :raises InvalidArgumentError: if it is none; the path to the wrong field is named.
    """
    try:
        return _to_client.decode(data)
    except _UNDECODABLE as error:
        raise InvalidArgumentError(f"not a message to a client: {error}") from error


def decode_file_to_client(file: ReceivedFile, _: AsyncnnError | None) -> ToClient:
    """Return the message that a driver sent in a file.

    :raises InvalidArgumentError: if it is none, or the file is not as it should be.
    """
    file.check()
    return decode_to_client(file[:])
