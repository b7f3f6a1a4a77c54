"""Publishes a device on a Unix-domain socket."""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from asyncnn.deadlines import deadline_after
from asyncnn.devices.process_wide import return_free_memory
from asyncnn.hal.errors import (
    DeviceUnavailableError,
    MissedDeadlineError,
    ResourceExhaustedError,
)
from asyncnn.hal.interfaces import IDevice
from asyncnn.input_files import in_one, offload_abandonable
from asyncnn.interpreter_hooks import disown_in_children
from asyncnn.logs import SparseLogger
from asyncnn.memory.descriptors import FDS_SPACE, close_received, hang_up, received_fds
from asyncnn.memory.limits import MappingPolicy
from asyncnn.memory.mapping import Mapper
from asyncnn.offload import call_on_thread
from asyncnn.pacing import Steps
from asyncnn.service import wire
from asyncnn.service.channel import inline_packet
from asyncnn.service.driver.quotas import Clients, DriverResources
from asyncnn.service.driver.reporting import NO_DESCRIPTOR
from asyncnn.service.driver.session import ClientSession, ServedClient
from asyncnn.service.limits import ServiceLimits, UserLimits
from asyncnn.service.process import (
    Listener,
    Peer,
    can_connect,
    is_abstract,
    new_socket,
    peer_of,
    socket_address,
)

if TYPE_CHECKING:
    from asyncnn.service.driver.isolating import Isolation
    from asyncnn.service.driver.recorder import CallRecorder

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 256
"""Connections that a driver serves at a time by default."""

_FOR_OTHERS_DIVISOR = 8
"""That part of all places is for processes that have no connection yet."""

_NEW_S = 0.05
"""A socket that was made no longer ago may be one that is about to listen."""

_CLOSING_S = 2.0
"""How long closing waits for threads that work for clients."""

_LEAVING_S = 0.2
"""How long who is cancelled waits for the thread that makes the socket."""

_LEFT_PER_TRIM = 64
"""Clients that have gone when the allocator gives back what is free among what is not.

A driver that always has work does not come to the watchdog that does it else.
"""


