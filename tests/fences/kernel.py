"""Fences of the kernel: those of ``sw_sync``, or a stand-in where it is not offered.

Which of the two the tests used is the name that they give to the fence.

Source: Linux, drivers/dma-buf/sw_sync.c.
"""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SW_SYNC = Path("/sys/kernel/debug/sync/sw_sync")
_CREATE = struct.Struct("I32si")
_IOC_CREATE_FENCE = 3 << 30 | _CREATE.size << 16 | ord("W") << 8 | 0
_IOC_INC = 1 << 30 | 4 << 16 | ord("W") << 8 | 1

OFFERED = os.access(_SW_SYNC, os.R_OK | os.W_OK)
KIND = "sw_sync" if OFFERED else "stand_in_for_sw_sync"


class Timeline:
    """A counter of the kernel, whose fences signal when it advances."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fence(self) -> int:
        question = _CREATE.pack(1, b"test", 0)
        _, _, fence = _CREATE.unpack(fcntl.ioctl(self._fd, _IOC_CREATE_FENCE, question))
        return int(fence)

    def advance(self) -> None:
        fcntl.ioctl(self._fd, _IOC_INC, struct.pack("I", 1))


class StandIn:
    """A pipe that becomes readable, which is all that is asked of such a fence."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader = reader
        self._writer = writer

    def fence(self) -> int:
        return os.dup(self._reader)

    def advance(self) -> None:
        os.write(self._writer, b"x")


@contextmanager
def timeline() -> Iterator[Timeline | StandIn]:
    fds = (os.open(_SW_SYNC, os.O_RDWR),) if OFFERED else os.pipe()
    try:
        yield Timeline(*fds) if OFFERED else StandIn(*fds)
    finally:
        for fd in fds:
            os.close(fd)
