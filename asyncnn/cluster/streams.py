"""Streams to hosts, for small runs: no queues and threads of actors are in between.

A host listens on a port of its node. Who brings the token, which a call of its actor
returns, may have runs there. A frame is a head, and the bytes of arrays behind it, each
padded. Nothing is encrypted: where calls of actors are, there are no streams.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from hmac import compare_digest
from math import prod
from struct import Struct
from typing import Any, Protocol, TypeAlias, cast
from weakref import WeakSet

import msgspec
import numpy as np

from asyncnn.cluster.exchange import Answer, RunOrder, Sent
from asyncnn.hal.operations.bound import Array

logger = logging.getLogger(__name__)

_LENGTHS = Struct("<II")
_TOKEN_BYTES = 32
_PATIENCE_S = 5.0

_Form: TypeAlias = tuple[str, tuple[int, ...]] | None
_Forms: TypeAlias = tuple[_Form, ...]

SMALL_BYTES = 2 * 2**20
"""Inputs and outputs up to which they go by a stream, not by a call of an actor."""

_ALIGNED = 16
_ROOM = 2**16
"""Bytes that an end reads at once, unless it knows that more belong together."""

_encode = msgspec.msgpack.Encoder().encode


class Runner(Protocol):
    """What a host does for streams; see `ReplicaHost`."""

    async def run(self, order: RunOrder, inputs: Sent, /) -> Answer:
        """Run an order."""

    def stop(self, number: int, /) -> None:
        """Stop a run."""


class StreamedRun(msgspec.Struct, frozen=True, array_like=True):
    """The head of what clients send; without an order, run ``number`` is to stop."""

    number: int
    order: RunOrder | None = None
    forms: _Forms = ()


class StreamedAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The head of an answer, whose outputs follow."""

    number: int
    answer: Answer
    forms: _Forms


def _frame(head: msgspec.Struct, arrays: Sent) -> list[Any]:
    """Return the parts of a frame."""
    encoded = _encode(head)
    parts: list[Any] = []
    for array in arrays:
        if array is not None:
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            parts += data, bytes(-len(data) % _ALIGNED)
    lengths = _LENGTHS.pack(len(encoded), sum(map(len, parts)))
    padding = bytes(-len(encoded) - len(lengths) & _ALIGNED - 1)
    return [lengths, encoded, padding, *parts]


def forms(arrays: Sent) -> _Forms:
    """Return what arrays are like, without their bytes."""
    return tuple([None if a is None else (a.dtype.str, a.shape) for a in arrays])


def _arrays(forms: _Forms, data: memoryview) -> Sent:
    """Return arrays on the bytes of a frame.

    :raises ValueError: if they do not fit.
    """
    found: list[Any] = []
    at = 0
    for form in forms:
        if form is None:
            found.append(None)
            continue
        dtype, shape = np.dtype(form[0]), form[1]
        size = dtype.itemsize * prod(shape)
        found.append(np.frombuffer(data[at : at + size], dtype).reshape(shape))
        at += size + -size % _ALIGNED
    return tuple(found)


class _Frames(asyncio.BufferedProtocol):
    """An end of a stream, which takes apart frames of ``most_bytes`` at most."""

    transport: asyncio.Transport
    most_bytes = 2**32

    def __init__(self, kind: type[msgspec.Struct]) -> None:
        self._decode: Callable[[Any], Any] = msgspec.msgpack.Decoder(kind).decode
        self._buffer = bytearray(_ROOM)
        self._filled = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note where to write."""
        self.transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where bytes are to go."""
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, count: int) -> None:
        """Hand over the frames that are complete."""
        self._filled += count
        at = room = 0
        while self._filled - at >= _LENGTHS.size:
            head, rest = _LENGTHS.unpack_from(self._buffer, at)
            head += _LENGTHS.size
            begin = head + -head % _ALIGNED
            room = begin + rest
            if room > self.most_bytes:
                logger.warning("a stream is closed: a frame of %d bytes", room)
                self.transport.abort()
                return
            if self._filled - at < room:
                break
            # One that fills the buffer has it; others are copied, and it is used again.
            is_whole = at == 0 and room == len(self._buffer)
            frame = memoryview(
                self._buffer if is_whole else self._buffer[at : at + room]
            )
            at += room
            room = 0
            try:
                found = self._decode(frame[_LENGTHS.size : head])
                arrays = _arrays(found.forms, frame[begin:])
            except Exception as error:  # texts that are no dtype raise SyntaxError, too
                logger.warning("a stream is closed, as it has no frame: %s", error)
                self.transport.abort()
                return
            self.taken(found, arrays)
            if is_whole:
                self._buffer = bytearray(_ROOM)
                at = self._filled = 0
        if at or room > len(self._buffer):
            self._drop(at, room)

    def _drop(self, at: int, room: int = 0) -> None:
        """Have what follows ``at`` at the front, with so much room from there."""
        left = self._buffer[at : self._filled]
        self._filled = len(left)
        if room > len(self._buffer):
            self._buffer = bytearray(room)
        self._buffer[: len(left)] = left

    def send(self, head: msgspec.Struct, arrays: Sent) -> None:
        """Send a frame."""
        parts = _frame(head, arrays)
        if sum(map(len, parts)) < _ROOM:
            self.transport.write(b"".join(parts))
        else:
            for part in parts:
                self.transport.write(part)

    def taken(self, head: Any, arrays: Sent) -> None:
        """Take a frame."""
        raise NotImplementedError


