"""Recordings: the last calls of a driver in a file, which can be repeated.

A file has a magic, the SHA-256 of what follows, and that in MessagePack. It is written
by whoever has the memory that a driver notes its calls in. Files are not trusted: all
counts and sizes are bounded before anything is made of them. Tensors and models are
in it only if the driver was to keep them.
"""

import hashlib
import os
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from asyncnn import hal
from asyncnn.hal.routes import Route
from asyncnn.hal.slices import SlicedModel, joined, sliced
from asyncnn.input_files import read_input
from asyncnn.output_files import write_file
from asyncnn.service.limits import MAX_CALLS
from asyncnn.service.recorded_memory import (
    BlobKind,
    CallFlag,
    CallKind,
    Noted,
    NotedCall,
    read_memory,
)

MAGIC = b"ASNNREC\x01"
_MOST_BYTES = 2**33
_DIGEST_BYTES = 32

T = TypeVar("T")
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Size = Annotated[int, Meta(ge=0, le=2**32)]
Few = Meta(max_length=2**16)


class RecordedDriver(msgspec.Struct, frozen=True):
    """Whose calls they are: the device it was to publish, and its settings."""

    device: str = ""
    version: str = ""
    settings: Annotated[tuple[str, ...], Few] = ()
    extensions: Annotated[tuple[str, ...], Few] = ()
    pid: Number = 0


class RecordedModel(msgspec.Struct, frozen=True, array_like=True):
    """A model, and how it was to be prepared.

    ``content`` and ``pools`` are empty if only its ``digest`` was kept.
    """

    digest: Annotated[bytes, Meta(max_length=_DIGEST_BYTES)]
    size: Number
    operations: Number
    content: bytes = b""
    pools: Annotated[tuple[bytes, ...], Few] = ()
    preference: int = 0
    priority: int = 0


class RecordedPool(msgspec.Struct, frozen=True, array_like=True):
    """A pool, the same wherever its number is; or a device-managed buffer's token."""

    number: Number
    size: Size
    is_buffer: bool = False


class RecordedRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request for a model, by the number of that."""

    model: Number
    inputs: Annotated[tuple[hal.RequestArgument, ...], Few]
    outputs: Annotated[tuple[hal.RequestArgument, ...], Few]
    pools: Annotated[tuple[RecordedPool, ...], Few]


class RecordedBuffer(msgspec.Struct, frozen=True, array_like=True):
    """A device-managed buffer: what it was allocated for, and its token."""

    dimensions: Annotated[tuple[int, ...], Few]
    models: Annotated[tuple[int, ...], Few]
    input_roles: Annotated[tuple[hal.BufferRole, ...], Few]
    output_roles: Annotated[tuple[hal.BufferRole, ...], Few]
    token: Number


class RecordedRoute(msgspec.Struct, frozen=True, array_like=True):
    """How executions of a model usually went, by the number of that."""

    model: Number
    route: Route


Tensors = Annotated[tuple[bytes | None, ...], Few]
"""Bytes of arguments, None of those that were not kept."""

Pools: TypeAlias = Sequence[hal.Memory | hal.BufferToken]


class CallDetails(msgspec.Struct, frozen=True, array_like=True):
    """What a call has of its own.

    ``wait_for`` has the client's numbers of executions; ``foreign`` other fences were
    waited for. A copy is of ``buffer`` and has ``dimensions``.
    """

    inputs: Tensors = ()
    wait_for: Annotated[tuple[int, ...], Few] = ()
    foreign: Number = 0
    buffer: Number = 0
    dimensions: Annotated[tuple[int, ...], Few] = ()


class RecordedCall(msgspec.Struct, frozen=True, array_like=True):
    """A call; times are nanoseconds, None where there is none.

    ``status`` is None of one that has not ended. ``deadline`` counts from its begin.
    ``subject`` is the number of its model or request, 0 if that is not known.
    """

    kind: CallKind
    status: int | None
    flags: CallFlag
    pid: Number
    connection: Number
    number: Number
    began_ns: Number
    ended_ns: Number | None
    subject: Number
    measure: int
    deadline: int | None
    loop_timeout: int | None
    duration: int | None
    details: CallDetails = CallDetails()
    outputs: Tensors = ()
    buffer: Number = 0


class CallRecord(msgspec.Struct, frozen=True):
    """A recording. Times count from its first call, ``began_ns`` of the day's clock."""

    driver: RecordedDriver
    began_ns: Number
    calls: Annotated[tuple[RecordedCall, ...], Meta(max_length=MAX_CALLS)]
    models: dict[Number, RecordedModel]
    requests: dict[Number, RecordedRequest]
    buffers: dict[Number, RecordedBuffer]
    routes: Annotated[tuple[RecordedRoute, ...], Meta(max_length=MAX_CALLS)] = ()

    def of_calls(self, calls: tuple[RecordedCall, ...]) -> "CallRecord":
        """Return a recording of some of its calls and what these are of."""
        subjects = {each.subject for each in calls}
        requests = {k: v for k, v in self.requests.items() if k in subjects}
        tokens = {p.number for r in requests.values() for p in r.pools if p.is_buffer}
        tokens |= {each.details.buffer for each in calls}
        buffers = {
            number: each
            for number, each in self.buffers.items()
            if number in {call.buffer for call in calls} or each.token in tokens
        }
        used = subjects | {each.model for each in requests.values()}
        used = used.union(*(each.models for each in buffers.values()))
        models = {k: v for k, v in self.models.items() if k in used}
        routes = tuple([each for each in self.routes if each.model in used])
        return msgspec.structs.replace(
            self,
            calls=calls,
            models=models,
            requests=requests,
            buffers=buffers,
            routes=routes,
        )


