"""What the handle of a pool says, and what the seals of its file promise.

A handle stands for a span of a file and for what may be done with it:

========================  ===  ======================================================
kind                      fds  integers
========================  ===  ======================================================
``ashmem``                1    none; the descriptor says whether it may be written
``mmap_fd``               1    protection (1 read, 2 write), low and high 32 bits of
                               the offset
``hardware_buffer_blob``  1    width (the size), height 1, layers 1, format 0x21,
                               low and high 32 bits of the usage
========================  ===  ======================================================

The handle of a real hardware buffer is its allocator's secret. Here a blob is a memory
file, described by the fields of ``AHardwareBuffer_Desc`` in their order.

A handle that cannot be decoded is GENERAL_FAILURE: the pool may be one that another
driver understands. A kind that the HAL does not have is INVALID_ARGUMENT.

A file that loses bytes raises SIGBUS in every process that touches them. A memory file
sealed against shrinking does not: its pages appear on first use, and a hole punched in
it reads as zeros. That holds for ordinary pages only, as huge pages may have run out
when one is needed. Where the system promises no more memory than it has (overcommit
mode 2), the same can befall ordinary pages; such systems must bound their clients.

Source: HAL 1.0/types.hal (hidl_memory), graphics/common/1.0/types.hal (usage, format);
the memory pool page of the HAL's documentation for drivers (statuses).
"""

import errno
import fcntl
import functools
import mmap
import os
from typing import NamedTuple

from asyncnn.hal.errors import AsyncnnError, GeneralFailureError, InvalidArgumentError
from asyncnn.hal.types import Handle, Memory

READ = mmap.PROT_READ
WRITE = mmap.PROT_WRITE
READ_WRITE = READ | WRITE

BLOB_FORMAT = 0x21
CPU_READ_MASK = 0xF
CPU_WRITE_MASK = 0xF0
CPU_READ_OFTEN = 0x3
CPU_WRITE_OFTEN = 0x30

