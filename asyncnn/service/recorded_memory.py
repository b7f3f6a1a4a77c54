"""The memory in which a driver notes its calls, as it is written and as it is read.

It is a memory file of a fixed size: a head, a ring of records of one size, and two
halves of blobs, of which one is written until it is full. Then the other one is, and
begins with what is still in use. A record names blobs by numbers, so it matters to
nobody where they are. Whoever may look into the driver's process opens the file in
there, also when the driver is stopped, and keeps it beyond its death.

Nothing of it is trusted: a record that is being written has no number, a blob has a
checksum, and what refers to one that is gone does so in vain.
"""

import contextlib
import os
import struct
import time
import zlib
from collections.abc import Iterator
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import NamedTuple

from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.memory.handles import SHRINK, seals_of
from asyncnn.service.limits import MAX_CALLS

MEMORY_NAME = "asyncnn-calls"
MAGIC = b"ASNNCAL1"

HEAD = struct.Struct("<8sQQQQ")
"""Magic, records, bytes of a half, and the start on the day's clock and the steady."""

HEAD_BYTES = 4096
"""With the words of the driver on itself, a JSON object that a zero byte ends."""

RECORD = struct.Struct("<QqqiIQ")
"""Number of the call, begin and end (ns), status, flags, number of the result."""

TEMPLATE = struct.Struct("<IiIIQQQqqq")
"""What a record ends with: kind, measure, pid, connection, number of the client's,
subject, details, and deadline, loop timeout and duration in ns, -1 for none."""

RECORD_BYTES = RECORD.size + TEMPLATE.size
BLOB = struct.Struct("<QIIII")
"""Number, kind, length, checksum, nothing. Then come the bytes, up to 8 at a time."""

MAX_HALF_BYTES = 2**31
MOST = 2**63 - 1
"""Of a number in a template."""

PENDING = -1
"""Status of a call that has not ended."""


class CallKind(IntEnum):
    """What a client has called."""

    PREPARE = 1
    LOAD = 2
    SUPPORTED = 3
    EXECUTE = 4
    FENCED = 5
    BURST = 6
    ALLOCATE = 7
    COPY_TO = 8
    COPY_FROM = 9


class CallFlag(IntFlag):
    """What has happened to a call.

    It was cancelled, its client has gone, or what it had of its own is lost.
    """

    CANCELLED = 1
    LEFT = 2
    PARTIAL = 4


class BlobKind(IntEnum):
    """What the bytes of a blob are: MessagePack of what has that name."""

    MODEL = 1
    ROUTE = 2
    REQUEST = 3
    BUFFER = 4
    DETAILS = 5
    TENSORS = 6


class NotedCall(NamedTuple):
    """A record."""

    call: int
    began_ns: int
    ended_ns: int
    status: int
    flags: int
    result: int
    kind: int
    measure: int
    pid: int
    connection: int
    number: int
    subject: int
    details: int
    deadline: int
    loop_timeout: int
    duration: int


class Noted(NamedTuple):
    """What was found: words of the driver, records in order, and blobs by number."""

    driver: bytes
    started_ns: int
    steady_ns: int
    calls: list[NotedCall]
    blobs: dict[int, tuple[int, memoryview]]


def aligned(length: int) -> int:
    """Return the bytes that a blob of a length takes up, with what it begins with."""
    return BLOB.size + (length + 7 & ~7)


def until(deadline: int | None) -> int:
    """Return how long it is to a deadline, 0 if it has passed, -1 if there is none."""
    return -1 if deadline is None else max(0, none_or(deadline - time.monotonic_ns()))


def none_or(duration: int | None) -> int:
    """Return a duration as templates have it."""
    return -1 if duration is None else min(duration, MOST)


