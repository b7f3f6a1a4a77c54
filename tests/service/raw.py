"""A client that sends what it likes, packet by packet."""

import array
import asyncio
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.types import DataLocation, Memory, Model, RequestArgument
from asyncnn.service import wire
from asyncnn.service.channel import MAX_PACKET_BYTES, Channel, ChannelBounds
from asyncnn.service.decoding import (
    MessageFile,
    Received,
    ReceivedFile,
    decode_to_client,
)
from asyncnn.service.process import socket_address
from tests.networks import chain

INLINE, BY_FILE, BEFORE_FDS = b"\0", b"\1", b"\2"


class RawClient:
    """One end of a socket, or a connection to a driver."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.socket = end

    @classmethod
    def connect(cls, path: Path) -> "RawClient":
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end.setblocking(False)  # a full backlog fails instead of blocking the driver
        try:
            end.connect(socket_address(path))
        except BaseException:
            end.close()
            raise
        return cls(end)

    @classmethod
    def of_another_process(cls, path: Path) -> "RawClient":
        """Have a process connect that ends at once, and go on in its name."""
        ours, theirs = socket.socketpair()
        child = os.fork()
        if not child:
            try:
                end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                end.connect(socket_address(path))
                socket.send_fds(theirs, [b"!"], [end.fileno()])
            finally:
                os._exit(0)
        theirs.close()
        with ours:
            _, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
        os.waitpid(child, 0)
        return cls(socket.socket(fileno=fd))

    def send(self, message: wire.ToDriver | bytes, fds: Sequence[int] = ()) -> None:
        data = message if isinstance(message, bytes) else wire.encode(message)
        if len(data) < MAX_PACKET_BYTES:
            self.send_packet(INLINE + data, fds)
        else:
            self.send_file(data)

    def send_packet(
        self, packet: bytes, fds: Sequence[int] = (), announced: int | None = None
    ) -> None:
        """Send a packet after one that says how many descriptors come beside it."""
        count = len(fds) if announced is None else announced
        if count:
            self.socket.send(BEFORE_FDS + bytes((count,)))
        socket.send_fds(self.socket, [packet], list(fds))

    def send_file(
        self, data: bytes, size: int | None = None, fds: Sequence[int] = ()
    ) -> None:
        """Send a large message in a file that is said to have ``size`` bytes."""
        fd = sealed(data)
        size = len(data) if size is None else size
        self.send_packet(BY_FILE + struct.pack("<Q", size), [fd, *fds])
        os.close(fd)

    async def greet(self) -> "RawClient":
        self.send(wire.Hello(wire.PROTOCOL_VERSION))
        assert isinstance(await self.receive(), wire.Welcome)
        return self

    async def receive(self) -> wire.ToClient | None:
        """Return the next message, None if the peer has hung up."""
        message: wire.ToClient | None = wire.PoolsRefused(())
        while isinstance(message, wire.PoolsRefused):  # the calls tell of it as well
            packet, fds = await self.receive_packet()
            if not packet:
                return None
            is_file = packet[:1] == BY_FILE
            data = os.pread(fds[0], 1 << 26, 0) if is_file else packet[1:]
            for fd in fds:
                os.close(fd)
            message = decode_to_client(data)
        return message

    async def receive_packet(self) -> tuple[bytes, list[int]]:
        data = BEFORE_FDS
        while data[:1] == BEFORE_FDS:
            await self._readable()
            try:
                data, ancillary, _, _ = self.socket.recvmsg(1 << 17, 4096)
            except ConnectionResetError:
                return b"", []
        fds = array.array("i")
        for _, _, found in ancillary:
            fds.frombytes(found)
        return data, list(fds)

    async def is_hung_up_on(self) -> bool:
        """Return whether the peer hangs up, whatever it says before."""
        async with asyncio.timeout(20):
            while await self.receive():
                pass
        return True

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        loop.add_reader(self.socket, lambda: ready.done() or ready.set_result(None))
        try:
            async with asyncio.timeout(10):
                await ready
        finally:
            loop.remove_reader(self.socket)

    def close(self) -> None:
        self.socket.close()

    def announce(self, number: int, memory: Memory) -> None:
        """Announce a pool that has a descriptor."""
        fds = memory.handle.fds
        info = wire.PoolInfo(
            number, memory.name, memory.size, memory.handle.ints, len(fds)
        )
        self.send(wire.AnnouncePools((info,)), fds)

    def announce_fd(self, number: int, fd: int, size: int) -> None:
        self.send(
            wire.AnnouncePools((wire.PoolInfo(number, "ashmem", size, (), 1),)), [fd]
        )

    async def prepare(self, number: int, model: Model) -> wire.Prepared:
        self.send(prepare(number, model))
        answer = await self.receive()
        assert isinstance(answer, wire.Prepared)
        assert answer.prepared == number
        return answer

    async def execute(self, message: wire.Execute) -> wire.Executed:
        self.send(message)
        answer = await self.receive()
        assert isinstance(answer, wire.Executed)
        assert answer.execution == message.execution
        return answer


def sealed(data: bytes) -> int:
    """Return the descriptor of a memory file as a `Channel` sends it."""
    file = MessageFile(data)
    return os.dup(file.fd)


def ping(number: int) -> wire.GetSupportedOperations:
    """Return a message that any driver answers by its number."""
    return wire.GetSupportedOperations(number, chain(1, 1).model, ())


def prepare(number: int, model: Model, pools: tuple[int, ...] = ()) -> wire.ToDriver:
    return wire.PrepareModel(number, model, pools, 1, 1, None)


def execute(
    number: int,
    prepared: int,
    *places: tuple[int, int, int],
    pools: tuple[int, ...],
    outputs: int = 1,
) -> wire.Execute:
    """Return an execution; places are (pool, offset, length), those of outputs last."""
    arguments = tuple(RequestArgument(False, DataLocation(*at)) for at in places)
    split = len(arguments) - outputs
    return wire.Execute(
        number, prepared, arguments[:split], arguments[split:], pools, 0, None, None
    )


class Inbox:
    """What a channel receives, and how it was lost."""

    def __init__(self) -> None:
        self.packets: list[bytes] = []
        self.fds: list[list[int] | None] = []
        self.reasons: list[str] = []
        self.error: Exception | None = None
        self._changed = asyncio.Event()

    def receive(self, data: bytes, fds: list[int] | None) -> None:
        self.packets.append(data)
        self.fds.append(fds and [os.fstat(fd).st_ino for fd in fds])
        self._changed.set()
        if self.error is not None:
            raise self.error

    def lost(self, reason: str) -> None:
        self.reasons.append(reason)
        self._changed.set()

    async def change(self) -> None:
        async with asyncio.timeout(20):
            await self._changed.wait()
        self._changed.clear()

    def channel(self, end: socket.socket, **limits: Any) -> "Channel[bytes]":
        bounds = {"max_message_bytes": 2**20, "max_fds": 4, "max_unread_bytes": 2**20}
        given = ChannelBounds(**(bounds | limits))
        return Channel(end, _contents, self.receive, self.lost, given)


def _contents(data: Received, _: AsyncnnError | None) -> bytes:
    if isinstance(data, ReceivedFile):
        data.check()
    return bytes(data[:])
