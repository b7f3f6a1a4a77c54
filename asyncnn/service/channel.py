"""Packets over a Unix-domain socket, with file descriptors beside them.

The socket is of the kind that keeps packets apart (SOCK_SEQPACKET): what one side
sends in one call the other receives in one call, with the descriptors that came along,
and no length has to be believed. A packet too large for the socket's buffer travels as
a sealed memory file whose descriptor is sent instead.

Reading is a callback of the event loop rather than a task, which halves the time of a
round trip; everything a packet causes happens in it. Writing never waits: what the
peer does not take is kept, up to a bound.
"""

import array
import asyncio
import contextlib
import fcntl
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from asyncnn.errors import AsyncnnError, InvalidArgumentError

logger = logging.getLogger(__name__)

MAX_PACKET_BYTES = 64 * 1024
"""Packets beyond this travel as a memory file; below Linux's least socket buffer."""

_INLINE, _BY_FILE = b"\0", b"\1"
_IS_INLINE = _INLINE[0]
_CUT_OFF = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_FD_BYTES = array.array("i").itemsize
_SEALS = (
    fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
)

_PACKET_OVERHEAD = 256
"""Bytes that a packet in the queue takes up in any case, roughly."""

Receive = Callable[[memoryview, list[int]], None]
"""Takes a packet and its descriptors, which are closed when it returns.

:raises AsyncnnError: if the peer broke the protocol: the channel is closed.
"""


class _Unsent(NamedTuple):
    packet: bytes
    fds: tuple[int, ...]
    size: int