def read_memory(fd: int) -> Noted:
    """Return what a driver has noted in a file. It may be going on, or be dead.

    :raises InvalidArgumentError: if it is no such file.
    :raises GeneralFailureError: if it cannot be read.
    """
    try:
        size = os.fstat(fd).st_size
        head = os.pread(fd, HEAD_BYTES, 0)
        if len(head) < HEAD_BYTES:
            raise InvalidArgumentError("the memory of a driver's calls is too short")
        magic, count, half, started_ns, steady_ns = HEAD.unpack_from(head)
        if magic != MAGIC or not 0 < count <= MAX_CALLS or half > MAX_HALF_BYTES:
            raise InvalidArgumentError("there are no calls of a driver in the memory")
        if size != HEAD_BYTES + aligned_records(count) + 2 * half:
            raise InvalidArgumentError("the memory of a driver's calls is cut short")
        # The calls first: blobs that they name stay at least until the next half.
        records = _pread(fd, count * RECORD_BYTES, HEAD_BYTES)
        blobs: dict[int, tuple[int, memoryview]] = {}
        for number in range(2):
            start = HEAD_BYTES + aligned_records(count) + number * half
            blobs.update(_blobs(fd, start, half))
    except OSError as error:
        reason = f"the calls of a driver cannot be read: {error.strerror}"
        raise GeneralFailureError(reason) from error
    words = head[HEAD.size :].partition(b"\0")[0]
    return Noted(words, started_ns, steady_ns, _calls(records, count), blobs)


def aligned_records(count: int) -> int:
    """Return the bytes of the ring, whose end is one of a page."""
    return -(-count * RECORD_BYTES // HEAD_BYTES) * HEAD_BYTES


def _pread(fd: int, length: int, start: int) -> bytes:
    found = os.pread(fd, length, start)
    if len(found) < length:
        raise InvalidArgumentError("the memory of a driver's calls is cut short")
    return found


def _calls(records: bytes, count: int) -> list[NotedCall]:
    """Return the records that are whole, in the order of their calls."""
    found = []
    for place in range(count):
        at = place * RECORD_BYTES
        fields = RECORD.unpack_from(records, at)
        # Of one that is being changed the number is 0, or of another place.
        if fields[0] and fields[0] % count == place:
            template = TEMPLATE.unpack_from(records, at + RECORD.size)
            found.append(NotedCall(*fields, *template))
    found.sort()
    newest = found[-1].call if found else 0
    return [each for each in found if each.call > newest - count]


def _blobs(
    fd: int, start: int, size: int
) -> Iterator[tuple[int, tuple[int, memoryview]]]:
    """Yield the blobs of a half, by number, up to the first that is not whole."""
    at = 0
    while at + BLOB.size <= size:
        head = _pread(fd, BLOB.size, start + at)
        number, kind, length, checksum, _ = BLOB.unpack(head)
        if not number or at + BLOB.size + length > size:
            return
        data = _pread(fd, length, start + at + BLOB.size)
        if zlib.crc32(data) != checksum:
            return
        yield number, (kind, memoryview(data))
        at += aligned(length)


def open_memory(pid: int) -> int:
    """Return a descriptor of the memory in which a process notes its calls.

    That is for who may look into the process: its own user, and root.

    :raises GeneralFailureError: if it notes none, or may not be looked into.
    """
    folder = Path(f"/proc/{pid}/fd")
    try:
        entries = list(folder.iterdir())
    except OSError as error:
        reason = f"process {pid} cannot be looked into: {error.strerror}"
        raise GeneralFailureError(reason) from error
    for entry in entries:
        with contextlib.suppress(OSError):  # it was closed meanwhile
            if os.readlink(entry).startswith(f"/memfd:{MEMORY_NAME}"):
                fd = os.open(entry, os.O_RDONLY | os.O_CLOEXEC)
                # Clients may send files of that name; drivers keep none that is sealed.
                if seals_of(fd) & SHRINK:
                    return fd
                os.close(fd)
    raise GeneralFailureError(
        f"the driver (process {pid}) records no calls",
        hint="start it with asyncnn serve --record 1000",
    )
