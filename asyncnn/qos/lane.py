"""A worker thread that runs ready work, one piece after the other."""

import logging
import threading
from collections.abc import Callable

from asyncnn.hal.types import ErrorStatus
from asyncnn.qos.ready import ReadyQueue
from asyncnn.qos.work import Work

logger = logging.getLogger(__name__)


class Lane:
    """Runs work from one queue in order of readiness, on a thread of its own.

    The thread starts with the first work. ``completed`` is called on it after each
    piece and must not block.
    """

    def __init__(self, name: str, completed: Callable[[Work], None]) -> None:
        self._name = name
        self._completed = completed
        self._ready = ReadyQueue()
        self._changed = threading.Condition(threading.Lock())
        self._running: Work | None = None
        self._is_closing = False
        self._thread: threading.Thread | None = None

    @property
    def pending(self) -> int:
        """Number of pieces of work that wait or run."""
        return len(self._ready) + (self._running is not None)

    def submit(self, work: Work) -> None:
        """Let ``work`` wait for its turn.

        :raises RuntimeError: if the lane is closed.
        """
        with self._changed:
            if self._is_closing:
                raise RuntimeError(f"lane {self._name} is closed")
            self._ready.push(work)
            if self._thread is None:
                self._thread = self._start()
            self._changed.notify()

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
        thread.start()
        return thread

    def withdraw(self, work: Work) -> bool:
        """Take ``work`` back if its turn has not come; False if it runs or has run."""
        with self._changed:
            return self._ready.discard(work)

    def close(self, status: ErrorStatus) -> list[Work]:
        """Take no more work, abort what runs; return the work that never began."""
        with self._changed:
            self._is_closing = True
            waiting: list[Work] = []
            while (work := self._ready.pop()) is not None:
                waiting.append(work)
            if self._running is not None:
                self._running.abort(status)
            self._changed.notify()
        return waiting

    def join(self) -> None:
        """Wait until the thread of a closed lane has ended. Blocks."""
        if self._thread is not None:
            self._thread.join()

    def _take(self) -> Work | None:
        with self._changed:
            self._running = None
            while True:
                work = self._ready.pop()
                if work is not None:
                    self._running = work
                    return work
                if self._is_closing:
                    return None
                self._changed.wait()

    def _serve(self) -> None:
        while (work := self._take()) is not None:
            try:
                work.run()
            except BaseException:
                logger.exception("work failed on lane %s", self._name)
                work.abort(ErrorStatus.GENERAL_FAILURE)
            self._completed(work)
            del work
