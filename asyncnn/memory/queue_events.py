"""What wakes the consumer of a frame queue: a semaphore, and the end of the producer.

A producer is who holds the lock for it, as the writer of a pipe is who holds its end:
the kernel takes the lock away however that process ends. The process ID beside it is
a hint: its descriptor wakes the loop when that process ends. It says nothing of a
process of another PID namespace, nor of one that drops the lock and lives on. So the
lock is looked at each second while somebody waits.
"""

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

from asyncnn.memory.descriptors import Descriptor
from asyncnn.memory.frame_layout import PRODUCER_PID, PRODUCERS, read_word
from asyncnn.memory.posix_memory import PRODUCER, Semaphore, is_locked
from asyncnn.offload import start_thread

_POST_AGAIN_S = 0.05


class SemaphoreWaiter:
    """Waits for a semaphore, once each time that it is asked to.

    ``woken`` is called on the event loop that this is made on. To end it is to close
    the semaphore.

    :raises ResourceExhaustedTransientError: if no thread can be started.
    """

    def __init__(self, semaphore: Semaphore, woken: Callable[[], None]) -> None:
        self._semaphore = semaphore
        self._woken = woken
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._is_waiting = False
        self._orders: SimpleQueue[tuple[float | None] | None] = SimpleQueue()
        self._thread = threading.Thread(
            target=self._run, name="asyncnn-frames", daemon=True
        )
        start_thread(self._thread)

    def wait(self, timeout: float | None) -> None:
        """Have ``woken`` called once the semaphore was posted, or after so long.

        Nothing if that is so already.
        """
        if not self._is_waiting:
            self._is_waiting = True
            self._orders.put((timeout,))

    async def end(self) -> None:
        """End the thread, also where this is cancelled meanwhile."""
        self._orders.put(None)
        cancelled: asyncio.CancelledError | None = None
        while not self._ended.done():
            # Again and again: whoever has the semaphore may take what is posted.
            self._semaphore.post()
            try:
                await asyncio.wait([self._ended], timeout=_POST_AGAIN_S)
            except asyncio.CancelledError as error:
                cancelled = error
        self._thread.join()
        self._semaphore.close()
        if cancelled is not None:
            raise cancelled

    def _run(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            while (order := self._orders.get()) is not None:
                self._semaphore.take(*order)
                self._loop.call_soon_threadsafe(self._report)
            self._loop.call_soon_threadsafe(self._ended.set_result, None)

    def _report(self) -> None:
        self._is_waiting = False
        self._woken()


_LOOK_AGAIN_S = 1.0
_PIDS = range(1, 2**31)


class ProducerWatch:
    """Reports each producer's end once; calls ``woken`` when one may have died."""

    def __init__(self, fd: Descriptor, woken: Callable[[], None]) -> None:
        self._fd = fd
        self._woken = woken
        self._loop = asyncio.get_running_loop()
        self._reported = 0
        self._current = (0, 0)
        self._watched: int | None = None

    def ended(self) -> bool:
        """Return whether the producer has ended since this was last `acknowledged`.

        :raises OSError: if the memory cannot be read.
        """
        # A producer writes its ID before it counts itself.
        producers = read_word(self._fd.fd, PRODUCERS)
        pid = read_word(self._fd.fd, PRODUCER_PID)
        if (pid, producers) != self._current:
            self.close()
            self._current = (pid, producers)
            if producers != self._reported and pid in _PIDS:
                self._watch(pid)
        if producers == self._reported:
            return False
        return not (pid and is_locked(self._fd.fd, PRODUCER))

    def acknowledged(self) -> int:
        """Have the end reported; return the process ID of one that has died, else 0."""
        pid, self._reported = self._current
        self.close()
        return pid

    @property
    def look_again_s(self) -> float | None:
        """After how many seconds to look again; None while there is no producer."""
        return _LOOK_AGAIN_S if self._current[1] != self._reported else None

    def close(self) -> None:
        """Watch no process any more."""
        watched, self._watched = self._watched, None
        if watched is not None:
            self._loop.remove_reader(watched)
            os.close(watched)

    def _watch(self, pid: int) -> None:
        try:
            watched = os.pidfd_open(pid)
        except (AttributeError, OSError):  # no such process here; Linux before 5.3
            return
        self._watched = watched
        self._loop.add_reader(watched, self._gone)

    def _gone(self) -> None:
        self.close()
        self._woken()
