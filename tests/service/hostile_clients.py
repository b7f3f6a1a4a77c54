"""A process of 200 hostile connections: ``python -m tests.service.hostile_clients``.

It takes the kind and the path of the driver, says when it has begun, and goes on until
it is killed.
"""

import contextlib
import itertools
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from asyncnn.hal.types import Priority
from asyncnn.memory.shared import allocate
from asyncnn.service import wire
from asyncnn.service.decoding import decode_to_client
from asyncnn.service.process import socket_address
from tests.networks import addition, chain
from tests.service.clients import tell
from tests.service.raw import BEFORE_FDS, BY_FILE, INLINE, execute, ping, sealed

CONNECTIONS = 200
SUM = addition(4).model


class Connection:
    """A blocking socket to the driver."""

    def __init__(self, path: str, *, greets: bool = True) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(socket_address(path))
        if greets:
            self.send(wire.Hello(wire.PROTOCOL_VERSION))
            assert isinstance(self.receive(), wire.Welcome)

    def send(self, message: wire.ToDriver, fds: Sequence[int] = ()) -> None:
        self.send_packet(INLINE + wire.encode(message), fds)

    def send_packet(self, packet: bytes, fds: Sequence[int] = ()) -> None:
        if fds:
            self.socket.send(BEFORE_FDS + bytes((len(fds),)))
            socket.send_fds(self.socket, [packet], list(fds))
        else:
            self.socket.send(packet)

    def send_file(self, fd: int, size: int) -> None:
        self.send_packet(BY_FILE + struct.pack("<Q", size), [fd])

    def receive(self) -> object:
        packet = self.socket.recv(1 << 17)
        return decode_to_client(packet[1:]) if packet else None

    def drain(self) -> None:
        """Drop the answers that have come."""
        with contextlib.suppress(BlockingIOError):
            while self.socket.recv(1 << 17, socket.MSG_DONTWAIT):
                pass

    def wait_end(self) -> None:
        """Wait until the driver hangs up."""
        with contextlib.suppress(ConnectionError):
            while self.socket.recv(1 << 17):
                pass
        self.socket.close()


def say_nothing(path: str) -> None:
    held = [Connection(path, greets=False) for _ in range(CONNECTIONS)]
    tell("begun")
    time.sleep(60)
    del held


def one_after_the_other(path: str, break_rules: Callable[[Connection], None]) -> None:
    """Break rules on a new connection each time; the driver hangs up on all."""
    tell("begun")
    while True:
        connection = Connection(path)
        with contextlib.suppress(ConnectionError):
            break_rules(connection)
        connection.wait_end()


def send_garbage(path: str) -> None:
    whole = wire.encode(ping(1))
    packets = itertools.cycle(
        [b"", b"\xc1", b"\xff" * 9999, whole[:20], b"\x91" * 9999]
    )
    one_after_the_other(path, lambda c: c.send_packet(INLINE + next(packets)))


def send_too_much(path: str) -> None:
    sparse = os.memfd_create("sparse", os.MFD_ALLOW_SEALING)
    os.truncate(sparse, 2**26)
    sizes = itertools.cycle([2**26 + 1, 2**63])
    small = sealed(b"small")
    one_after_the_other(path, lambda c: c.send_file(small, next(sizes)))


def send_descriptors(path: str) -> None:
    one_after_the_other(path, lambda c: c.send(ping(1), [0] * 50))


def never_read(path: str) -> None:
    held = [Connection(path) for _ in range(CONNECTIONS)]
    for connection in held:
        connection.socket.setblocking(False)
    tell("begun")
    while True:
        for index, connection in enumerate(held):
            try:
                for number in range(20):
                    connection.send(ping(number))
            except BlockingIOError:
                pass
            except ConnectionError:
                held[index] = Connection(path)
                held[index].socket.setblocking(False)


def announce_pools(path: str) -> None:
    """Announce and forget as many as the driver takes."""
    pool = allocate(2**16)
    unsealed = os.memfd_create("unsealed")
    os.truncate(unsealed, 2**16)
    held = [Connection(path) for _ in range(CONNECTIONS)]
    tell("begun")
    for first in itertools.count(1, 16):
        for connection in held:
            infos = tuple(
                [wire.PoolInfo(first + n, "ashmem", 2**16, (), 1) for n in range(16)]
            )
            connection.send(
                wire.AnnouncePools(infos), [pool.handle.fds[0], unsealed] * 8
            )
            if first > 400:
                numbers = range(first - 400, first - 384)
                connection.send(wire.ForgetPools(tuple(numbers)))


def prepare_for_ever(path: str) -> None:
    held = [Connection(path) for _ in range(CONNECTIONS)]
    model = chain(20, 4).model
    tell("begun")
    for number in itertools.count(1):
        for connection in held:
            connection.send(wire.PrepareModel(number, model, (), 1, 1, None))
            connection.send(wire.ReleasePreparedModel(number - 4))
            connection.drain()


def execute_at_high(path: str) -> None:
    held = [Connection(path) for _ in range(CONNECTIONS)]
    pool = allocate(2**15)
    model = chain(20, 64, 64).model
    info = wire.PoolInfo(2, "ashmem", pool.size, pool.handle.ints, 1)
    for connection in held:
        connection.send(wire.AnnouncePools((info,)), pool.handle.fds)
        connection.send(wire.PrepareModel(1, model, (), 1, Priority.HIGH, None))
    places = ((0, 0, 2**14), (0, 2**14, 2**14))
    tell("begun")
    for number in itertools.count(1):
        for connection in held:
            connection.send(execute(number, 1, *places, pools=(2,)))
            connection.drain()


def send_large_models(path: str) -> None:
    """Ask about models of 60 MiB, and about many operations."""
    values = replace(SUM, operand_values=bytes(60 * 2**20))
    files = [
        (sealed(data), len(data))
        for model in (values, chain(4_000, 4).model)
        for data in [wire.encode(wire.GetSupportedOperations(1, model, ()))]
    ]
    held = [Connection(path) for _ in range(CONNECTIONS)]
    for connection in held:
        connection.socket.setblocking(False)
    tell("begun")
    while True:
        for connection in held:
            for file in files:
                with contextlib.suppress(BlockingIOError):
                    connection.send_file(*file)
            connection.drain()
        time.sleep(0.001)


KINDS = {
    kind.__name__: kind
    for kind in (
        say_nothing,
        send_garbage,
        send_too_much,
        send_descriptors,
        never_read,
        announce_pools,
        prepare_for_ever,
        execute_at_high,
        send_large_models,
    )
}

if __name__ == "__main__":
    # The kernel shares out CPUs; what is tested is what the driver shares out.
    os.nice(19)
    KINDS[sys.argv[1]](sys.argv[2])
