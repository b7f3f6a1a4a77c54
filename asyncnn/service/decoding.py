"""What bytes from the other end mean, and what may be sent in them.

Bytes of a client are not trusted. The interpreter does nothing else while something is
decoded. So what a driver decodes at once is bounded, and a large message is fetched
from its sealed file and decoded in slices, on a thread.
"""

import fcntl
import os
from typing import Any, NamedTuple, NoReturn, TypeAlias, cast

import msgspec
from msgspec.structs import replace

from asyncnn.hal.errors import (
    AsyncnnError,
    InvalidArgumentError,
    ResourceExhaustedPersistentError,
    ResourceExhaustedTransientError,
    in_one_line,
)
from asyncnn.hal.slices import ByteSource, joined
from asyncnn.memory.descriptors import Descriptor
from asyncnn.memory.handles import FIXED_CONTENTS, create_file, seal
from asyncnn.memory.pages import write_all
from asyncnn.service.limits import ServiceLimits
from asyncnn.service.wire import (
    LENGTH_BYTES,
    MAX_BOUND_BYTES,
    MAX_SLICES_BYTES,
    MAX_WHOLE_BYTES,
    MESSAGES_WITH_MODELS,
    SLICED,
    BindRequest,
    ToClient,
    ToDriver,
    WithModel,
    WithoutModel,
    WithSlices,
    encode_flat,
    parts_of,
)

_CHUNK_BYTES = 2**20
_BLOCK_BYTES = 512
"""What ``st_blocks`` counts."""


class MessageFile:
    """A file of ``size`` bytes, ready to be sent; it goes with this object.

    :raises OSError: if memory or descriptors have run out.
    """

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self._file = Descriptor(create_file("asyncnn-message"))
        write_all(self.fd, memoryview(data), 0)
        seal(self.fd, FIXED_CONTENTS)

    @property
    def fd(self) -> int:
        """The descriptor of the file."""
        return self._file.fd


class ReceivedFile:
    """A message of ``size`` bytes in a memory file that the peer sent.

    Slicing it returns that piece; one thread at a time may. The file is read in chunks,
    which others need not wait for, and is not mapped. Chunks are large: a thread that
    often lets go of the interpreter for a moment keeps all others from getting it.
    """

    def __init__(self, file: Descriptor, size: int) -> None:
        self.size = size
        self._file = file
        self._chunk = memoryview(b"")
        self._chunk_at = 0

    @property
    def fd(self) -> int:
        """The descriptor of the file."""
        return self._file.fd

    def check(self) -> None:
        """Check that reading costs the peer what it costs us, and waits for nobody.

        The seals vouch for the latter, and that it is a memory file. A sparse one would
        have our pages filled with zeros that its sender never had.

        :raises InvalidArgumentError: if it is not sealed, shorter, or sparse.
        """
        fd = self._file.fd
        try:
            # First: without seals, the peer can change what is looked at below.
            if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & FIXED_CONTENTS != FIXED_CONTENTS:
                raise InvalidArgumentError("a message's file is not sealed")
            status = os.fstat(fd)
        except OSError as error:
            raise _unreadable(error) from error
        if status.st_size < self.size:
            raise InvalidArgumentError("a message's file is shorter than it says")
        if status.st_blocks * _BLOCK_BYTES < self.size:
            raise InvalidArgumentError("a message's file is sparse")

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, span: slice) -> bytes | memoryview:
        """Return bytes of the message, as many as there are.

        :raises InvalidArgumentError: if they cannot be read.
        :raises MemoryError: if memory has run out.
        """
        start, stop, _ = span.indices(self.size)
        if stop - start > _CHUNK_BYTES:
            return self._read(start, stop - start)
        at = start - self._chunk_at
        if at < 0 or at + stop - start > len(self._chunk):
            try:
                self._chunk = memoryview(self._read(start, _CHUNK_BYTES))
            except MemoryError:  # there may be enough for what is asked for
                return self._read(start, stop - start)
            self._chunk_at, at = start, 0
        return self._chunk[at : at + stop - start]

    def _read(self, start: int, length: int) -> bytes:
        try:
            return os.pread(self._file.fd, length, start)
        except OSError as error:
            raise _unreadable(error) from error