class _HostEnd(_Frames):
    """The end of a host, which has runs computed once the token has come."""

    most_bytes = 2 * SMALL_BYTES

    def __init__(self, runner: Runner, token: bytes) -> None:
        super().__init__(StreamedRun)
        self._runner = runner
        self._token: bytes | None = token
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the token, not for long."""
        super().connection_made(transport)
        loop = asyncio.get_running_loop()
        self._waiting = loop.call_later(_PATIENCE_S, transport.close)

    def buffer_updated(self, count: int) -> None:
        """Take the token first."""
        if self._token is None:
            super().buffer_updated(count)
            return
        self._filled += count
        if self._filled < _TOKEN_BYTES:
            return
        if not compare_digest(self._buffer[:_TOKEN_BYTES], self._token):
            self.transport.abort()
            return
        self._waiting.cancel()
        self._token = None
        self._drop(_TOKEN_BYTES)
        super().buffer_updated(0)

    def connection_lost(self, error: Exception | None) -> None:
        """Stop what nobody waits for."""
        self._waiting.cancel()
        for task in self._tasks:
            task.cancel()

    def taken(self, head: StreamedRun, arrays: Sent) -> None:
        """Begin or stop a run."""
        if head.order is None:
            self._runner.stop(head.number)
            return
        task = asyncio.get_running_loop().create_task(self._run(head.order, arrays))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, order: RunOrder, inputs: Sent) -> None:
        answer = await self._runner.run(order, inputs)
        if not self.transport.is_closing():
            sent = StreamedAnswer(
                order.number, answer._replace(outputs=()), forms(answer.outputs)
            )
            self.send(sent, answer.outputs)


class StreamPort:
    """A port of a host, and who is connected to it."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._server: asyncio.Server | None = None
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._ends: WeakSet[_HostEnd] = WeakSet()

    async def open(self, address: str) -> tuple[int, bytes]:
        """Listen on an address, once; return the port, and the token for it.

        :raises OSError: if it cannot be had.
        """
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(self._end, address, 0)
        return self._server.sockets[0].getsockname()[1], self._token

    def close(self) -> None:
        """Disconnect all, and listen no more."""
        if self._server is not None:
            self._server.close()
        for each in self._ends:
            each.transport.abort()

    def _end(self) -> _HostEnd:
        end = _HostEnd(self._runner, self._token)
        self._ends.add(end)
        return end


class ClientEnd(_Frames):
    """The end of a client; ``lost`` is called when the other one is gone."""

    def __init__(self, token: bytes, lost: "Callable[[ClientEnd], None]") -> None:
        super().__init__(StreamedAnswer)
        self._token = token
        self._lost = lost
        self._pending: dict[int, Callable[[Any], None]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Bring the token."""
        super().connection_made(transport)
        self.transport.write(self._token)

    def connection_lost(self, error: Exception | None) -> None:
        """Report it."""
        self._lost(self)

    def run(
        self, order: RunOrder, inputs: Sent, answered: Callable[[Answer], None]
    ) -> None:
        """Have a run computed; ``answered`` is called later."""
        self._pending[order.number] = answered
        self.send(StreamedRun(order.number, order, forms(inputs)), inputs)

    def stop(self, number: int) -> None:
        """Have a run stopped."""
        self.send(StreamedRun(number), ())

    def taken(self, head: StreamedAnswer, arrays: Sent) -> None:
        """Hand over an answer."""
        outputs = cast("tuple[Array, ...]", arrays)
        self._pending.pop(head.number)(head.answer._replace(outputs=outputs))
