"""Connections that a driver does not serve, and tells why."""

import asyncio
import contextlib
import logging
import re
import socket
import traceback
from collections.abc import Coroutine, Hashable

from asyncnn.callbacks import CallbackObject
from asyncnn.hal.errors import (
    AsyncnnError,
    ResourceExhaustedPersistentError,
    ResourceExhaustedTransientError,
    error_for,
    failure_of,
    too_many,
)
from asyncnn.hal.types import ErrorStatus
from asyncnn.logs import SparseLogger
from asyncnn.qos import calling_client
from asyncnn.service import wire
from asyncnn.service.channel import inline_packet

logger = logging.getLogger(__name__)
log = SparseLogger(logger)  # one for all clients, who come and go

_SETTING = re.compile(r"\b\w+\.max_\w+|ulimit -n")
NO_DESCRIPTOR = "the driver has no descriptor left: its limit of open files (ulimit -n)"

_REFUSALS = ResourceExhaustedTransientError, ResourceExhaustedPersistentError


def explained(error: Exception) -> AsyncnnError:
    """Return the error to tell the calling client of.

    What it was refused for want of room is logged, and what nobody expected.
    """
    if isinstance(error, _REFUSALS):
        warn_of_refusal(calling_client.get().name, error)
    if isinstance(error, AsyncnnError):
        return error
    name = calling_client.get().name
    log.log(
        logging.ERROR, "a call of %s failed", name, error=error, kind=_place_of(error)
    )
    return failure_of(error)


def warn_of_refusal(client: str, error: AsyncnnError) -> None:
    """Log that ``client`` is refused for want of room; the error says which."""
    found = _SETTING.search(str(error))
    setting = found and found.group()
    log.log(
        logging.WARNING,
        "a call of %s is refused: %s",
        client,
        str(error),  # its traceback would keep what frames refer to
        kind=(_place_of(error), setting),  # one for each limit
        client=client,
        setting=setting,
    )


def warn_if_refused(client: str, callback: CallbackObject, status: ErrorStatus) -> None:
    """Log if a device has refused a call of ``client`` for want of room."""
    is_refusal = status in (refusal.status for refusal in _REFUSALS)
    if is_refusal and not callback.is_dead:  # one that was cancelled ends likewise
        warn_of_refusal(client, error_for(status, callback.reason))


def kill(callback: CallbackObject) -> None:
    """Let a callback die, whatever a device makes of it."""
    try:
        callback.die()
    except Exception as error:
        log.log(logging.ERROR, "a call could not be cancelled", error=error)


def _place_of(error: Exception) -> Hashable:
    """Return where an error was raised."""
    place: Hashable = type(error).__name__
    for frame, line in traceback.walk_tb(error.__traceback__):
        place = frame.f_code, line
    return place


_LINGER_S = 1.0
"""How long a refused client may take to read why."""

_MAX_LINGERING = 8
"""Refused clients that are waited for at a time; each costs a descriptor."""

_MAX_PACKETS = 4
_PACKET_BYTES = 4096


class Refusals:
    """Refused connections that have not been hung up on yet.

    To close a socket with unread packets in it would keep the peer from reading what
    it was told. So each stays open until the peer hangs up, or for a moment.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lingering: dict[socket.socket, asyncio.TimerHandle] = {}
        self._packets: dict[socket.socket, int] = {}

    def tell(self, connection: socket.socket, reason: str) -> None:
        """Tell a client why it is not served, and hang up soon."""
        connection.setblocking(False)
        try:
            connection.send(inline_packet(wire.encode(wire.Refused(reason))))
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            connection.close()
            return
        while len(self._lingering) >= _MAX_LINGERING:
            self._end(next(iter(self._lingering)))
        self._packets[connection] = 0
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
                data = connection.recv(_PACKET_BYTES)
            except ConnectionError:
                data = b""
            self._packets[connection] += 1
            if not data or self._packets[connection] > _MAX_PACKETS:
                self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        self._lingering.pop(connection).cancel()
        del self._packets[connection]
        self._loop.remove_reader(connection.fileno())
        connection.close()


class OwnedTasks:
    """Up to ``most`` tasks at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tasks: set[asyncio.Task[None]] = set()

    def check_room(self) -> None:
        """Check that another one may be started.

        :raises ResourceExhaustedTransientError: if there are too many.
        """
        if len(self._tasks) >= self._most:
            raise too_many("pending calls", "ServiceLimits.max_executions", self._most)

    def start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start a task, whether there is room or not, and return it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel(self) -> None:
        """Cancel all of them."""
        for task in tuple(self._tasks):
            task.cancel()

    async def wait_ended(self) -> None:
        """Wait until there are none."""
        while self._tasks:
            await asyncio.wait(self._tasks)
