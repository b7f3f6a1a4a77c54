"""The producer of a frame queue, in Python: a program that needs no event loop.

It maps nothing: the queue's owner could cut the memory short as well.
"""

import os
import time
from contextlib import ExitStack, suppress
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from asyncnn import hal
from asyncnn.interpreter_hooks import disown_in_children, forked_error
from asyncnn.memory.descriptors import Descriptor
from asyncnn.memory.frame_layout import (
    CLOSED,
    FILLED,
    FREE,
    PRODUCER_PID,
    PRODUCERS,
    TAKEN,
    FrameLayout,
    read_word,
    write_word,
)
from asyncnn.memory.pages import os_errors, write_all
from asyncnn.memory.posix_memory import (
    OWNER,
    PRODUCER,
    Semaphore,
    is_locked,
    lock,
    open_object,
    posix_name,
)

_LOOK_AGAIN_S = 0.5


class FrameWriter:
    """Writes frames into the `FrameQueue` of another process of this user.

    Its methods block, and are called by one thread at a time. ``shape`` and ``dtype``
    are what its owner takes. It ends with its ``with`` block; then another producer may
    go on.

    :raises InvalidArgumentError: if there cannot be such a name.
    :raises GeneralFailureError: if there is no such queue.
    :raises BusyError: if it has a producer.
    :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
    """

    def __init__(self, name: str) -> None:
        self.name = posix_name(name)
        fd = open_object(self.name)
        self._layout = layout = FrameLayout.read(fd.fd, self.name)
        self.shape, self.dtype = layout.shape, layout.dtype
        self._is_forked = False
        with os_errors(self.name), ExitStack() as undo:
            if not is_locked(fd.fd, OWNER):
                raise hal.GeneralFailureError(f"the owner of {self.name} has gone")
            if not lock(fd.fd, PRODUCER):
                raise hal.BusyError(f"{self.name} has a producer")
            self._filled = Semaphore.open(self.name + FILLED)
            undo.callback(self._filled.close)
            self._free = Semaphore.open(self.name + FREE)
            undo.callback(self._free.close)
            self._number = _following(fd.fd, layout)
            # In this order: an ID of 0 means that a producer has ended.
            write_word(fd.fd, PRODUCER_PID, os.getpid())
            write_word(fd.fd, PRODUCERS, read_word(fd.fd, PRODUCERS) + 1)
            undo.pop_all()
        self._fd: Descriptor | None = fd
        self._filled.post()
        disown_in_children(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, frame: NDArray[Any], *, timeout: float | None = None) -> None:
        """Copy a frame into the queue; wait for a place of it first.

        :param timeout: seconds to wait at most; by default as long as it takes.
        :raises InvalidArgumentError: if it has not the queue's shape and dtype.
        :raises MissedDeadlineError: if there is no place in time.
        :raises DeviceUnavailableError: if the owner has closed the queue or died.
        :raises DeviceClosedError: if this is closed.
        :raises ForkedError: in a fork of the process that has made this.
        """
        fd, layout, number = self._open_fd(), self._layout, self._number
        array = np.asarray(frame)
        if array.shape != layout.shape or array.dtype != layout.dtype:
            raise hal.InvalidArgumentError(
                f"{array.dtype} {list(array.shape)} is no frame of {self.name}: its "
                f"frames are {layout.dtype} {list(layout.shape)}"
            )
        place = layout.place_of(number)
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        with os_errors(self.name):
            self._wait_for(fd, place, timeout)
            write_all(fd, data, layout.offset_of(place))
            write_word(fd, layout.written_at(place), number)
        self._number += 1
        self._filled.post()

    def close(self) -> None:
        """Notify the owner that no frame follows, and leave the queue to another."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        with suppress(OSError):
            write_word(fd.fd, PRODUCER_PID, 0)
        self._filled.post()
        self._filled.close()
        self._free.close()

    def disown(self) -> None:
        """Leave the queue to the process that this one was forked from.

        The child closes its copy of the descriptor, or it would be a producer, too.
        """
        self._fd = None
        self._is_forked = True

    def _open_fd(self) -> int:
        if self._is_forked:
            raise forked_error(f"the producer of {self.name}")
        if self._fd is None:
            raise hal.DeviceClosedError(f"this producer of {self.name} is closed")
        return self._fd.fd

    def _wait_for(self, fd: int, place: int, timeout: float | None) -> None:
        ends = None if timeout is None else time.monotonic() + timeout
        at = self._layout.free_at(place)
        wait_s = 0.0
        while True:
            if read_word(fd, CLOSED) or not is_locked(fd, OWNER):
                raise hal.DeviceUnavailableError(f"nobody takes frames of {self.name}")
            is_free = read_word(fd, at) == self._number
            # Taken for a place that is free, too: else the count would ever rise.
            self._free.take(0 if is_free else wait_s)
            if is_free:
                return
            wait_s = _LOOK_AGAIN_S
            if ends is not None:
                wait_s = min(wait_s, ends - time.monotonic())
                if wait_s <= 0:
                    raise hal.MissedDeadlineTransientError(
                        f"{self.name} has had no place for {timeout} s"
                    )


def _following(fd: int, layout: FrameLayout) -> int:
    """Return the number after the last complete frame; its place may be half written.

    What earlier producers have left in other numbers does not count.
    """
    first = read_word(fd, TAKEN) + 1
    for number in range(first, first + layout.places):
        if read_word(fd, layout.written_at(layout.place_of(number))) != number:
            return number
    return first + layout.places
