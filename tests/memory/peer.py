"""Another process that maps the pools it is sent, and reads and writes them."""

import os
import resource
import socket
import subprocess
import sys
from contextlib import closing
from typing import Self

import msgspec

from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.types import Handle, Memory
from asyncnn.memory import Mapper, MappingPolicy

_LIMIT = 1 << 17


class Order(msgspec.Struct, array_like=True):
    """Read ``length`` bytes of a pool, or write ``data``, at ``offset``.

    An order without a kind of pool is about the pool of the order before.
    """

    kind: str
    size: int
    ints: tuple[int, ...]
    offset: int
    length: int = 0
    data: bytes = b""


class Peer:
    """A child process at the other end of a socket."""

    def __init__(self, *, trusting: bool) -> None:
        self._socket, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with end:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(end.fileno()), str(int(trusting))],
                pass_fds=[end.fileno()],
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self.process.wait()

    def read(self, memory: Memory, offset: int, length: int) -> bytes:
        """Return bytes as the other process sees them."""
        return self._ask(memory, Order(*_described(memory), offset, length))

    def read_again(self, offset: int, length: int) -> bytes:
        """Return bytes of the pool that the other process has mapped already."""
        return self._ask(None, Order("", 0, (), offset, length))

    def write(self, memory: Memory, offset: int, data: bytes) -> str:
        """Let the other process write ``data``; return its error, if any."""
        order = Order(*_described(memory), offset, 0, data)
        return self._ask(memory, order).decode()

    def _ask(self, memory: Memory | None, order: Order) -> bytes:
        fds = [] if memory is None else list(memory.handle.fds)
        socket.send_fds(self._socket, [msgspec.msgpack.encode(order)], fds)
        return self._socket.recv(_LIMIT)


def _described(memory: Memory) -> tuple[str, int, tuple[int, ...]]:
    return memory.name, memory.size, memory.handle.ints


def serve(end: socket.socket, mapper: Mapper) -> None:
    """Obey until the other end is closed."""
    pool = Memory("", 0)
    while True:
        message, fds, _, _ = socket.recv_fds(end, _LIMIT, 4)
        if not message:
            return
        order = msgspec.msgpack.decode(message, type=Order)
        if order.kind:
            pool = mapper.map(
                Memory(order.kind, order.size, Handle(tuple(fds), order.ints))
            )
        for fd in fds:
            os.close(fd)
        end.send(_obey(order, pool, mapper))


def _obey(order: Order, pool: Memory, mapper: Mapper) -> bytes:
    start, end = order.offset, order.offset + (order.length or len(order.data))
    assert pool.buffer is not None
    if not order.data:
        return bytes(pool.buffer[start:end])
    try:
        pool.buffer[start:end] = order.data
        mapper.flush(pool, start, end - start)
    except (AsyncnnError, TypeError) as error:
        return repr(error).encode()
    return b""


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    policy = MappingPolicy(trust_same_uid=sys.argv[2] == "1")
    with socket.socket(fileno=int(sys.argv[1])) as end, closing(Mapper(policy)) as it:
        serve(end, it)