class Channel:
    """One end of a connection.

    ``lost`` is called once, when the peer has gone, broke the protocol, or does not
    read: by the loop, never while `send` runs, and not after `close`. ``is_closed``
    tells that nothing can be sent or received any more.
    """

    def __init__(
        self,
        connection: socket.socket,
        receive: Receive,
        lost: Callable[[str], None],
        *,
        max_message_bytes: int,
        max_fds: int,
        max_unread_bytes: int,
    ) -> None:
        self.is_closed = False
        self._socket = connection
        self._socket.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._receive = receive
        self._lost = lost
        self._loss: asyncio.Handle | None = None
        self._max_message_bytes = max_message_bytes
        self._max_fds = max_fds
        # One more: the file of a large message.
        self._ancillary_bytes = socket.CMSG_SPACE(_FD_BYTES * (max_fds + 1))
        self._max_unread_bytes = max_unread_bytes
        self._unsent: deque[_Unsent] = deque()
        self._unsent_bytes = 0
        self._loop.add_reader(self._socket.fileno(), self._readable)

    def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send a packet; ``fds`` stay the caller's. Does nothing once closed.

        :raises OSError: if one of ``fds`` is none, or they have run out. Nothing was
            sent then, and the channel is as good as before.
        """
        if self.is_closed:
            return
        try:
            if len(data) >= MAX_PACKET_BYTES:
                self._send_as_file(data, fds)
            elif self._unsent or not self._send_now(_INLINE + data, fds):
                self._keep(_INLINE + data, fds, len(data))
        except ConnectionError as error:
            self.abandon(f"sending failed: {error.strerror}")

    def abandon(self, reason: str) -> None:
        """Hang up as if the peer had gone: ``lost`` is told soon."""
        if not self.is_closed:
            self._hang_up()
            self._loss = self._loop.call_soon(self._lost, reason)

    def close(self) -> None:
        """Hang up. What was not sent yet is dropped."""
        if self._loss is not None:
            self._loss.cancel()
        if not self.is_closed:
            self._hang_up()

    def _hang_up(self) -> None:
        self.is_closed = True
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        while self._unsent:
            _close_all(self._unsent.popleft().fds)
        self._socket.close()

    def _send_as_file(self, data: bytes, fds: Sequence[int]) -> None:
        file = _sealed_file(data)
        try:
            packet = _BY_FILE + struct.pack("<Q", len(data))
            if self._unsent or not self._send_now(packet, (file, *fds)):
                self._keep(packet, (file, *fds), len(data))
        finally:
            os.close(file)

    def _keep(self, packet: bytes, fds: Sequence[int], size: int) -> None:
        """Queue a packet; ``size`` counts what it holds, files included."""
        if self._unsent_bytes > self._max_unread_bytes:
            self.abandon("the peer does not read what it is sent")
            return
        # The caller may close its descriptors meanwhile.
        size += _PACKET_OVERHEAD
        self._unsent.append(_Unsent(packet, _duplicates(fds), size))
        self._unsent_bytes += size
        if len(self._unsent) == 1:
            self._loop.add_writer(self._socket.fileno(), self._writable)

    def _send_now(self, packet: bytes, fds: Sequence[int]) -> bool:
        try:
            if fds:
                socket.send_fds(self._socket, [packet], list(fds))
            else:
                self._socket.send(packet)
        except BlockingIOError:
            return False
        return True

    def _writable(self) -> None:
        try:
            while self._unsent:
                first = self._unsent[0]
                if not self._send_now(first.packet, first.fds):
                    return
                self._unsent.popleft()
                self._unsent_bytes -= first.size
                _close_all(first.fds)
        except OSError as error:
            self._fail(f"sending failed: {error.strerror}")
            return
        self._loop.remove_writer(self._socket.fileno())

    def _readable(self) -> None:
        """Take one packet; if more wait, the loop calls again at once."""
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(
                MAX_PACKET_BYTES + 1, self._ancillary_bytes
            )
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(f"receiving failed: {error.strerror}")
            return
        fds = _descriptors(ancillary) if ancillary else []
        try:
            if not data:
                self._fail("the peer has gone")
            elif fds or flags & _CUT_OFF or data[0] != _IS_INLINE:
                self._take(data, fds, flags)
            else:
                self._receive(memoryview(data)[1:], fds)
        except AsyncnnError as error:
            self._fail(str(error))
        except Exception:
            # One peer's connection ends; the loop serves others.
            logger.exception("handling a message failed")
            self._fail("handling a message failed")
        finally:
            if fds:
                _close_all(fds)

    def _take(self, data: bytes, fds: list[int], flags: int) -> None:
        """Take a packet that is not of the simplest kind."""
        if flags & _CUT_OFF:
            raise InvalidArgumentError("a packet is too large or has too many fds")
        body = self._body(data, fds)
        if len(fds) > self._max_fds:
            raise InvalidArgumentError(f"a packet has {len(fds)} fds")
        self._receive(body, fds)

    def _body(self, data: bytes, fds: list[int]) -> memoryview:
        """Return the message in a packet, or in the file that came instead."""
        kind, rest = data[:1], memoryview(data)[1:]
        if kind == _INLINE:
            return rest
        if kind != _BY_FILE or len(rest) != 8 or not fds:
            raise InvalidArgumentError("a packet of an unknown kind")
        (size,) = struct.unpack("<Q", rest)
        if size > self._max_message_bytes:
            raise InvalidArgumentError(f"a message of {size} bytes is too large")
        return memoryview(_read_file(fds.pop(0), size))

    def _fail(self, reason: str) -> None:
        if not self.is_closed:
            self._hang_up()
            self._lost(reason)


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % _FD_BYTES])
    return list(fds)


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def _duplicates(fds: Sequence[int]) -> tuple[int, ...]:
    copies: list[int] = []
    try:
        for fd in fds:
            copies.append(os.dup(fd))  # noqa: PERF401 - closed below if one fails
    except OSError:
        _close_all(copies)
        raise
    return tuple(copies)


def _sealed_file(data: bytes) -> int:
    """Return the descriptor of a memory file that nobody can change any more."""
    fd = os.memfd_create("asyncnn-message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _read_file(fd: int, size: int) -> bytes:
    """Return exactly ``size`` bytes of a memory file that the peer sent, and close it.

    Its seals vouch that reading does not wait for a file system that the peer serves.
    It is not mapped, as the pages of a sparse file would use up memory.
    """
    try:
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise InvalidArgumentError("a message's file is not sealed")
        data = os.pread(fd, size, 0)
    except OSError as error:
        raise InvalidArgumentError(
            f"a message's file cannot be read: {error.strerror}"
        ) from error
    finally:
        os.close(fd)
    if len(data) < size:
        raise InvalidArgumentError("a message's file is shorter than it says")
    return data
