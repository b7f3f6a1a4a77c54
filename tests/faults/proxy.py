"""What stands between a client and a driver, and does to packets what a seed says."""

import array
import asyncio
import os
import random
import socket
from collections import deque
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import partial

from asyncnn.service.process import private_address, socket_address

MOST_FDS = 253
PACKET_BYTES = 2**18

Packet = tuple[bytes, list[int]]

FAULTS = (
    *("delay", "split", "drop", "duplicate", "swap"),
    *("shuffle-descriptors", "drop-descriptors", "damage", "close"),
)
"""What may happen to a packet; only a delay is nothing that is noticed."""


class Proxy:
    """Passes packets on, with their descriptors, in both directions.

    About every ``each``-th suffers one of ``faults``, after the first ``spared`` of
    each direction. ``done`` says what has happened.
    """

    def __init__(
        self, target: object, faults: Collection[str], seed: int, each: int, spared: int
    ) -> None:
        self.chance = random.Random(seed)
        self.faults = sorted(faults)
        self.done: list[str] = []
        self._target = target
        self._each = each
        self._spared = spared
        self._lines: set[_Line] = set()

    def accept(self, listener: socket.socket) -> None:
        """Take a client, and connect to the driver in its place."""
        client, _ = listener.accept()
        driver = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        driver.connect(socket_address(self._target))  # type: ignore[arg-type]
        self._lines.add(_Line(self, client, driver))

    def fate(self, seen: int) -> str | None:
        """Say what happens to a packet, after so many before it."""
        if seen < self._spared or self.chance.randrange(self._each):
            return None
        fault = self.chance.choice(self.faults)
        self.done.append(fault)
        return fault

    def close(self) -> None:
        """Hang up on everybody."""
        for line in self._lines:
            line.close()


class _Line:
    """One client's connection: two directions, each with packets to be sent."""

    def __init__(
        self, proxy: Proxy, client: socket.socket, driver: socket.socket
    ) -> None:
        self._proxy = proxy
        self._loop = asyncio.get_running_loop()
        self._ends = client, driver
        self._waiting: dict[int, deque[Packet]] = {0: deque(), 1: deque()}
        self._held: set[int] = set()
        self._seen = [0, 0]
        for number, end in enumerate(self._ends):
            end.setblocking(False)
            self._loop.add_reader(end, self._read, number)

    def close(self) -> None:
        """Hang up on both."""
        for end in self._ends:
            if end.fileno() >= 0:
                self._loop.remove_reader(end)
                end.close()
        for waiting in self._waiting.values():
            while waiting:
                _close_all(waiting.popleft()[1])

    def _read(self, number: int) -> None:
        try:
            data, fds = _received(self._ends[number])
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if not data:
            self.close()
            return
        fate = self._proxy.fate(self._seen[number])
        self._seen[number] += 1
        self._take(number, data, fds, fate)
        self._flush(number)

    def _take(self, number: int, data: bytes, fds: list[int], fate: str | None) -> None:
        """Queue what becomes of a packet."""
        waiting, chance = self._waiting[number], self._proxy.chance
        match fate:
            case "close":
                _close_all(fds)
                self.close()
                return
            case "drop":
                _close_all(fds)
                return
            case "split":
                at = chance.randrange(1, len(data)) if len(data) > 1 else 1
                waiting.append((data[:at], fds))
                data, fds = data[at:], []
            case "duplicate":
                waiting.append((data, [os.dup(fd) for fd in fds]))
            case "swap":
                self._loop.call_later(0.005, self._flush, number)
                waiting.append((data, fds))
                waiting.rotate(1)
                return
            case "shuffle-descriptors":
                chance.shuffle(fds)
            case "drop-descriptors":
                _close_all(fds)
                fds = []
            case "damage":
                at = chance.randrange(len(data))
                data = data[:at] + bytes((chance.randrange(256),)) + data[at + 1 :]
            case "delay":
                if number not in self._held:
                    self._held.add(number)
                    delay_s = chance.random() * 0.02
                    self._loop.call_later(delay_s, partial(self._release, number))
        if data:
            waiting.append((data, fds))

    def _release(self, number: int) -> None:
        self._held.discard(number)
        self._flush(number)

    def _flush(self, number: int) -> None:
        other, waiting = self._ends[1 - number], self._waiting[number]
        while waiting and number not in self._held and other.fileno() >= 0:
            data, fds = waiting.popleft()
            try:
                socket.send_fds(other, [data], fds)
            except BlockingIOError:
                waiting.appendleft((data, fds))
                self._loop.call_later(0.002, self._flush, number)
                return
            except OSError:
                _close_all(fds)
                self.close()
                return
            _close_all(fds)


def _received(end: socket.socket) -> Packet:
    space = socket.CMSG_SPACE(MOST_FDS * array.array("i").itemsize)
    data, beside, _, _ = end.recvmsg(PACKET_BYTES, space)
    fds = array.array("i")
    for _, _, found in beside:
        fds.frombytes(found[: len(found) - len(found) % fds.itemsize])
    return data, list(fds)


def _close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


@asynccontextmanager
async def proxied(
    target: object,
    faults: Collection[str],
    seed: int,
    *,
    each: int = 8,
    spared: int = 1,
) -> AsyncIterator[tuple[str, Proxy]]:
    """Yield an address that leads to a driver's by a proxy."""
    path, loop = private_address(), asyncio.get_running_loop()
    proxy = Proxy(target, faults, seed, each, spared)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(socket_address(path))
        listener.listen()
        loop.add_reader(listener, proxy.accept, listener)
        try:
            yield path, proxy
        finally:
            loop.remove_reader(listener)
            proxy.close()
