"""Sockets in the file system: where a driver listens, and whether one does."""

import os
import socket
import tempfile
from pathlib import Path


def default_socket_path() -> Path:
    """Return the path of this user's socket: in the run-time folder if there is one."""
    folder = os.environ.get("XDG_RUNTIME_DIR")
    if folder and Path(folder).is_dir():
        return Path(folder) / "asyncnn.sock"
    return Path(tempfile.gettempdir()) / f"asyncnn-{os.getuid()}.sock"


def can_connect(path: str | os.PathLike[str]) -> bool:
    """Tell whether a driver listens at ``path``. Does not block."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except BlockingIOError:
            return True  # its backlog is full
        except OSError:
            return False
    return True
