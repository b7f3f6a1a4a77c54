"""What the kernel tells of a fence of its own, a ``sync_file``.

Source: Linux, include/uapi/linux/sync_file.h (SYNC_IOC_FILE_INFO).
"""

import ctypes
import fcntl
import os
import struct

from asyncnn.fences.outcome import Outcome
from asyncnn.hal.types import ErrorStatus

_FILE_INFO = struct.Struct("32siIIIQ")  # name, status, flags, fences, padding, address
_FENCE_INFO = struct.Struct("32s32siIQ")  # object, driver, status, flags, time in ns
_IOC_FILE_INFO = 3 << 30 | _FILE_INFO.size << 16 | ord(">") << 8 | 4
_MOST_FENCES = 1024


def is_sync_file(fd: int) -> bool:
    """Return whether ``fd`` is a fence of the kernel."""
    try:
        _ask(fd, 0, 0)
    except OSError:
        return False
    return True


def outcome_of_sync_file(fd: int) -> Outcome | None:
    """Return how a fence of the kernel ended, None while it is active.

    Its time is that of the last of the fences that were merged into it.
    """
    status, count = _ask(fd, 0, 0)
    if status == 0:
        return None
    if status < 0:
        reason = f"the kernel's fence failed: {os.strerror(-status)}"
        return Outcome(ErrorStatus.GENERAL_FAILURE, reason, _ended_at_ns(fd, count))
    return Outcome(ErrorStatus.NONE, "", _ended_at_ns(fd, count))


def _ended_at_ns(fd: int, count: int) -> int | None:
    if not 0 < count <= _MOST_FENCES:
        return None
    fences = ctypes.create_string_buffer(count * _FENCE_INFO.size)
    try:
        _ask(fd, count, ctypes.addressof(fences))
    except OSError:
        return None
    return max(at_ns for *_, at_ns in _FENCE_INFO.iter_unpack(fences.raw)) or None


def _ask(fd: int, room: int, address: int) -> tuple[int, int]:
    question = _FILE_INFO.pack(b"", 0, 0, room, 0, address)
    _, status, _, count, _, _ = _FILE_INFO.unpack(
        fcntl.ioctl(fd, _IOC_FILE_INFO, question)
    )
    return status, count
