"""Clients that send sockets which keep whoever closes them last waiting.

Each driver is stopped while they do, so that its descriptor is the last one.
"""

import asyncio
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from asyncnn.service import wire
from asyncnn.service.process import DriverProcess
from tests.places import driver_of
from tests.service.conftest import is_served
from tests.service.raw import BEFORE_FDS, BY_FILE, INLINE, RawClient, ping

LINGER_S = 3600
PATIENCE_S = 20

Send = Callable[[RawClient, int], None]


driver = driver_of()


@contextmanager
def lingering() -> Iterator[socket.socket]:
    """Yield a TCP socket that has bytes to send which its peer does not take."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        end = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
    with peer:
        end.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                end.send(bytes(2**16))
        linger = struct.pack("ii", 1, LINGER_S)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        yield end


def beside_a_message_that_has_none(client: RawClient, fd: int) -> None:
    client.send(ping(1), [fd])


def as_a_pool(client: RawClient, fd: int) -> None:
    info = wire.PoolInfo(2, "ashmem", 4096, (), 1)
    client.send(wire.AnnouncePools((info,)), [fd])
    client.send(wire.ForgetPools((2,)))


def as_a_large_message(client: RawClient, fd: int) -> None:
    client.send_packet(BY_FILE + struct.pack("<Q", 2**18), [fd])


def unannounced(client: RawClient, fd: int) -> None:
    client.send_packet(INLINE, [fd], announced=0)


def more_than_announced(client: RawClient, fd: int) -> None:
    client.send_packet(INLINE, [fd] * 50, announced=1)


def behind_what_breaks_the_protocol(client: RawClient, fd: int) -> None:
    client.send_packet(b"\7")
    client.send_packet(INLINE, [fd], announced=0)


def in_an_empty_packet_behind_that(client: RawClient, fd: int) -> None:
    client.send_packet(b"\7")
    client.socket.send(BEFORE_FDS + b"\1")
    socket.send_fds(client.socket, [b""], [fd])


def within_another_socket(client: RawClient, fd: int) -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        socket.send_fds(one, [b"!"], [fd])
        client.send(ping(1), [other.fileno()])


KINDS: tuple[Send, ...] = (
    beside_a_message_that_has_none,
    as_a_pool,
    as_a_large_message,
    unannounced,
    more_than_announced,
    behind_what_breaks_the_protocol,
    in_an_empty_packet_behind_that,
    within_another_socket,
)


@pytest.mark.parametrize("send", KINDS, ids=lambda send: send.__name__)
async def test_the_driver_does_not_wait_for_them(
    driver: DriverProcess, send: Send
) -> None:
    client = await RawClient.connect(driver.path).greet()
    with lingering() as end:
        os.kill(driver.pid, signal.SIGSTOP)
        try:
            with end:
                send(client, end.fileno())
        finally:
            os.kill(driver.pid, signal.SIGCONT)
        async with asyncio.timeout(PATIENCE_S):
            assert await is_served(driver.path)
        client.close()
        async with asyncio.timeout(PATIENCE_S):
            assert await is_served(driver.path)
