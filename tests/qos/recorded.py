"""Work that records what happens to it."""

import asyncio
import threading
from collections.abc import Callable

from asyncnn.hal.types import ErrorStatus, Priority
from asyncnn.qos import Pause, Work


class Recorded(Work):
    """Work that records its life; `run` waits for ``gate`` if there is one."""

    def __init__(
        self,
        log: list[str],
        label: str = "work",
        *,
        gate: threading.Event | None = None,
        priority: Priority = Priority.MEDIUM,
        deadline_ns: int | None = None,
        body: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(priority, deadline_ns)
        self.log = log
        self.label = label
        self.gate = gate
        self.body = body
        self.started = threading.Event()
        self.finished = asyncio.Event()
        self.status: ErrorStatus | None = None
        self.thread: int | None = None
        self.stops = 0
        self.reports_early = label == "early"

    def advance(self, pause: Pause) -> bool:
        self.thread = threading.get_ident()
        self.started.set()
        if self.gate is not None:
            assert self.gate.wait(30)
        self.body()
        self.log.append(f"run {self.label}")
        return True

    def abort(self, status: ErrorStatus) -> None:
        self.status = status
        if self.gate is not None:
            self.gate.set()

    def run(self) -> int:
        self.thread = threading.get_ident()
        self.body()
        return 5000

    def finish(self) -> ErrorStatus:
        assert not self.finished.is_set(), "finished twice"
        self.log.append(f"finish {self.label}")
        self.finished.set()
        return self.status or ErrorStatus.NONE


class Endless(Recorded):
    """Work of many short operations, that stops when it is asked to.

    Ends when ``gate`` is set or when it is aborted.
    """

    def advance(self, pause: Pause) -> bool:
        assert self.gate is not None
        self.started.set()
        while not self.gate.wait(0.0001):
            if pause.requested:
                self.stops += 1
                return False
        return True


def endless(priority: Priority = Priority.LOW) -> Endless:
    return Endless([], gate=threading.Event(), priority=priority)