def _unreadable(error: OSError) -> InvalidArgumentError:
    return InvalidArgumentError(f"a message's file cannot be read: {error.strerror}")


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


Received: TypeAlias = bytes | memoryview | ReceivedFile
"""The bytes of a message; those in a file are fetched piece by piece."""


def decode_to_driver(data: Received, error: AsyncnnError | None = None) -> FromClient:
    """Return the message that a client sent.

    What would take much time or memory is not done if there is an ``error``.

    :raises InvalidArgumentError: if it is none, the path to the wrong field is named;
        or if its file is not as it should be.
    """
    if isinstance(data, ReceivedFile):
        data.check()
    try:
        if data[:1] == SLICED:
            source = memoryview(data) if isinstance(data, bytes) else data
            return _decode_sliced(source, error)
        size = len(data)
        if size > MAX_WHOLE_BYTES:
            _refuse_whole(size)
        message = _without_model.decode(data[:])
        if size > MAX_BOUND_BYTES and type(message) is BindRequest:
            raise InvalidArgumentError("a request is too large to be bound")
    except _UNDECODABLE as failure:
        raise _undecodable("driver", failure) from failure
    return cast("ToDriver", message)


def _refuse_whole(size: int) -> NoReturn:
    raise InvalidArgumentError(f"a message of {size} bytes is not sliced")


def _decode_sliced(data: ByteSource, error: AsyncnnError | None) -> FromClient:
    start = len(SLICED) + LENGTH_BYTES
    length = int.from_bytes(data[len(SLICED) : start])
    # Before it is decoded, as a client may say any length, and nothing else runs then.
    if length > MAX_WHOLE_BYTES:
        _refuse_whole(length)
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


def decode_to_client(data: Received, _: AsyncnnError | None = None) -> ToClient:
    """Return the message that a driver sent.

    :raises InvalidArgumentError: if it is none, the path to the wrong field is named;
        or if its file is not as it should be.
    """
    if isinstance(data, ReceivedFile):
        data.check()
        data = data[:]
    try:
        return _to_client.decode(data)
    except _UNDECODABLE as error:
        raise _undecodable("client", error) from error


def _undecodable(whom: str, error: Exception) -> InvalidArgumentError:
    """Return what is logged of bytes of the other end, which the error may quote."""
    return InvalidArgumentError(in_one_line(f"not a message to a {whom}: {error}"))


def encode_given(message: ToDriver) -> bytes:
    """Return the bytes of a message that holds what an application gave.

    :raises InvalidArgumentError: if that cannot be encoded.
    :raises ResourceExhaustedPersistentError: if a driver would not take it.
    """
    values = b""
    try:
        if isinstance(message, MESSAGES_WITH_MODELS):
            start, head, *slices, values = parts_of(message)
            _check_size(len(head), MAX_WHOLE_BYTES)
            _check_size(sum(map(len, slices)), MAX_SLICES_BYTES)
            data = b"".join((start, head, *slices, values))
        else:
            data = encode_flat(message)
            if len(data) > MAX_WHOLE_BYTES:
                _check_size(len(data), MAX_WHOLE_BYTES)
            return data
    except (msgspec.MsgspecError, OverflowError, TypeError) as error:
        raise InvalidArgumentError(f"cannot be sent: {error}") from error
    hint = "put constants into pools" if values else ""
    _check_size(len(data), ServiceLimits().max_message_bytes, hint)
    return data


def _check_size(size: int, most: int, hint: str = "") -> None:
    if size > most:
        raise ResourceExhaustedPersistentError(
            f"a message of {size} bytes is too large: {most} is the limit", hint=hint
        )
