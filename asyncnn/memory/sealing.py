"""Memory files, and what their seals promise to whoever maps them.

A file that loses bytes raises SIGBUS in every process that touches them. A memory file
sealed against shrinking does not: its pages appear on first use, and a hole punched in
it reads as zeros. That holds for ordinary pages only, as huge pages may have run out
when one is needed. Where the system promises no more memory than it has (overcommit
mode 2), the same can befall ordinary pages; such systems must bound their clients.
"""

import errno
import fcntl
import functools
import os

from asyncnn.memory.handles import READ, READ_WRITE

SHRINK = fcntl.F_SEAL_SHRINK
FIXED_SIZE = SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""Seals of every memory file made here: its size is final, and so are the seals."""
FIXED_CONTENTS = FIXED_SIZE | fcntl.F_SEAL_WRITE
"""Seals of a memory file that nobody can change any more."""

_FUTURE_WRITE = 0x10
_WRITES = fcntl.F_SEAL_WRITE | _FUTURE_WRITE
_NOEXEC_SEAL = 0x8
_ACCESS = os.O_ACCMODE | os.O_PATH


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
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return 0


def access_of(fd: int) -> int:
    """Return the flags of a descriptor that bear on what it may be used for."""
    return fcntl.fcntl(fd, fcntl.F_GETFL) & _ACCESS


def rights_of(access: int, seals: int) -> int:
    """Return the protection that a mapping of a file can have at most."""
    if access == os.O_RDWR and not seals & _WRITES:
        return READ_WRITE
    return READ if access in (os.O_RDONLY, os.O_RDWR) else 0


def keeps_its_bytes(seals: int, device: int) -> bool:
    """Tell whether memory mapped from a file on ``device`` can never raise SIGBUS."""
    return bool(seals & SHRINK) and device == _memory_device()


def is_immutable(seals: int) -> bool:
    """Tell whether nobody can write to the file any more."""
    return bool(seals & fcntl.F_SEAL_WRITE)


@functools.cache
def _memory_device() -> int:
    """Return the number of the file system of memory files with ordinary pages."""
    fd = create_file("asyncnn-probe")
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)
