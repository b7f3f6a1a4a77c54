"""Frames that another program writes into shared memory, awaited one by one.

The semaphores only wake: whether a place is free or filled is said by the numbers of
frames beside it, each of which has one writer (`asyncnn.memory.frame_layout`). So
nothing depends on a count that a process could take away with it when it is killed. A
place that a dead producer had begun to write is the one that the next producer begins
with.

A POSIX semaphore has no descriptor that an event loop could watch. A thread waits for
it, when a consumer waits and there is no frame; while there are frames it has nothing
to do. An eventfd would need no thread, but a program in C would have to be handed one
by a socket, and then the queue would have no need of a name.
"""

import asyncio
import os
import threading
from collections import deque
from contextlib import AsyncExitStack, ExitStack, suppress
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from asyncnn import hal
from asyncnn.interpreter_hooks import disown_in_children, forked_error
from asyncnn.memory.frame_layout import (
    CLOSED,
    FILLED,
    FREE,
    TAKEN,
    CopiedFrames,
    FrameLayout,
    MappedFrames,
    read_word,
    write_word,
)
from asyncnn.memory.pages import os_errors
from asyncnn.memory.posix_memory import OwnedObject, Semaphore, open_object, own_name
from asyncnn.memory.queue_events import ProducerWatch, SemaphoreWaiter
from asyncnn.offload import offload
from asyncnn.turn import require_loop

LARGE_BYTES = 2**20
"""Frames from here on are copied on a thread, which takes the loop as long to start."""


