"""Fences that are signalled within this process."""

import os
import threading

from asyncnn.fences.core import Core, Producer
from asyncnn.fences.outcome import Outcome
from asyncnn.fences.pipe import WriteEnd, open_pipe
from asyncnn.memory.copying import Descriptor

_opening = threading.RLock()
os.register_at_fork(
    before=_opening.acquire,
    after_in_parent=_opening.release,
    after_in_child=_opening.release,
)


class LocalCore(Core):
    """A fence whose pipe is opened when its descriptor is asked for.

    A producer then takes the write end. Without one the outcome is written from here.
    ``write_end`` is that of a pipe which somebody else has opened.
    """

    __slots__ = ("_read_end", "_write_end")

    def __init__(
        self,
        producer: Producer | None = None,
        write_end: WriteEnd | None = None,
    ) -> None:
        super().__init__(producer)
        self._read_end: Descriptor | None = None
        self._write_end = write_end

    def look(self) -> Outcome | None:
        """Return the outcome, which is known here first."""
        return self.outcome

    def fileno(self) -> int:
        """Return the read end of the pipe."""
        with _opening:
            if self._read_end is not None:
                return self._read_end.fd
            fd, writer = open_pipe()
            self._read_end = Descriptor(fd)
        self._place(writer)
        return fd

    def _place(self, writer: int) -> None:
        producer = self.producer
        if producer is not None:
            producer.hand_over(writer)
            return
        self._write_end = WriteEnd(writer)
        if self.outcome is not None:
            self._write_end.write(self.outcome)

    def _publish(self, outcome: Outcome) -> None:
        if self._write_end is not None:
            self._write_end.write(outcome)
