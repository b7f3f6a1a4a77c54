"""Publishes a device on a Unix-domain socket."""

import asyncio
import contextlib
import logging
import os
import resource
import socket
import stat
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Self

from asyncnn.errors import DeviceUnavailableError, GeneralFailureError
from asyncnn.hal.interfaces import IDevice
from asyncnn.memory.limits import MappingPolicy
from asyncnn.memory.mapping import Mapper
from asyncnn.service.driver.session import Session
from asyncnn.service.limits import ServiceLimits
from asyncnn.service.paths import Peer, can_connect, peer_of

logger = logging.getLogger(__name__)

_BACKLOG = 128
_PAUSE_S = 0.1
"""Time until the next attempt to accept a client after one failed."""


class Server:
    """Serves ``device`` to every client that connects to ``path``. A context manager.

    Only processes of ``allowed_uids`` may connect, by default those of this process's
    user; the socket's mode is 0600, or 0666 if other users are allowed. Clients beyond
    ``max_clients`` are hung up on. Leaving the context hangs up on all clients and
    removes the socket.

    Pools in files that a client could truncate are copied for each call. With
    ``trust_same_uid``, those of clients of this process's user are mapped instead: such
    a client can then kill the driver, as it could with a signal.

    Each connection is a client of its own, called after its process. Clients of this
    process's user, and of root, may see what others do; see `IMeasured`.

    Entering raises the process's limit of open files as far as it may, because clients
    share it.

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
        max_clients: int = 256,
        trust_same_uid: bool = False,
    ) -> None:
        self._device = device
        self._path = Path(path)
        self._limits = limits or ServiceLimits()
        self._allowed_uids = frozenset({os.getuid(), *allowed_uids})
        self._max_clients = max_clients
        self._trust_same_uid = trust_same_uid
        self._sessions: set[Session] = set()
        self._listener: socket.socket | None = None
        self._identity = (0, 0)
        self._pause: asyncio.TimerHandle | None = None

    @property
    def clients(self) -> int:
        """Number of clients that are connected."""
        return len(self._sessions)

    async def __aenter__(self) -> Self:
        _raise_descriptor_limit()
        self._listener = self._listen()
        self._identity = _identity(self._path)
        self._resume()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._listener is not None
        if self._pause is not None:
            self._pause.cancel()
        asyncio.get_running_loop().remove_reader(self._listener.fileno())
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            # The path may have become another driver's meanwhile.
            if _identity(self._path) == self._identity:
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

    def _resume(self) -> None:
        assert self._listener is not None
        loop = asyncio.get_running_loop()
        loop.add_reader(self._listener.fileno(), self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:  # out of descriptors, say: others go on
            logger.warning("a client could not be accepted: %s", error.strerror)
            loop = asyncio.get_running_loop()
            loop.remove_reader(listener.fileno())
            self._pause = loop.call_later(_PAUSE_S, self._resume)
            return
        peer = peer_of(connection)
        if peer.uid not in self._allowed_uids:
            logger.warning("a client of user %d was refused", peer.uid)
            connection.close()
        elif len(self._sessions) >= self._max_clients:
            logger.warning("a client was refused: there are %d", self._max_clients)
            connection.close()
        else:
            self._sessions.add(self._session(connection, peer))

    def _session(self, connection: socket.socket, peer: Peer) -> Session:
        limits = self._limits
        policy = MappingPolicy(
            max_pools=limits.max_pools,
            max_bytes=limits.max_pool_bytes,
            trust_same_uid=self._trust_same_uid and peer.uid == os.geteuid(),
        )
        return Session(
            self._device,
            connection,
            limits,
            Mapper(policy),
            self._sessions.discard,
            name=f"pid {peer.pid}",
            sees_others=peer.uid in (os.geteuid(), 0),
        )


def _identity(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino


def _raise_descriptor_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


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