SHRINK = fcntl.F_SEAL_SHRINK
FIXED_SIZE = SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""Seals of every memory file made here: its size is final, and so are the seals."""

FIXED_CONTENTS = FIXED_SIZE | fcntl.F_SEAL_WRITE
"""Seals of a memory file whose contents are final, too."""

_FUTURE_WRITE = 0x10
_WRITES = fcntl.F_SEAL_WRITE | _FUTURE_WRITE
_NOEXEC_SEAL = 0x8
_ACCESS = os.O_ACCMODE | os.O_PATH

_WORD = 0xFFFF_FFFF
_LEAST = -(2**31)
"""Integers of a handle: 32 bits, with a sign or without."""

_INTS = {"ashmem": 0, "mmap_fd": 3, "hardware_buffer_blob": 6}


class MappedSpan(NamedTuple):
    """Bytes of a file, and the protection to map them with.

    A ``protection`` of 0 stands for whatever the descriptor allows.
    """

    fd: int
    protection: int
    offset: int
    length: int


def file_handle(span: MappedSpan) -> Handle:
    """Return the handle of an ``mmap_fd`` pool over ``span``."""
    return Handle((span.fd,), (span.protection, *_words(span.offset)))


def blob_handle(fd: int, size: int) -> Handle:
    """Return the handle of a ``hardware_buffer_blob`` that the CPU reads and writes."""
    usage = CPU_READ_OFTEN | CPU_WRITE_OFTEN
    return Handle((fd,), (size, 1, 1, BLOB_FORMAT, *_words(usage)))


def span_of(memory: Memory) -> MappedSpan:
    """Return the bytes that the handle of a pool stands for.

    Memory that may be written may be read as well: few processors distinguish them.

    :raises InvalidArgumentError: if the kind is unknown.
    :raises GeneralFailureError: if the handle is malformed, or the pool can be neither
        read nor written, as ones of kind ``hardware_buffer``.
    """
    name, size = memory.name, memory.size
    fds, ints = memory.handle.fds, memory.handle.ints
    if len(fds) != 1 or len(ints) != _INTS.get(name):
        raise malformed(memory)
    # Not `in range(...)`, which counts for other types than int, up to 2**32.
    if not all(isinstance(each, int) and _LEAST <= each <= _WORD for each in ints):
        raise GeneralFailureError("a handle has other than integers of 32 bits")
    if not ints:
        return MappedSpan(fds[0], 0, 0, size)
    if name == "mmap_fd":
        protection, low, high = ints
        if protection & ~READ_WRITE:
            raise GeneralFailureError(f"{protection:#x} is not a protection of memory")
        if not protection:
            raise GeneralFailureError("the pool may be neither read nor written")
        return MappedSpan(fds[0], protection | READ, _joined(low, high), size)
    return MappedSpan(fds[0], _blob_protection(ints, size), 0, size)


def label(memory: Memory) -> str:
    """Return what messages call a pool, without quoting what a client wrote into it."""
    return f"{memory.name} pool" if memory.name in _INTS else "pool of another kind"


def malformed(memory: Memory) -> AsyncnnError:
    """Return the error for a pool of unknown kind or with the wrong handle for it."""
    name = memory.name
    if name == "hardware_buffer":
        return GeneralFailureError(
            "a hardware_buffer pool has no linear bytes to map; use one of format BLOB"
        )
    if name not in _INTS:
        return InvalidArgumentError(f"{name[:40]!r} is not a kind of pool")
    return GeneralFailureError(
        f"the handle of a {name} pool has {len(memory.handle.fds)} descriptors and "
        f"{len(memory.handle.ints)} integers"
    )


def create_file(name: str) -> int:
    """Return the descriptor of a new, empty memory file that seals can be added to.

    ``name`` shows up in ``/proc`` only.
    """
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | _NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create(name, flags)  # Linux before 6.3


def seal(fd: int, seals: int) -> None:
    """Add ``seals`` to a memory file."""
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)


def seals_of(fd: int) -> int:
    """Return the seals of a file, 0 if it is of a kind that has none.

    Never waits for a file system, unlike ``fstat``.
    """
    return _seals(fd) or 0


def is_memory_file(fd: int) -> bool:
    """Return whether a file is of a kind that has seals. Never waits, either."""
    return _seals(fd) is not None


def _seals(fd: int) -> int | None:
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return None


def access_of(fd: int) -> int:
    """Return the flags of a descriptor by which it can be read and written."""
    return fcntl.fcntl(fd, fcntl.F_GETFL) & _ACCESS


def rights_of(access: int, seals: int) -> int:
    """Return the protection that a mapping of a file can have at most."""
    if access == os.O_RDWR and not seals & _WRITES:
        return READ_WRITE
    return READ if access in (os.O_RDONLY, os.O_RDWR) else 0


def keeps_its_bytes(seals: int, device: int) -> bool:
    """Return whether memory mapped from a file on ``device`` can never raise SIGBUS."""
    return bool(seals & SHRINK) and device == _memory_device()


def is_immutable(seals: int) -> bool:
    """Return whether the contents of the file are final."""
    return bool(seals & fcntl.F_SEAL_WRITE)


def _blob_protection(ints: tuple[int, ...], size: int) -> int:
    width, height, layers, format_, low, high = ints
    if (width & _WORD, height, layers, format_) != (size, 1, 1, BLOB_FORMAT):
        raise GeneralFailureError(
            f"a blob of {size} bytes is described as {width} x {height} x {layers} "
            f"of format {format_:#x}"
        )
    usage = _joined(low, high)
    if not usage & CPU_READ_MASK:
        raise GeneralFailureError("the CPU may not read the hardware buffer")
    return READ_WRITE if usage & CPU_WRITE_MASK else READ


def _words(value: int) -> tuple[int, int]:
    return value & _WORD, value >> 32


def _joined(low: int, high: int) -> int:
    return (high & _WORD) << 32 | low & _WORD


@functools.cache
def _memory_device() -> int:
    """Return the number of the file system of memory files with ordinary pages."""
    fd = create_file("asyncnn-probe")
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)