class FrameQueue:
    """A queue of frames in the shared memory ``/asyncnn-UID-NAME``.

    Another program of this user writes frames into it: one in Python by `FrameWriter`,
    one in C as `examples/producer` shows. Inside an ``async with`` block, ``async for``
    takes them in order, as arrays that a run uses without copying them. It ends once
    the producer has ended in order; another ``async for`` takes the next one's.

    A frame is a copy in memory of this process. Frames of a ``trusted`` producer
    are the places of the queue themselves, read-only, and each is free again when the
    last array over it has gone: as one is looked at, another is written. A producer can
    then change a frame that it has handed over; one that cuts the memory short ends
    this process, whereas for a copy that is an error.

    The semaphores are memory of both in any case. A producer that means harm can end
    this process by them: let it send frames through a socket.

    The names go with the block. If this process is killed, the next owner of the name
    removes what is left.

    :raises InvalidArgumentError: if there cannot be such a name, array or number of
        places: 2 to 1024.
    """

    def __init__(
        self,
        name: str,
        shape: int | tuple[int, ...],
        dtype: DTypeLike = np.float32,
        *,
        places: int = 4,
        trusted: bool = False,
    ) -> None:
        self.name = own_name(name)
        self._layout = FrameLayout.of(shape, dtype, places)
        self._trusted = trusted
        self._taken = 0
        self._is_open = self._is_closed = self._is_forked = False
        self._changed = asyncio.Event()
        # What takers that were cancelled, or for want of memory say failed, have left:
        # copies, and frames of which there is none yet.
        self._kept: deque[NDArray[Any]] = deque()
        self._missed: deque[int] = deque()
        self._returned: deque[int] = deque()
        self._lock = threading.Lock()

    async def __aenter__(self) -> Self:
        """Make the queue, which producers can open from now on.

        :raises GeneralFailureError: if the name is taken.
        :raises ResourceExhaustedTransientError: if memory, descriptors or threads have
            run out.
        :raises WrongLoopError: if no event loop of asyncio runs here.
        """
        require_loop()
        if self._is_open or self._is_closed:
            raise hal.InvalidArgumentError(f"the frame queue {self.name} is used once")
        layout = self._layout
        with ExitStack() as undo:
            # Its pages take the system some time.
            self._object = await offload(
                OwnedObject, self.name, layout.size, (FILLED, FREE)
            )
            undo.callback(self._object.close)
            # Another one than the lock's, as frames may live on.
            self._fd = open_object(self.name)
            self._filled = Semaphore.make(self.name + FILLED, 0)
            undo.callback(self._filled.close)
            self._free = Semaphore.make(self.name + FREE, layout.places)
            undo.callback(self._free.close)
            with os_errors(self.name):
                layout.write(self._fd.fd)
            kind = MappedFrames if self._trusted else CopiedFrames
            self._frames: CopiedFrames | MappedFrames = kind(
                self._fd, layout, self._give_back
            )
            self._producer = ProducerWatch(self._fd, self._changed.set)
            self._waiter = SemaphoreWaiter(self._filled, self._changed.set)
            undo.pop_all()
        self._is_open = True
        disown_in_children(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> NDArray[Any]:
        """Return the next frame; neither cancelling nor a shortage loses one.

        Of several takers that wait, one hears of a producer's end.

        :raises StopAsyncIteration: once a producer has ended and its frames are taken.
        :raises GeneralFailureError: if it has died, likewise, or the memory was cut
            short.
        :raises DeviceClosedError: if the queue is closed, or is closed meanwhile.
        :raises ForkedError: in a fork of the process that has opened it.
        :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
        """
        while True:
            self._check_open()
            frame = await self._take()
            if frame is not None:
                return frame
            with os_errors(self.name):
                has_ended = self._producer.ended()
            if has_ended:
                # It may have written until then.
                frame = await self._take()
                if frame is not None:
                    return frame
                died = self._producer.acknowledged()
                if not died:
                    raise StopAsyncIteration
                raise hal.GeneralFailureError(
                    f"the producer of {self.name}, process {died}, has died "
                    "or let go of it"
                )
            await self._wait()

    async def aclose(self) -> None:
        """Close the queue; frames that are held can still be used.

        A producer that waits is woken. Takers that wait fail with `DeviceClosedError`.
        """
        with self._lock:
            if not self._is_open:
                return
            self._is_open = False
            self._is_closed = True
        async with AsyncExitStack() as parts:  # from the last one to the first
            parts.push_async_callback(self._waiter.end)
            parts.callback(self._changed.set)
            parts.callback(self._producer.close)
            parts.callback(self._object.close)
            parts.callback(self._free.close)
            parts.callback(self._free.post)
            with suppress(OSError):
                write_word(self._fd.fd, CLOSED, 1)
            del self._object, self._producer, self._frames, self._fd

    def disown(self) -> None:
        """Leave the queue to the process that this one was forked from."""
        self._is_open = False
        self._is_forked = True

    def _check_open(self) -> None:
        if self._is_forked:
            raise forked_error(f"the frame queue {self.name}")
        if not self._is_open:
            raise hal.DeviceClosedError(f"the frame queue {self.name} is not open")

    async def _take(self) -> NDArray[Any] | None:
        if self._kept:
            return self._kept.popleft()
        number = self._missed.popleft() if self._missed else self._next_number()
        if not number:
            return None
        # A thread keeps what it was to do for a while, and may outlive this queue.
        frames = [self._frames]
        made: list[NDArray[Any]] = []
        try:
            if self._trusted or self._layout.frame_bytes < LARGE_BYTES:
                return self._frames.frame(number)
            await offload(lambda: made.append(frames.pop().frame(number)))
        except BaseException:
            self._kept.extend(made)
            self._missed.extend([] if made else [number])
            self._changed.set()
            raise
        return made.pop()

    def _next_number(self) -> int:
        """Take the number of the next frame if it is complete, else 0."""
        number, fd = self._taken + 1, self._fd.fd
        place = self._layout.place_of(number)
        with os_errors(self.name):
            if read_word(fd, self._layout.written_at(place)) != number:
                return 0
            write_word(fd, TAKEN, number)
        self._taken = number
        # It has been posted for; else the count would rise with each frame.
        self._filled.take(0)
        return number

    async def _wait(self) -> None:
        """Wait until there may be something new."""
        with os_errors(self.name):
            if os.fstat(self._fd.fd).st_size < self._layout.size:
                raise hal.GeneralFailureError(f"the memory {self.name} was cut short")
        self._waiter.wait(self._producer.look_again_s)
        self._changed.clear()
        await self._changed.wait()

    def _give_back(self, number: int) -> None:
        """Notify the producer that a place is free, on any thread.

        The garbage collector may end a frame in the midst of any statement. So this
        waits for no lock: who has it works off what has come meanwhile.
        """
        self._returned.append(number)
        while self._returned and self._lock.acquire(blocking=False):
            try:
                self._take_back()
            finally:
                self._lock.release()

    def _take_back(self) -> None:
        layout = self._layout
        while self._returned:
            number = self._returned.popleft()
            if not self._is_open:
                continue
            at = layout.free_at(layout.place_of(number))
            # Of memory that has run out or was cut short, takers are notified.
            with suppress(OSError):
                write_word(self._fd.fd, at, number + layout.places)
            self._free.post()
