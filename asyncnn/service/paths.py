"""Addresses of sockets: where a driver listens, whether one does, and whose.

An address is a path, or ``@name`` for a name that the kernel keeps (an abstract one):
it goes with the driver, whatever that dies of, and has no mode. Who may connect is
decided by the kernel's credentials of the peer in either case.
"""

import os
import secrets
import socket
import struct
import tempfile
from pathlib import Path
from typing import NamedTuple

from asyncnn.errors import InvalidArgumentError

MAX_PATH_BYTES = 107
"""What ``sun_path`` of a Unix-domain address holds, less the zero at its end."""

_ABSTRACT = "@"
_CREDENTIALS = struct.Struct("iII")


def default_socket_path() -> Path:
    """Return the path of this user's socket: in the run-time folder if there is one."""
    folder = os.environ.get("XDG_RUNTIME_DIR")
    if folder and Path(folder).is_dir():
        return Path(folder) / "asyncnn.sock"
    return Path(tempfile.gettempdir()) / f"asyncnn-{os.getuid()}.sock"


def private_address() -> str:
    """Return an abstract address that nobody else has."""
    return f"{_ABSTRACT}asyncnn-{os.getpid()}-{secrets.token_hex(8)}"


def is_abstract(path: str | os.PathLike[str]) -> bool:
    """Tell whether ``path`` is a name that no file system knows."""
    return os.fspath(path).startswith(_ABSTRACT)


def socket_address(path: str | os.PathLike[str]) -> str:
    """Return the address of ``path``, as the kernel takes it.

    :raises InvalidArgumentError: if it is empty, too long, or contains a zero byte.
    """
    address = os.fspath(path)
    size = len(os.fsencode(address))
    if size > MAX_PATH_BYTES:
        raise InvalidArgumentError(
            f"the path of a socket has at most {MAX_PATH_BYTES} bytes, this one {size}",
            hint=f"take a shorter one than {address}",
        )
    if not address or "\0" in address:
        raise InvalidArgumentError(f"{address!r} is no path of a socket")
    return f"\0{address[1:]}" if is_abstract(address) else address


def can_connect(path: str | os.PathLike[str]) -> bool:
    """Tell whether a driver listens at ``path``. Does not block."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        try:
            probe.connect(socket_address(path))
        except BlockingIOError:
            return True  # its backlog is full
        except (OSError, InvalidArgumentError):
            return False
    return True


class Peer(NamedTuple):
    """The process that listened, or connected, at the other end of a socket."""

    pid: int
    uid: int


def peer_of(connection: socket.socket) -> Peer:
    """Return whom the kernel says that a connection is to."""
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
    )
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    return Peer(pid, uid)