_decode = msgspec.msgpack.Decoder(CallRecord).decode
encode = msgspec.msgpack.Encoder().encode
_BLOBS: dict[BlobKind, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(type_)
    for kind, type_ in {
        BlobKind.MODEL: RecordedModel,
        BlobKind.ROUTE: RecordedRoute,
        BlobKind.REQUEST: RecordedRequest,
        BlobKind.BUFFER: RecordedBuffer,
        BlobKind.DETAILS: CallDetails,
        BlobKind.TENSORS: Tensors,
    }.items()
}
_WRONG = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


def encoded_model(model: hal.Model) -> tuple[bytes, int]:
    """Return a model as bytes, all but its pools, and the number of its operations."""
    head, slices = sliced(model)
    begin = encode(head)
    content = b"".join((len(begin).to_bytes(4, "little"), begin, *slices))
    return content, len(model.main.operations)


def digest_of(content: bytes, pools: tuple[bytes | memoryview, ...]) -> bytes:
    """Return what distinguishes a model from others."""
    digest = hashlib.sha256(content)
    for pool in pools:
        digest.update(len(pool).to_bytes(8, "little"))
        digest.update(pool)
    return digest.digest()


def pool_of(pool: hal.Memory | hal.BufferToken) -> RecordedPool:
    """Return what is recorded of a pool."""
    if isinstance(pool, hal.BufferToken):
        return RecordedPool(pool.token, 0, is_buffer=True)
    # Pools of one announcement have the same bytes, whoever names them.
    same = pool if pool.buffer is None else pool.buffer
    return RecordedPool(id(same), pool.size)


def whole(pool: hal.Memory) -> hal.RequestArgument:
    """Return an argument that is all of the first pool."""
    return hal.RequestArgument(False, hal.DataLocation(0, 0, pool.size))


def tensors_of(
    pools: Pools, arguments: Sequence[hal.RequestArgument], most_bytes: int
) -> Tensors | None:
    """Return the bytes of arguments, None of those that are not there to be read.

    Return None if they are more than ``most_bytes``.
    """
    found: list[bytes | None] = []
    for each in arguments:
        place = each.location
        data = None
        if not each.has_no_value and 0 <= place.pool_index < len(pools):
            pool = pools[place.pool_index]
            if isinstance(pool, hal.Memory):
                data = _viewed(pool, place.offset, place.offset + place.length)
        # Before it is copied: all arguments of a request may be the same bytes.
        most_bytes -= 0 if data is None else len(data)
        if most_bytes < 0:
            return None
        found.append(None if data is None else bytes(data))
    return tuple(found)


def _viewed(pool: hal.Memory, start: int, end: int) -> memoryview | None:
    """Return bytes of a pool; None if it is not mapped, or has not as many."""
    if pool.buffer is None or not 0 <= start <= end <= pool.size:
        return None
    return pool.buffer[start:end]


_head = msgspec.msgpack.Decoder(SlicedModel).decode


def decoded_model(content: bytes) -> hal.Model:
    """Return a model, but for its pools, of what `encoded_model` gives.

    :raises InvalidArgumentError: if it is damaged.
    """
    end = 4 + int.from_bytes(content[:4], "little")
    try:
        return joined(_head(content[4:end]), memoryview(content), start=end)
    except _WRONG as error:
        raise hal.InvalidArgumentError(
            f"a recorded model is damaged: {error}"
        ) from error


