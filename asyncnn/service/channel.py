"""Packets over a Unix-domain socket, with file descriptors beside them.

The socket is of the kind that keeps packets apart (SOCK_SEQPACKET): what one side
sends in one call the other receives in one call, with the descriptors that came along,
and no length has to be believed. A large message travels as a sealed memory file whose
descriptor is sent instead.

The kernel drops descriptors that a receiver has no room for. So a packet without any
says beforehand how many come beside the next one, and that is not received before as
many are free: its sender waits meanwhile, and nobody else.

Reading is a callback of the event loop rather than a task, which halves the time of a
round trip; everything a packet causes happens in it. A large message is read and
decoded on a thread, while nothing else is read from its peer. Writing never waits: what
the peer does not take is kept, up to a bound.
"""

import asyncio
import errno
import logging
import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace

from asyncnn.hal.errors import (
    AsyncnnError,
    InvalidArgumentError,
    ResourceExhaustedTransientError,
    failure_of,
)
from asyncnn.interpreter_hooks import disown_in_children
from asyncnn.memory.descriptors import (
    FDS_SPACE,
    ReceivedDescriptor,
    close_received,
    hang_up,
    received_fds,
)
from asyncnn.offload import offload
from asyncnn.pacing import TakeTurn
from asyncnn.service.decoding import MessageFile, Received, ReceivedFile
from asyncnn.service.limits import DescriptorReserve, are_free, close_all, duplicates
from asyncnn.turn import in_this_turn

logger = logging.getLogger(__name__)

MAX_PACKET_BYTES = 20 * 1024
"""Messages beyond this travel as a memory file.

It is below Linux's least socket buffer, and below what takes long to decode.
"""

_INLINE, _BY_FILE, _BEFORE_FDS = b"\0", b"\1", b"\2"
_LENGTH_ALONE = socket.MSG_PEEK | socket.MSG_TRUNC
_IS_INLINE = _INLINE[0]
_CUT_OFF = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_SIZE = struct.Struct("<Q")
_PACKET_OVERHEAD = 256
"""Bytes that a packet in the queue takes up in any case, roughly."""

_RETRY_S = 0.02
_MAX_RETRIES = 50
"""How often a packet is put off for want of descriptors, if there is one at least."""

MessageT = TypeVar("MessageT")
A = TypeVar("A")
R = TypeVar("R")


class _Unsent(msgspec.Struct, frozen=True, gc=False):
    """A packet that the peer has not taken; the collector does not look at them."""

    packet: bytes
    fds: tuple[int, ...]
    size: int


class ChannelBounds(msgspec.Struct, frozen=True, eq=False):
    """How much a channel takes, and when.

    What comes beside messages, and files for what is sent, may take from ``reserve``
    when descriptors have run out. ``take_turn`` says when to read, ``decoding`` is
    entered to decode a large message; ``may_hold`` says whether so many more
    `descriptors` may be kept until then, and those that came beside it are as good as
    lost otherwise.
    """

    max_message_bytes: int
    max_fds: int
    max_unread_bytes: int
    reserve: DescriptorReserve | None = None
    take_turn: TakeTurn | None = None
    decoding: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    may_hold: Callable[[int], bool] = lambda _: True


