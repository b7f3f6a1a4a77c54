"""Buffers that devices share by descriptor: dma-bufs, as DRM and others export them.

What is in one may lie in caches of a processor or of a device. So whoever touches it
tells the kernel where that begins and ends, and maps it no longer than for that. A
dma-buf cannot be read and written like a file, nor does it shrink.

Source: the kernel's documentation of dma-buf (DMA_BUF_IOCTL_SYNC).
"""

import errno
import fcntl
import os
import stat
import struct
from collections.abc import Callable
from functools import partial

from asyncnn.memory.descriptors import Descriptor

SYNC = 0x4008_6200
"""Number of the call: begins or ends an access."""

SYNC_READ, SYNC_WRITE = 1, 2
SYNC_START, SYNC_END = 0, 4

_FLAGS = struct.Struct("Q")
_NAME = "/dmabuf:"


def is_dma_buf(fd: int, status: os.stat_result) -> bool:
    """Tell whether a descriptor, which has this status, is that of a dma-buf."""
    if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
        return False
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith(_NAME)
    except OSError:
        return False


def accessed(fd: int, *, writes: bool) -> Callable[[], None]:
    """Tell the kernel that an access begins; calling the result tells of its end.

    The descriptor may be closed before.

    :raises OSError: if descriptors have run out, or the exporter fails at it.
    """
    file = Descriptor(os.dup(fd))
    kind = SYNC_READ | SYNC_WRITE if writes else SYNC_READ
    _sync(file, SYNC_START | kind)
    return partial(_sync, file, SYNC_END | kind)


def _sync(file: Descriptor, flags: int) -> None:
    while True:
        try:
            fcntl.ioctl(file.fd, SYNC, _FLAGS.pack(flags))
        except OSError as error:
            if error.errno not in (errno.EINTR, errno.EAGAIN):
                raise
        else:
            return
