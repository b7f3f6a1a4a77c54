"""A driver that is fuzzed: connections that check nothing, and whether it is well."""

import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

import numpy as np

from asyncnn.hal.types import DataLocation, ErrorStatus, RequestArgument
from asyncnn.memory.handles import FIXED_CONTENTS, FIXED_SIZE, seal
from asyncnn.service import wire
from asyncnn.service.decoding import decode_to_client
from asyncnn.service.process import socket_address
from asyncnn.tools.bench.made_models import tiny_addition
from asyncnn.tools.watched_processes import descriptors_of

ANSWER_S = 5.0
"""Within which a driver has to answer."""

_MOST_SPARE = 6
"""Descriptors and threads that a driver may have more than when it began."""

_MOST_PACKET = 20_000
_STATUSES = frozenset(int(status) for status in ErrorStatus)

Answered: TypeAlias = tuple[type[Any], int]
"""A kind of answer, and the number of what it answers."""


class DriverError(Exception):
    """A driver has died, does not answer, or does not do as it should."""


class BarePeer:
    """A connection to a driver that checks nothing that it sends."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(ANSWER_S)
        self._socket.connect(socket_address(path))
        self.awaited: set[Answered] = set()
        self.status = 0  # of the last answer that has one
        self.is_over = False
        self.send(wire.Hello(wire.PROTOCOL_VERSION))
        self._awaiting(lambda message: isinstance(message, wire.Welcome))

    def send(self, message: wire.ToDriver, fds: Sequence[int] = ()) -> None:
        """Send a message; a large one goes in a file."""
        data = b"\0" + wire.encode(message)
        with ExitStack() as stack:
            given = [*fds]
            if len(data) > _MOST_PACKET:
                file = os.memfd_create("fuzz", os.MFD_ALLOW_SEALING)
                stack.callback(os.close, file)
                os.write(file, data[1:])
                seal(file, FIXED_CONTENTS)
                given.insert(0, file)
                data = b"\1" + (len(data) - 1).to_bytes(8, "little")
            try:
                if given:
                    self._socket.send(b"\2" + bytes((len(given),)))
                socket.send_fds(self._socket, [data], given)
            except ConnectionError:
                self.is_over = True
            except TimeoutError as error:
                raise DriverError("a driver that takes no more messages") from error

    def ask(
        self, message: wire.ToDriver, answer: Answered, fds: Sequence[int] = ()
    ) -> None:
        """Send a message that has an answer."""
        self.awaited.add(answer)
        self.send(message, fds)

    def await_all(self) -> None:
        """Wait for all answers.

        :raises DriverError: if one does not come, or the driver hangs up.
        """
        if self.awaited:
            self._awaiting(lambda _: not self.awaited)
        if self.is_over:
            raise DriverError("a driver that hung up on a client that broke no rule")

    def take(self) -> None:
        """Take the answers that are there."""
        while select.select([self._socket], [], [], 0)[0] and not self.is_over:
            self._note(self._received())

    def _awaiting(self, until: Callable[[Any], bool]) -> None:
        limit = time.monotonic() + ANSWER_S
        while not self.is_over:
            left = limit - time.monotonic()
            if left < 0 or not select.select([self._socket], [], [], left)[0]:
                missing = sorted((kind.__name__, n) for kind, n in self.awaited)[:3]
                raise DriverError(f"a driver that does not answer {missing}")
            message = self._received()
            self._note(message)
            if until(message):
                return

    def _received(self) -> Any:
        try:
            packet, fds, _, _ = socket.recv_fds(self._socket, 1 << 17, 8)
        except ConnectionError:
            packet, fds = b"", []
        try:
            if not packet:
                self.is_over = True
                return None
            if packet[:1] == b"\2":
                return None
            data = os.pread(fds[0], 1 << 26, 0) if packet[:1] == b"\1" else packet[1:]
            return decode_to_client(data)
        finally:
            for fd in fds:
                os.close(fd)

    def _note(self, message: Any) -> None:
        if message is None:
            return
        self.status = getattr(message, "status", 0)
        if self.status not in _STATUSES:
            raise DriverError(f"status {self.status} of no HAL")
        if isinstance(message, wire.FencedDone):
            for end in message.ends:
                self.awaited.discard((wire.FencedDone, end.execution))
            return
        number = next(iter(message.__struct_fields__), "")
        self.awaited.discard((type(message), getattr(message, number, 0)))

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


class Neighbour:
    """An honest client, which is to get right results however others behave.

    Of a device that does not add, it gets answers.
    """

    def __init__(self, path: str) -> None:
        self._peer = BarePeer(path)
        self._number = 0
        self._file = file = os.memfd_create("fuzz", os.MFD_ALLOW_SEALING)
        os.truncate(file, 48)
        seal(file, FIXED_SIZE)
        info = wire.PoolInfo(1, "ashmem", 48, (), 1)
        self._peer.send(wire.AnnouncePools((info,)), [file])
        message = wire.PrepareModel(1, tiny_addition().model, (), 1, 1, None)
        self._peer.ask(message, (wire.Prepared, 1))
        self._peer.await_all()
        self._adds = True
        self.check()

    def check(self) -> None:
        """Have the driver compute a sum.

        :raises DriverError: if it is wrong, or does not come.
        """
        self._number += 1
        x = np.arange(8, dtype=np.float32) + self._number % 100
        os.pwrite(self._file, x.tobytes() + bytes(16), 0)
        places = [RequestArgument(False, DataLocation(0, at, 16)) for at in (0, 16, 32)]
        inputs, outputs = tuple(places[:2]), tuple(places[2:])
        order = wire.Execute(self._number, 1, inputs, outputs, (1,), 0, None, None)
        self._peer.ask(order, (wire.Executed, self._number))
        self._peer.await_all()
        if self._number == 1:
            self._adds = not self._peer.status
        found = np.frombuffer(os.pread(self._file, 16, 32), np.float32)
        if self._adds and not np.array_equal(found, x[:4] + x[4:]):
            raise DriverError("a neighbour has got a wrong result")

    def close(self) -> None:
        """Hang up."""
        self._peer.close()
        os.close(self._file)


def held_by(pid: int) -> int:
    """Return how many descriptors and threads a process has."""
    return len(descriptors_of(pid)) + len(os.listdir(f"/proc/{pid}/task"))


def check_held(pid: int, base: int) -> None:
    """Wait until a process holds about as much as at first.

    :raises DriverError: if it does not in time.
    """
    limit = time.monotonic() + ANSWER_S
    while (held := held_by(pid)) > base + _MOST_SPARE:
        if time.monotonic() > limit:
            raise DriverError(f"a driver that holds {held - base} more than at first")
        time.sleep(0.02)
