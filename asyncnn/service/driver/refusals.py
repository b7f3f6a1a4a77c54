"""Connections that a driver does not serve, and tells why."""

import asyncio
import contextlib
import socket

from asyncnn.service import wire
from asyncnn.service.channel import inline_packet

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
