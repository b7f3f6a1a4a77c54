"""Streams of packets through a queue, at one end in this process or in another one."""

import array
import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from typing import Self

import msgspec

from asyncnn.fmq import LoopPoller, MessageQueue
from asyncnn.hal.types import Handle

QUANTUM = 8
_LIMIT = 1 << 20
_PATIENCE_S = 30

WRITERS = ("nowait", "task", "thread", "in place")
READERS = ("nowait", "task", "thread", "in place", "served", "one by one")


class Stream(msgspec.Struct, frozen=True):
    """Packets of these sizes in elements, the first element being number ``start``.

    ``writer`` and ``reader`` name a way to write and to read. Whoever ``pauses`` does
    so every few packets, for some microseconds.
    """

    start: int
    sizes: tuple[int, ...]
    writer: str
    reader: str
    spins: bool = True
    writer_pauses: int = 0
    reader_pauses: int = 0

    @property
    def count(self) -> int:
        return sum(self.sizes)


def elements(start: int, count: int) -> bytes:
    return array.array("Q", range(start, start + count)).tobytes()


def send(queue: MessageQueue, stream: Stream) -> None:
    """Write all packets of ``stream``."""
    packets = list(_packets(stream))
    if stream.writer == "task":
        asyncio.run(_send(queue, packets, stream))
        return
    write: Callable[[bytes], object] = {
        "nowait": partial(_until, queue.write_nowait),
        "thread": partial(
            queue.write_blocking, timeout=_PATIENCE_S, spins=stream.spins
        ),
        "in place": partial(_until, partial(_write_in_place, queue)),
    }[stream.writer]
    for number, packet in enumerate(packets):
        _pause(number, stream.writer_pauses)
        write(packet)


async def _send(queue: MessageQueue, packets: list[bytes], stream: Stream) -> None:
    for number, packet in enumerate(packets):
        _pause(number, stream.writer_pauses)
        await queue.write(packet, _PATIENCE_S, spins=stream.spins)


def receive(queue: MessageQueue, stream: Stream) -> str:
    """Read all packets of ``stream``; return what is wrong with them, if anything."""
    reads = _READS[stream.reader](queue, stream)
    position = stream.start
    ends = set(accumulate(stream.sizes, initial=stream.start))
    for number, data in enumerate(reads):
        _pause(number, stream.reader_pauses)
        count = len(data) // QUANTUM
        if data != elements(position, count):
            return f"{count} elements at {position} differ"
        position += count
        if position not in ends and stream.reader != "one by one":
            return f"a packet ends at {position}"
        if position == stream.start + stream.count:
            return ""
    return f"the stream ends at {position}"


def _packets(stream: Stream) -> Iterator[bytes]:
    position = stream.start
    for size in stream.sizes:
        yield elements(position, size)
        position += size


def _read_nowait(queue: MessageQueue, stream: Stream) -> Iterator[bytes]:
    while True:
        yield _until(queue.read_nowait)


def _read_one_by_one(queue: MessageQueue, stream: Stream) -> Iterator[bytes]:
    for _ in range(stream.count):
        yield queue.read_blocking(1, _PATIENCE_S, spins=stream.spins)


def _read_blocking(queue: MessageQueue, stream: Stream) -> Iterator[bytes]:
    for size in stream.sizes:
        yield queue.read_blocking(size, _PATIENCE_S, spins=stream.spins)


def _read_in_place(queue: MessageQueue, stream: Stream) -> Iterator[bytes]:
    while True:
        spans = _until(queue.reading)
        data = bytes(spans.first) + bytes(spans.second)
        spans.commit()
        yield data


def _read_in_task(queue: MessageQueue, stream: Stream) -> Iterator[bytes]:
    async def read() -> list[bytes]:
        left, taken = stream.count * QUANTUM, []
        while left:
            taken.append(await queue.read(None, _PATIENCE_S, spins=stream.spins))
            left -= len(taken[-1])
        return taken

    yield from asyncio.run(read())


def _read_served(queue: MessageQueue, stream: Stream) -> Iterator[bytes]:
    async def read() -> list[bytes]:
        left, taken, done = stream.count * QUANTUM, [], asyncio.Event()

        def on_ready() -> None:
            nonlocal left
            taken.append(queue.read_nowait() or b"")
            left -= len(taken[-1])
            if left <= 0:
                done.set()

        served = LoopPoller.running().serve(queue, on_ready)
        async with asyncio.timeout(_PATIENCE_S):
            await done.wait()
        served.stop()
        return taken

    yield from asyncio.run(read())


_READS = dict(
    zip(
        READERS,
        (
            _read_nowait,
            _read_in_task,
            _read_blocking,
            _read_in_place,
            _read_served,
            _read_one_by_one,
        ),
        strict=True,
    )
)


def _write_in_place(queue: MessageQueue, data: bytes) -> bool:
    spans = queue.writing(len(data) // QUANTUM)
    if spans is None:
        return False
    split = len(spans.first)
    spans.first[:], spans.second[:] = data[:split], data[split:]
    spans.commit()
    return True


def _until(attempt, *args):  # type: ignore[no-untyped-def]
    while not (result := attempt(*args)):
        os.sched_yield()
    return result


def _pause(number: int, every: int) -> None:
    if every and number % every == 0:
        for _ in range(number % 97 * 20):
            pass


class Peer:
    """A process that opens two queues: one to read from, one to write to."""

    def __init__(self, to: MessageQueue, fro: MessageQueue) -> None:
        self._socket, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(2 * _PATIENCE_S)
        with end:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(end.fileno())], pass_fds=[end.fileno()]
            )
        for queue in (to, fro):
            handle = queue.descriptor
            message = msgspec.msgpack.encode(handle.ints)
            socket.send_fds(self._socket, [message], list(handle.fds))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self.process.wait()

    def begin(self, verb: str, stream: Stream) -> None:
        """Have the other process ``send`` or ``receive`` a stream."""
        self._socket.send(msgspec.msgpack.encode((verb, stream)))

    def outcome(self) -> str:
        """Return what went wrong there, once it is done."""
        return self._socket.recv(_LIMIT).decode() or "the other process has ended"


def _serve(end: socket.socket) -> None:
    queues = []
    for _ in range(2):
        message, fds, _, _ = socket.recv_fds(end, _LIMIT, 3)
        ints = msgspec.msgpack.decode(message, type=tuple[int, ...])
        queues.append(MessageQueue.open(Handle(tuple(fds), ints)))
        for fd in fds:
            os.close(fd)
    while message := end.recv(_LIMIT):
        verb, stream = msgspec.msgpack.decode(message, type=tuple[str, Stream])
        try:
            if verb == "send":
                send(queues[1], stream)
            problem = receive(queues[0], stream) if verb == "receive" else ""
        except Exception as error:  # the test reports it
            problem = repr(error)
        end.send((problem or "done").encode())
    for queue in queues:
        queue.close()


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as end:
        _serve(end)