def record_of(noted: Noted) -> CallRecord:
    """Return the recording of what a driver has noted; what is damaged is left out."""
    found: dict[BlobKind, dict[int, Any]] = {kind: {} for kind in BlobKind}
    for number, (kind, data) in noted.blobs.items():
        try:
            found[BlobKind(kind)][number] = _BLOBS[BlobKind(kind)].decode(data)
        except _WRONG:
            continue
    try:
        driver = msgspec.json.decode(noted.driver, type=RecordedDriver)
    except _WRONG:
        driver = RecordedDriver()
    first_ns = noted.calls[0].began_ns if noted.calls else noted.steady_ns
    calls = []
    for each in noted.calls:
        try:
            calls.append(_call_of(each, first_ns, found))
        except _WRONG:  # no such kind
            continue
    record = CallRecord(
        driver=driver,
        began_ns=max(0, noted.started_ns + first_ns - noted.steady_ns),
        calls=tuple(calls),
        models=found[BlobKind.MODEL],
        requests=found[BlobKind.REQUEST],
        buffers=found[BlobKind.BUFFER],
        routes=tuple(found[BlobKind.ROUTE].values()),
    )
    return record.of_calls(record.calls)


def _call_of(
    noted: NotedCall, first_ns: int, found: dict[BlobKind, dict[int, Any]]
) -> RecordedCall:
    has_ended = noted.ended_ns >= noted.began_ns
    flags = CallFlag(noted.flags & sum(CallFlag))
    if noted.details and noted.details not in found[BlobKind.DETAILS]:
        flags |= CallFlag.PARTIAL
    call = RecordedCall(
        kind=CallKind(noted.kind),
        status=noted.status if has_ended else None,
        flags=flags,
        pid=noted.pid,
        connection=noted.connection,
        number=noted.number,
        began_ns=max(0, noted.began_ns - first_ns),
        ended_ns=max(0, noted.ended_ns - first_ns) if has_ended else None,
        subject=noted.subject,
        measure=noted.measure,
        deadline=_given(noted.deadline),
        loop_timeout=_given(noted.loop_timeout),
        duration=_given(noted.duration),
        details=found[BlobKind.DETAILS].get(noted.details, CallDetails()),
        outputs=found[BlobKind.TENSORS].get(noted.result, ()),
        buffer=noted.result if noted.result in found[BlobKind.BUFFER] else 0,
    )
    plain = msgspec.to_builtins(call, builtin_types=(bytes,))
    return msgspec.convert(plain, RecordedCall)


def _given(duration: int) -> int | None:
    return None if duration < 0 else duration


def write_record(record: CallRecord, path: str | os.PathLike[str]) -> None:
    """Write a recording, for this user alone.

    :raises OSError: if that is not possible.
    """
    content = encode(record)
    digest = hashlib.sha256(content).digest()
    write_file(path, b"".join((MAGIC, digest, content)), is_private=True)


def read_record(path: str | os.PathLike[str]) -> CallRecord:
    """Return a recording that a file holds.

    :raises InvalidArgumentError: if it is none, or damaged.
    :raises OSError: if it cannot be read.
    """
    where = os.fspath(path)
    data = read_input(path)
    start = len(MAGIC) + _DIGEST_BYTES
    if not data.startswith(MAGIC):
        words = f"{where} is no recording of calls, or of another version"
        raise hal.InvalidArgumentError(words)
    content = memoryview(data)[start:]
    if hashlib.sha256(content).digest() != data[len(MAGIC) : start]:
        raise hal.InvalidArgumentError(
            f"{where} is damaged: its checksum is another, or it was cut short"
        )
    try:
        record = _decode(content)
    except _WRONG as error:
        raise hal.InvalidArgumentError(f"{where} is no recording: {error}") from error
    # Many requests name the same pools, and copies of a connection have theirs.
    pools = {(p.number, p.size) for r in record.requests.values() for p in r.pools}
    copies = (CallKind.COPY_TO, CallKind.COPY_FROM)
    pools |= {(-c.connection, c.number) for c in record.calls if c.kind in copies}
    total = sum(size for _, size in pools)
    if total > _MOST_BYTES:
        raise hal.InvalidArgumentError(f"{where} has pools of {total} bytes")
    return record


def save_memory(fd: int, path: str | os.PathLike[str]) -> CallRecord:
    """Write what a driver has noted in a file to another one; return it.

    :raises AsyncnnError: if there is nothing of the kind.
    :raises OSError: if it cannot be written.
    """
    record = record_of(read_memory(fd))
    write_record(record, path)
    return record