class Server:
    """Serves ``device`` to every client that connects to ``path``. A context manager.

    Only processes of ``allowed_uids`` may connect, by default this process's
    user; the socket's mode is 0600, or 0666 if other users are allowed, and an address
    like ``@name`` has none. Connections beyond ``max_connections`` are refused, and
    before that from a process that has one, from the last eighth on. Leaving the
    context hangs up on all clients and removes the socket.

    Pools in files that a client could truncate are copied for each call. With
    ``trust_same_uid``, pools of clients of this process's user are mapped instead: such
    a client can then kill the driver, as it could with a signal.

    Engines read regions as they are (`asyncnn.extensions.regions`), and what looks at
    them first may have missed something. Regions of this process's user and of root are
    run, for each connection in another process if ``isolated`` opens the device there;
    ``device`` is to run none then. With ``trust_regions``, ``device`` runs all users'
    regions.

    Each process is a client, however many connections it has. Users share lanes by
    ``user_weights``, 1 for each uid that is not in there, and their processes share
    what is theirs; see `RunQueue`. ``limits`` are each connection's, and
    ``user_limits`` for all connections of a user. Clients of this process's user,
    and of root, may see what others do; see `IMeasured`.

    A ``recorder`` notes what all of them call, and is closed with the server.

    Entering raises the process's limit of open files as far as it may, because clients
    share it, less what is held back to accept them and to answer; see
    `DriverResources`.

    :raises DeviceUnavailableError: on entering, if another driver serves ``path``.
    :raises ResourceExhaustedPersistentError: on entering, if the process's limit of
        open files is too low for a driver.
    :raises GeneralFailureError: on entering, if the socket cannot be created.
    :raises InvalidArgumentError: if a weight is not positive.
    """

    def __init__(
        self,
        device: IDevice,
        path: str | os.PathLike[str],
        *,
        limits: ServiceLimits | None = None,
        user_limits: UserLimits | None = None,
        user_weights: Mapping[int, float] | None = None,
        allowed_uids: Collection[int] = (),
        max_connections: int = MAX_CONNECTIONS,
        trust_same_uid: bool = False,
        trust_regions: bool = False,
        isolated: "Isolation | None" = None,
        recorder: "CallRecorder | None" = None,
    ) -> None:
        self._device = device
        self._recorder = recorder
        self._path = Path(path)
        self._limits = limits or ServiceLimits()
        self._clients = Clients(
            self._limits, user_limits or UserLimits(), user_weights or {}
        )
        self._allowed_uids = frozenset({os.getuid(), *allowed_uids})
        self._max_connections = max_connections
        self._trust_same_uid = trust_same_uid
        self._trust_regions = trust_regions
        self._isolated = None if trust_regions else isolated
        self._sessions: set[ClientSession] = set()
        self._left_before = 0
        self._log = SparseLogger(logger)  # strangers may come as often as they like
        # Of clients that went by themselves: threads may still work for them.
        self._leaving: set[asyncio.Task[None]] = set()
        self._resources: DriverResources | None = None
        self._refusals: RefusedConnections | None = None
        self._listener: Listener | None = None
        self._is_abstract = is_abstract(path)
        self._identity = (0, 0)
        self._binding = threading.Lock()
        self._is_inherited = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def connections(self) -> int:
        """Number of connections; a client, which is a process, can have several."""
        return len(self._sessions)

    async def __aenter__(self) -> Self:
        self._resources = DriverResources(self._limits)
        self._refusals = RefusedConnections()
        self._closing = None
        listening = await self._listening()
        disown_in_children(self)
        self._listener = Listener(listening, self._accept, self._refuse_for_want)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the server, or wait until it is, as leaving the context does.

        Cancelling leaves it to go on by itself; any number of tasks may call this.
        """
        if self._is_inherited:
            return
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    def disown(self) -> None:
        """Leave all to the parent, whose death its clients are to notice."""
        self._is_inherited = True
        if self._refusals is not None:
            self._refusals.disown()

    async def _close(self) -> None:
        """Close each part, whatever happens to the others."""
        sessions, self._sessions = self._sessions, set()
        async with AsyncExitStack() as parts:
            if self._recorder is not None:
                parts.callback(self._recorder.close)
            # In reverse: nobody is let in any more while those there are hung up on.
            parts.push_async_callback(self._all_ended, sessions)
            for session in sessions:
                parts.callback(session.close)
            parts.push_async_callback(self._removed)
            parts.callback(self._stop_listening)

    def _stop_listening(self) -> None:
        assert self._listener is not None
        assert self._refusals is not None
        self._refusals.close()
        self._listener.close()

    async def _removed(self) -> None:
        """Remove the socket's file, if its folder answers."""
        if self._is_abstract:
            return
        what, limit = f"removing {self._path}", deadline_after(_CLOSING_S)
        try:
            await offload_abandonable(what, in_one(self._remove_path), deadline=limit)
        except (MissedDeadlineError, ResourceExhaustedError) as error:
            logger.warning("%s", error)

    def _remove_path(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            # The path may have become another driver's meanwhile.
            if _identity(self._path) == self._identity:
                self._path.unlink()

    async def _listening(self) -> socket.socket:
        if self._is_abstract:
            return self._listen()
        what = f"listening at {self._path}"
        try:
            listener, _ = await offload_abandonable(what, self._bound())
        except asyncio.CancelledError:
            # The process may end next, and leave what the thread is about to remove.
            if self._binding.acquire(timeout=_LEAVING_S):
                self._binding.release()
            raise
        return listener

    def _bound(self) -> Steps["_Listening"]:
        yield  # who was cancelled before this began must not take another's path
        with self._binding:
            bound = _Listening(self._listen(), self._remove_path)
            try:
                self._identity = _identity(self._path)
                yield
            except BaseException:  # nobody waits for it any more, say
                bound.close()
                raise
            return bound

    def _listen(self) -> socket.socket:
        with new_socket(f"cannot serve {self._path}") as listener:
            if self._is_abstract:
                _bind_abstract(listener, self._path)
            else:
                self._bind(listener)
        return listener

    def _bind(self, listener: socket.socket) -> None:
        _remove_stale(self._path)
        # Others must not be able to connect in the moment before a mode is set.
        before = os.umask(0o177)
        try:
            listener.bind(str(self._path))
        finally:
            os.umask(before)
        if len(self._allowed_uids) > 1:
            self._path.chmod(0o666)

    def _accept(self, connection: socket.socket) -> None:
        peer = peer_of(connection)
        if peer.uid not in self._allowed_uids:
            self._refuse(
                connection,
                f"uid {peer.uid} is not allowed (--allow-uid)",
                "allowed_uids",
                peer,
            )
        elif not self._has_place(peer):
            reason = (
                f"max_connections is {self._max_connections}, and "
                f"{len(self._sessions)} are connected"
            )
            self._refuse(connection, reason, "max_connections", peer)
        else:
            self._sessions.add(self._session(connection, peer))

    def _has_place(self, peer: Peer) -> bool:
        """Return whether a connection is served; one process cannot have all places."""
        left = self._max_connections - len(self._sessions)
        if left > self._max_connections // _FOR_OTHERS_DIVISOR:
            return True
        return left > 0 and not self._clients.has(peer)

    def _refuse_for_want(self, error: OSError) -> bool:
        assert self._resources is not None
        assert self._listener is not None
        if error.errno == errno.EMFILE:
            with contextlib.suppress(OSError), self._resources.reserve.lent():
                connection, _ = self._listener.socket.accept()
                peer = peer_of(connection)
                self._refuse(connection, NO_DESCRIPTOR, "ulimit -n", peer)
                return True
        message = "a client could not be accepted: %s"
        self._log.log(logging.WARNING, message, error.strerror)
        return False

    def _refuse(
        self, connection: socket.socket, reason: str, setting: str, peer: Peer
    ) -> None:
        assert self._refusals is not None
        client = f"pid {peer.pid}"
        self._log.log(
            logging.WARNING,
            "%s of uid %d is refused: %s",
            client,
            peer.uid,
            reason,
            kind=("refused", setting),
            client=client,
            setting=setting,
        )
        self._refusals.send(connection, reason)

    def _session(self, connection: socket.socket, peer: Peer) -> ClientSession:
        assert self._resources is not None
        limits = self._limits
        client, quotas = self._clients.client_of(peer), self._clients.quotas_of(peer)
        is_own = peer.uid in (os.geteuid(), 0)
        recorder = (
            None if self._recorder is None else self._recorder.of_client(peer.pid)
        )
        policy = MappingPolicy(
            name="ServiceLimits",
            max_pools=limits.max_pools,
            max_pool_bytes=limits.max_pool_bytes,
            max_copied_bytes=limits.max_copied_bytes,
            trust_same_uid=self._trust_same_uid and peer.uid == os.geteuid(),
        )
        return ClientSession(
            self._device,
            connection,
            limits,
            Mapper(policy, quotas.pool_bytes),
            self._left,
            ServedClient(
                client,
                quotas,
                self._resources.of_process(client.number, peer),
                sees_others=is_own,
                may_run_regions=is_own or self._trust_regions,
                isolated=self._isolated if is_own else None,
                recorder=recorder,
            ),
        )

    def _left(self, session: ClientSession) -> None:
        self._sessions.discard(session)
        self._left_before += 1
        if not self._left_before % _LEFT_PER_TRIM:
            call_on_thread(return_free_memory)
        end = asyncio.get_running_loop().create_task(session.wait_ended())
        self._leaving.add(end)
        end.add_done_callback(self._leaving.discard)

    async def _all_ended(self, sessions: Collection[ClientSession]) -> None:
        """Wait for the threads of closed sessions: a slow file may take for ever."""
        ends = {asyncio.ensure_future(session.wait_ended()) for session in sessions}
        ends |= self._leaving
        if ends:
            _, late = await asyncio.wait(ends, timeout=_CLOSING_S)
            for end in late:
                end.cancel()


class _Listening(NamedTuple):
    """A socket that listens, and what removes its file."""

    listener: socket.socket
    remove_path: Callable[[], None]

    def close(self) -> None:
        self.listener.close()
        self.remove_path()


def _identity(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino


def _bind_abstract(listener: socket.socket, path: Path) -> None:
    try:
        listener.bind(socket_address(path))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:  # such a name goes with its owner
            raise DeviceUnavailableError(f"a driver serves {path} already") from error
        raise


def _remove_stale(path: Path) -> None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        return  # something else: binding is going to fail
    if can_connect(path):
        raise DeviceUnavailableError(f"a driver serves {path} already")
    if time.time() - status.st_ctime < _NEW_S:
        # It may have been bound a moment ago, and not listen yet.
        time.sleep(_NEW_S)
        if can_connect(path):
            raise DeviceUnavailableError(f"a driver serves {path} already")
    path.unlink(missing_ok=True)


_LINGER_S = 1.0
"""How long a refused client may take to read why."""

_MAX_LINGERING = 8
"""Refused clients that are waited for at a time; each costs a descriptor."""

_MAX_PACKETS = 4
_PACKET_BYTES = 4096


class RefusedConnections:
    """Refused connections that have not been hung up on yet.

    To close a socket with unread packets in it would keep the peer from reading what
    it was sent. So each stays open until the peer hangs up, or for a moment.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lingering: dict[socket.socket, asyncio.TimerHandle] = {}
        self._packets: Counter[socket.socket] = Counter()

    def send(self, connection: socket.socket, reason: str) -> None:
        """Send a client why it is not served, and hang up soon."""
        connection.setblocking(False)
        try:
            connection.send(inline_packet(wire.encode_flat(wire.Refused(reason))))
            # The peer finds the end behind the refusal; this side still reads.
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            hang_up(connection)
            return
        while len(self._lingering) >= _MAX_LINGERING:
            self._end(next(iter(self._lingering)))
        self._lingering[connection] = self._loop.call_later(
            _LINGER_S, self._end, connection
        )
        self._loop.add_reader(connection.fileno(), self._drain, connection)

    def close(self) -> None:
        """Hang up on all of them."""
        for connection in tuple(self._lingering):
            self._end(connection)

    def disown(self) -> None:
        """Leave all to the parent of a forked child."""
        for connection in self._lingering:
            connection.close()
        self._lingering.clear()

    def _drain(self, connection: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                data, beside, *_ = connection.recvmsg(_PACKET_BYTES, FDS_SPACE)
                close_received(received_fds(beside))
            except ConnectionError:
                data = b""
            self._packets[connection] += 1
            # A peer may send for ever: so much is read, and no more.
            if not data or self._packets[connection] > _MAX_PACKETS:
                self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        self._lingering.pop(connection).cancel()
        del self._packets[connection]
        self._loop.remove_reader(connection.fileno())
        hang_up(connection)
