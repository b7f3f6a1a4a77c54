"""Publishes a device on a Unix-domain socket."""

import asyncio
import contextlib
import logging
import os
import socket
import stat
import struct
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Self

from asyncnn.errors import DeviceUnavailableError, GeneralFailureError
from asyncnn.hal.interfaces import IDevice
from asyncnn.memory.mapping import Mapper, MappingPolicy
from asyncnn.service.limits import ServiceLimits
from asyncnn.service.paths import can_connect
from asyncnn.service.session import Session

logger = logging.getLogger(__name__)

_CREDENTIALS = struct.Struct("3i")
_BACKLOG = 128


class Server:
    """Serves ``device`` to every client that connects to ``path``. A context manager.

    Only processes of ``allowed_uids`` may connect, by default those of this process's
    user; the socket's mode is 0600, or 0666 if other users are allowed. Leaving the
    context hangs up on all clients and removes the socket.

    :raises DeviceUnavailableError: on entering, if another driver serves ``path``.
    :raises GeneralFailureError: on entering, if the socket cannot be created.
    """

    def __init__(
        self,
        device: IDevice,
        path: str | os.PathLike[str],
        *,
        limits: ServiceLimits | None = None,
        allowed_uids: Collection[int] = (),
    ) -> None:
        self._device = device
        self._path = Path(path)
        self._limits = limits or ServiceLimits()
        self._allowed_uids = frozenset({os.getuid(), *allowed_uids})
        self._sessions: set[Session] = set()
        self._listener: socket.socket | None = None

    @property
    def clients(self) -> int:
        """Number of clients that are connected."""
        return len(self._sessions)

    async def __aenter__(self) -> Self:
        self._listener = self._listen()
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._listener is not None
        asyncio.get_running_loop().remove_reader(self._listener.fileno())
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        while self._sessions:
            self._sessions.pop().close()

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            _remove_stale(self._path)
            before = os.umask(0o177)
            try:
                listener.bind(str(self._path))
            finally:
                os.umask(before)
            if len(self._allowed_uids) > 1:
                self._path.chmod(0o666)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            raise GeneralFailureError(
                f"cannot serve {self._path}: {error.strerror or error}"
            ) from error
        except BaseException:
            listener.close()
            raise
        return listener

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # out of descriptors, say: others go on
            logger.warning("a client could not be accepted: %s", error.strerror)
            return
        uid = _peer_uid(connection)
        if uid not in self._allowed_uids:
            logger.warning("a client of user %d was refused", uid)
            connection.close()
            return
        limits = self._limits
        mapper = Mapper(
            MappingPolicy(
                max_pools=limits.max_pools,
                max_bytes=limits.max_pool_bytes,
                trust_same_uid=uid == os.geteuid(),
            )
        )
        self._sessions.add(
            Session(self._device, connection, limits, mapper, self._sessions.discard)
        )


def _peer_uid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
    )
    _, uid, _ = _CREDENTIALS.unpack(credentials)
    return int(uid)


def _remove_stale(path: Path) -> None:
    """Remove a socket that a dead driver left.

    :raises DeviceUnavailableError: if a driver lives behind it.
    """
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return  # something else: binding is going to fail
    except FileNotFoundError:
        return
    if can_connect(path):
        raise DeviceUnavailableError(f"a driver serves {path} already")
    path.unlink(missing_ok=True)
