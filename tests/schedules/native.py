"""Native lanes whose threads are those of a world."""

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from asyncnn.qos.native_lanes import ILanePort
from tests.schedules.world import Lock, World

if TYPE_CHECKING:
    from tests.schedules.pieces import Piece

PAUSED, DONE = 1, 0


class SteppingLane:
    """A thread that takes the steps of one piece of work after the other."""

    def __init__(self, world: World, port: "SteppingPort") -> None:
        self._world = world
        self._port = port
        self._given: list[tuple[Any, Piece]] = []
        self._wake = Lock()
        self._wake.acquire()
        self._is_closed = self.has_ended = False
        threading.Thread(target=self._serve, name="native").start()

    def give(self, token: Any, piece: "Piece") -> None:
        """Have it take the steps of a piece, and leave the token at the port."""
        self._given.append((token, piece))
        self._wake.release()

    def close(self) -> None:
        """End, once there is nothing to do."""
        if not self._is_closed:
            self._is_closed = True
            if not self._given:
                self._wake.release()

    def _serve(self) -> None:
        while not self._is_closed or self._given:
            self._wake.acquire()
            if self._given:
                token, piece = self._given[0]
                begun_ns = self._world.now_ns
                has_ended = piece.take_steps(piece.pause)
                del self._given[0]
                end_ns = self._world.now_ns
                outcome = DONE if has_ended else PAUSED
                self._port.leave(token, outcome, begun_ns, end_ns, end_ns - begun_ns)
        self.has_ended = True


class SteppingPort(ILanePort):
    """Where such lanes leave what has ended."""

    def __init__(self, world: World, fd: int) -> None:
        self._world = world
        self._fd = fd
        self._back: list[Any] = []

    def lane(self, name: str, nice: int = 0) -> SteppingLane:
        """Start a lane, if chance has it so."""
        if self._world.chance.random() < 0.05:
            raise OSError("there can be none, as chance has it")
        return SteppingLane(self._world, self)

    def leave(self, *end: Any) -> None:
        """Leave what has ended, and wake the loop."""
        self._back.append(end)
        os.eventfd_write(self._fd, 1)

    def drain(self, ended: list[Any], /) -> None:
        """Add what has come back."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        ended += self._back
        self._back = []