class Channel(Generic[MessageT]):
    """One end of a connection.

    ``decode`` makes a message of bytes, on the loop, or of a file, on a thread; given
    an error, which says why no thread could be had, on the loop.
    ``receive`` takes a message and its descriptors, which are closed when it returns;
    None stands for descriptors that got lost, as this process had no room for them. If
    one of them raises an `AsyncnnError` the peer broke the protocol, and the channel is
    closed.

    ``lost`` is called once, when the peer has gone, broke the protocol, or does not
    read: by the loop, never while `send` runs, and not after `close`. ``is_closed``
    says that nothing can be sent or received any more, ``has_refused`` that this end
    has hung up because of what the peer has done.
    """

    def __init__(
        self,
        connection: socket.socket,
        decode: Callable[[Received, AsyncnnError | None], MessageT],
        receive: Callable[[MessageT, list[int] | None], None],
        lost: Callable[[str], None],
        bounds: ChannelBounds,
    ) -> None:
        self.is_closed = False
        self.has_refused = False
        self._socket = connection
        self._socket.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._decode = decode
        self._receive = receive
        self._reading: asyncio.Task[None] | None = None
        self._lost = lost
        self._loss: asyncio.Handle | None = None
        self._bounds = bounds
        self._reserve = bounds.reserve
        self._take_turn = bounds.take_turn
        self._held = 0
        self._is_reading = False
        self._announced = 0
        self._retries = 0
        self._retry: asyncio.TimerHandle | None = None
        self._unsent: deque[_Unsent] = deque()
        self.unsent_bytes = 0
        self._resume()
        disown_in_children(self)

    def disown(self) -> None:
        """Let go of the copy of the socket that a forked child has.

        The parent's goes on, and with it what its event loop watches. If the parent
        dies, its peer is to notice.
        """
        self.is_closed = True
        self._reading = None
        self._socket.close()

    @property
    def descriptors(self) -> int:
        """How many are kept for messages that wait, to be decoded or sent."""
        return self._held + sum([len(each.fds) for each in self._unsent])

    def send(self, data: bytes | MessageFile, fds: Sequence[int] = ()) -> None:
        """Send a message; ``fds`` stay the caller's. Does nothing once closed.

        A `MessageFile` may be made before, on a thread.

        :raises OSError: if one of ``fds`` is none, there are too many, or they have run
            out. The message was not sent then, and the channel is as good as before.
        """
        if self.is_closed:
            return
        try:
            if isinstance(data, MessageFile):
                self._send_file(data, fds)
            elif len(data) >= MAX_PACKET_BYTES:
                self._send_file(self._at_need(MessageFile, data), fds)
            elif fds:
                self._send_with_fds(_INLINE + data, fds, len(data))
            elif self._unsent:
                self._keep(_INLINE + data, (), len(data))
            else:
                try:
                    self._socket.send(_INLINE + data)
                except BlockingIOError:
                    self._keep(_INLINE + data, (), len(data))
        except ConnectionError as error:
            self.abandon(f"sending failed: {error.strerror}")

    def abandon(self, reason: str) -> None:
        """Hang up as if the peer had gone: ``lost`` is called soon."""
        if not self.is_closed:
            self._hang_up()
            # Not now: `send` may have found it out, and `lost` calls back applications,
            # which may send again.
            self._loss = self._loop.call_soon(self._lost, reason)

    def close(self) -> None:
        """Hang up. What was not sent yet is dropped, and who was to be notified."""
        if self._loss is not None:
            self._loss.cancel()
        if not self.is_closed:
            self._hang_up()
        # They refer to who has this, and would keep both until the collector comes.
        self._receive, self._lost = lambda message, fds: None, lambda reason: None
        self._bounds, self._loss = replace(self._bounds, may_hold=bool), None

    async def wait_ended(self) -> None:
        """Wait until nothing is being read any more, once it is closed."""
        if self._reading is not None:
            await asyncio.wait({self._reading})

    def _hang_up(self) -> None:
        self._pause()
        self.is_closed = True
        if self._retry is not None:
            self._retry.cancel()
        # While the socket is open: its number is free for another file afterwards.
        self._loop.remove_writer(self._socket.fileno())
        while self._unsent:
            close_all(self._unsent.popleft().fds)
        hang_up(self._socket)

    def _send_file(self, file: MessageFile, fds: Sequence[int]) -> None:
        packet = _BY_FILE + _SIZE.pack(file.size)
        self._send_with_fds(packet, (file.fd, *fds), file.size)

    def _send_with_fds(self, packet: bytes, fds: Sequence[int], size: int) -> None:
        """Send a packet after one that says how many descriptors come beside it.

        If the second cannot be sent, the next packet makes the first mean nothing.
        """
        if len(fds) > self._bounds.max_fds + 1:
            raise OSError(errno.EINVAL, f"{len(fds)} descriptors beside a message")
        first = _BEFORE_FDS + bytes((len(fds),))
        for each, beside, kept in ((first, (), 0), (packet, fds, size)):
            if self._unsent or not self._send_now(each, beside):
                self._keep(each, beside, kept)

    def _keep(self, packet: bytes, fds: Sequence[int], size: int) -> None:
        """Queue a packet; ``size`` counts what it holds, files included."""
        if self.is_closed:
            return
        if self.unsent_bytes > self._bounds.max_unread_bytes:
            self.has_refused = True
            self.abandon(
                "the peer does not read what it is sent: more than "
                f"{self._bounds.max_unread_bytes} bytes wait "
                "(ServiceLimits.max_unread_bytes)"
            )
            return
        # The caller may close its descriptors meanwhile.
        size += _PACKET_OVERHEAD
        self._unsent.append(_Unsent(packet, self._at_need(duplicates, fds), size))
        self.unsent_bytes += size
        if len(self._unsent) == 1:
            self._loop.add_writer(self._socket.fileno(), self._writable)

    def _at_need(self, make: Callable[[A], R], of: A) -> R:
        """Make what needs descriptors, with the reserve's if it comes to that."""
        try:
            return make(of)
        except OSError as error:
            if self._reserve is None or error.errno != errno.EMFILE:
                raise
            with self._reserve.lent():
                return make(of)

    def _send_now(self, packet: bytes, fds: Sequence[int]) -> bool:
        if self.is_closed:
            return True
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
                # First until it is sent: a queue that is empty lets others overtake.
                if not self._send_now(first.packet, first.fds):
                    return
                self._unsent.popleft()
                self.unsent_bytes -= first.size
                close_all(first.fds)
        except OSError as error:
            self._fail(f"sending failed: {error.strerror}")
            return
        self._loop.remove_writer(self._socket.fileno())

    def _pause(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._socket.fileno())

    def _resume(self) -> None:
        if not self.is_closed and not self._is_reading:
            self._is_reading = True
            fd = self._socket.fileno()
            readable = self._read if self._take_turn is None else self._readable
            self._loop.add_reader(fd, in_this_turn, readable)

    def _readable(self) -> None:
        """Take one packet; if more wait, the loop calls again at once."""
        assert self._take_turn is not None
        if self._take_turn(self._proceed):
            self._read()
        else:
            self._pause()

    def _proceed(self) -> bool:
        if self._has_gone():
            self._fail("the peer has gone")  # whatever it has left behind
            return False
        self._resume()
        self._read()
        return True

    def _has_gone(self) -> bool:
        if self.is_closed:
            return True
        poll = select.poll()
        poll.register(self._socket.fileno(), 0)
        return bool(poll.poll(0))

    def _read(self, most: int = MAX_PACKET_BYTES) -> None:
        fds: list[int] = []
        announced = self._announced
        try:
            if announced:
                data, fds, flags = self._receive_with_fds(announced)
            else:
                data, beside, flags, _ = self._socket.recvmsg(most + 1, FDS_SPACE)
                if beside:
                    fds = received_fds(beside)
        except BlockingIOError:
            return
        except MemoryError:
            self._read_less(most)
            return
        except OSError as error:
            self._fail(f"receiving failed: {error.strerror}")
            return
        try:
            if not data:
                self._fail("the peer has gone")
            elif announced or fds or flags & _CUT_OFF or data[0] != _IS_INLINE:
                self._take(data, fds, flags, announced)
            else:
                self._receive(self._decode(memoryview(data)[1:], None), fds)
        except Exception as error:
            self._refuse(error)
        finally:
            if fds:  # else there were none, or `_take` has given them to a task
                close_received(fds)

    def _read_less(self, most: int) -> None:
        """Read a packet that is shorter, or leave it where it is until later."""
        size = most
        with suppress(OSError):
            size = self._socket.recv_into(bytearray(1), 1, _LENGTH_ALONE)
        if size < most:
            self._read(size)
        else:
            self._put_off()

    def _receive_with_fds(self, announced: int) -> tuple[bytes, list[int], int]:
        """Receive a packet that descriptors come beside."""
        reserve, fileno = self._reserve, self._socket.fileno()
        with nullcontext() if reserve is None else reserve.lent():
            # A sender is not to wait for ever for more than there may ever be. The
            # first descriptor may be the message itself.
            least = 1 if self._retries >= _MAX_RETRIES else announced
            if reserve is not None and reserve.covers(announced):
                return self._received_announced()
            if are_free(least, fileno):
                return self._received_announced()
        self._retries += 1
        self._put_off()
        raise BlockingIOError

    def _put_off(self) -> None:
        """Receive later: what it takes may be there then."""
        self._pause()
        self._retry = self._loop.call_later(_RETRY_S, self._resume)

    def _received_announced(self) -> tuple[bytes, list[int], int]:
        data, beside, flags, _ = self._socket.recvmsg(MAX_PACKET_BYTES + 1, FDS_SPACE)
        # Only now: one that could not be received is still announced.
        self._announced = self._retries = 0
        return data, received_fds(beside), flags

    def _take(self, data: bytes, fds: list[int], flags: int, announced: int) -> None:
        # The kernel cuts off what we had no room for, too; then there are too few.
        is_cut_off = bool(flags & socket.MSG_CTRUNC)
        if flags & socket.MSG_TRUNC or len(fds) > announced:
            raise InvalidArgumentError("a packet is too large or has too many fds")
        if is_cut_off and len(fds) >= announced:
            raise InvalidArgumentError("a packet has more fds than were announced")
        kind, rest = data[:1], memoryview(data)[1:]
        if kind == _BEFORE_FDS and len(rest) == 1 and not (fds or is_cut_off):
            if not 0 < rest[0] <= self._bounds.max_fds + 1:
                raise InvalidArgumentError(f"a packet with {rest[0]} fds is announced")
            self._announced = rest[0]
            if not announced:
                self._read()  # it has been sent in the same breath
            return
        is_by_file = kind == _BY_FILE and len(rest) == _SIZE.size and fds
        if not is_by_file and kind != _INLINE:
            raise InvalidArgumentError("a packet of an unknown kind")
        if len(fds) - bool(is_by_file) > self._bounds.max_fds:
            raise InvalidArgumentError(f"a packet has {len(fds)} fds")
        if not is_by_file:
            self._receive(self._decode(rest, None), None if is_cut_off else fds)
            return
        (size,) = _SIZE.unpack(rest)
        if size > self._bounds.max_message_bytes:
            raise InvalidArgumentError(f"a message of {size} bytes is too large")
        file, *beside = [ReceivedDescriptor(fd) for fd in fds]
        fds.clear()
        is_lost = is_cut_off or (beside and not self._bounds.may_hold(1 + len(beside)))
        self._held = 1 if is_lost else 1 + len(beside)
        self._pause()
        read = self._read_file(ReceivedFile(file, size), None if is_lost else beside)
        self._reading = self._loop.create_task(read)

    async def _read_file(
        self, file: ReceivedFile, beside: list[ReceivedDescriptor] | None
    ) -> None:
        """Receive a message that lies in a file; nothing else is received meanwhile."""
        held = [file.fd, *[each.fd for each in beside or ()]]
        try:
            with (
                nullcontext() if self._reserve is None else self._reserve.used_by(held)
            ):
                async with self._bounds.decoding():
                    if self._has_gone():  # while others had their turn
                        self._fail("the peer has gone")
                        return
                    message = await self._decoded(file)
            self._held = 0
            if not self.is_closed:
                fds = None if beside is None else [each.fd for each in beside]
                self._receive(message, fds)
        except asyncio.CancelledError:
            self.abandon("receiving was cancelled")
            raise
        except Exception as error:
            self._refuse(error)
        self._resume()

    async def _decoded(self, file: ReceivedFile) -> MessageT:
        try:
            return await offload(self._decode, file, None)
        except (MemoryError, ResourceExhaustedTransientError) as error:
            failure = failure_of(error, "a message cannot be read")
        for _ in range(_MAX_RETRIES):
            try:
                return self._decode(file, failure)
            except MemoryError:  # not even for what says whose message it is
                await asyncio.sleep(_RETRY_S)
        return self._decode(file, failure)

    def _refuse(self, error: Exception) -> None:
        """End the connection to a peer; the loop serves others."""
        self.has_refused = True
        if isinstance(error, AsyncnnError):
            self._fail(str(error))
        else:
            logger.error("handling a message failed", exc_info=error)
            self._fail("handling a message failed")

    def _fail(self, reason: str) -> None:
        if not self.is_closed:
            self._hang_up()
            self._lost(reason)


def inline_packet(data: bytes) -> bytes:
    """Return the packet of a short message, for a socket that has no channel."""
    return _INLINE + data
