"""Descriptors that close by themselves, and descriptors that a peer has chosen.

Whoever closes the last descriptor of a file waits for what its kind does then. A TCP
socket may linger for as long as its owner has said, and a file system that is a process
answers when it likes. A Unix socket closes the files of packets that nobody has
read. An event loop that closes such a descriptor stands still, and what a peer sends
has its last descriptor here as soon as the peer has closed its own. So only files of
the kinds that wait for nothing are closed at once, and all others on a thread.
"""

import _thread
import array
import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Sequence

from asyncnn.hal.errors import failure_of
from asyncnn.hal.types import Handle
from asyncnn.offload import require_room

_FD_BYTES = array.array("i").itemsize
FDS_SPACE = socket.CMSG_SPACE(253 * _FD_BYTES)
"""Room for all descriptors that can come beside a packet: SCM_MAX_FD of Linux.

The kernel closes those that there is no room for, while the receiver waits.
"""

_AT_ONCE = ("pipe:[", "anon_inode:[eventfd]", "anon_inode:sync_file")
_NO_LINGER = struct.pack("ii", 0, 0)
_closing: dict[int, None] = {}


class Descriptor:
    """A file descriptor that closes with the last reference to it.

    A thread that uses one keeps it, and hence its number, for as long as it does.
    """

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


class ReceivedDescriptor(Descriptor):
    """A `Descriptor` of a file that another process has chosen."""

    __slots__ = ()

    def __del__(self) -> None:
        close_received([self.fd])


def close_received(fds: Sequence[int]) -> None:
    """Close descriptors: on a thread, unless their files wait for nothing."""
    slow: list[int] = []
    for fd in fds:
        if _closes_at_once(fd):
            os.close(fd)
        else:
            slow.append(fd)
    if slow:
        _close_on_thread(slow)


def being_closed() -> list[int]:
    """Return the descriptors that threads are closing, and whose numbers are taken."""
    return list(_closing)


def received_fds(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors that came beside a packet."""
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % _FD_BYTES])
    return list(fds)


def hang_up(end: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    """Close a Unix socket, whatever its peer has sent that was not received.

    ``how`` is what all who share it cannot do any more: to receive is part of it.
    """
    if end.fileno() < 0 or not _has_unread(end, how):
        end.close()
    else:
        _close_on_thread([end.detach()])


def _closes_at_once(fd: int) -> bool:
    # Neither asks a file system. Only files in memory have seals, or could have some.
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        return True
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/fd/{fd}").startswith(_AT_ONCE)
    return False


def _has_unread(end: socket.socket, how: int) -> bool:
    """Keep the peer from sending any more; return whether it has before."""
    with contextlib.suppress(OSError):  # of one that is not connected
        end.shutdown(how)
    # An empty packet differs from the end by the credentials that come beside it.
    end.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    flags = socket.MSG_PEEK | socket.MSG_DONTWAIT
    for _ in range(2):
        try:
            data, _, found, _ = end.recvmsg(1, 0, flags)
        except BlockingIOError:
            return False
        except OSError:
            continue  # of the past, which the system reports once
        return bool(data or found & socket.MSG_CTRUNC)
    return True


def _close_on_thread(fds: Sequence[int]) -> None:
    # Not by `threading`, whose locks a collection may have interrupted.
    _closing.update(dict.fromkeys(fds))
    try:
        require_room()
        _thread.start_new_thread(_close_slowly, (fds,))
    except (MemoryError, OSError, RuntimeError):
        _close_slowly(fds)


def _close_slowly(fds: Sequence[int]) -> None:
    """Close descriptors; sockets are kept from lingering, for the thread's sake."""
    for fd in fds:
        with contextlib.suppress(OSError):
            end = socket.socket(fileno=fd)
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            end.detach()
        with contextlib.suppress(OSError):
            os.close(fd)
        _closing.pop(fd, None)


def duplicated(fds: Sequence[int]) -> list[Descriptor]:
    """Return as many descriptors of the same files, which close with the list.

    :raises ResourceExhaustedTransientError: if there are not so many left.
    """
    try:
        return [ReceivedDescriptor(os.dup(fd)) for fd in fds]
    except OSError as error:
        raise failure_of(error) from error


def handles_of(descriptors: Sequence[Descriptor]) -> list[Handle]:
    """Return a handle for each descriptor, which must outlive it."""
    return [Handle((descriptor.fd,)) for descriptor in descriptors]
