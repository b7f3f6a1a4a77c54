"""A driver that says what a test tells it to."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from asyncnn.hal.types import NO_TIMING, Capabilities, DeviceType, PerformanceInfo
from asyncnn.service import wire
from asyncnn.service.decoding import decode_to_driver

PATIENCE_S = 20.0
BEFORE_FDS = b"\2"


class FakeDriver:
    """The driver's end of a socket."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        end.setblocking(False)

    async def receive(self) -> wire.ToDriver:
        packet = BEFORE_FDS
        async with asyncio.timeout(PATIENCE_S):
            while packet[:1] == BEFORE_FDS:
                packet = await asyncio.get_running_loop().sock_recv(self.end, 2**17)
        assert packet, "the client has hung up"
        return decode_to_driver(packet[1:])

    def send(self, *messages: wire.ToClient) -> None:
        for message in messages:
            self.end.send(b"\0" + wire.encode(message))

    def die(self) -> None:
        self.end.close()


def welcome(version: int = wire.PROTOCOL_VERSION) -> wire.Welcome:
    info = PerformanceInfo(1.0, 1.0)
    return wire.Welcome(
        version,
        "some-device",
        "fake",
        DeviceType.CPU,
        Capabilities(info, info, (), info, info),
        (),
        0,
        0,
        2,
        64,
        2**30,
    )


def executed(number: int, status: int = 0, reason: str = "") -> wire.Executed:
    return wire.Executed(number, status, (), NO_TIMING, reason)


@contextmanager
def listening(path: str, kind: int) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, kind) as listener:
        listener.bind(path)
        listener.listen()
        listener.setblocking(False)
        yield listener


async def accept(listener: socket.socket) -> FakeDriver:
    end, _ = await asyncio.get_running_loop().sock_accept(listener)
    return FakeDriver(end)
