"""What all handles of one fence share: its outcome and who waits for it.

Sources signal from any thread, and the garbage collector from within any statement of
any thread. So nothing here holds a lock while it works. Whoever waits enters himself
first and looks for an outcome second; whoever resolves sets the outcome first and looks
for entries second. Whatever the interleaving, one of the two sees the other.
"""

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import Enum
from typing import Any, Protocol, TypeAlias

import msgspec

from asyncnn.hal.errors import AsyncnnError, error_for
from asyncnn.hal.types import ErrorStatus


class FenceState(Enum):
    """What can be seen of a fence; UNKNOWN is that of a closed one."""

    ACTIVE = "active"
    SIGNALLED = "signalled"
    ERROR = "error"
    UNKNOWN = "unknown"


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The end of a fence; ``at_ns`` is of the steady clock, None if nobody noted it."""

    status: ErrorStatus
    reason: str
    at_ns: int | None

    @property
    def state(self) -> FenceState:
        """SIGNALLED or ERROR."""
        if self.status is ErrorStatus.NONE:
            return FenceState.SIGNALLED
        return FenceState.ERROR

    @property
    def error(self) -> AsyncnnError:
        """A new exception for an outcome that is not NONE."""
        return error_for(
            self.status, self.reason or f"fence failed: {self.status.name}"
        )


def outcome_now(status: ErrorStatus = ErrorStatus.NONE, reason: str = "") -> Outcome:
    """Return the outcome of a fence that ends at this moment."""
    return Outcome(status, reason, time.monotonic_ns())


Callback: TypeAlias = Callable[..., Any]


class Producer(Protocol):
    """What is going to end a fence, where another process has to be told of waiters."""

    def hand_over(self, write_end: int) -> None:
        """Take, own and pass on the descriptor that the end is to be written to.

        Called by whichever thread asks for the fence's descriptor, at most once.
        """
        ...


class Core(ABC):
    """The state of a fence, resolved once and for all.

    ``outcome`` is what is known without looking, `look` what can be known now.
    ``producer`` is what will end it, if that said so and has not done it yet.
    """

    __slots__ = (
        "__weakref__",
        "_callbacks",
        "_claim",
        "_threads",
        "_waiters",
        "outcome",
        "producer",
    )

    def __init__(self, producer: Producer | None = None) -> None:
        self.outcome: Outcome | None = None
        self.producer = producer
        self._claim = threading.Lock()
        self._waiters: dict[Future[None], Callback | None] = {}
        self._callbacks: dict[tuple[AbstractEventLoop, Callback], list[Future[None]]]
        self._callbacks = {}
        self._threads: dict[threading.Lock, None] = {}

    @abstractmethod
    def look(self) -> Outcome | None:
        """Return the outcome, or None if there is none yet."""

    @abstractmethod
    def fileno(self) -> int:
        """Return the descriptor to poll, which is the fence's own.

        :raises ResourceExhaustedTransientError: if descriptors have run out.
        """

    def resolve(self, outcome: Outcome) -> bool:
        """Settle on ``outcome`` and wake everyone; False if that was done before."""
        if not self._claim.acquire(False):
            return False
        self.outcome = outcome
        self.producer = None  # which may refer to this fence
        self._publish(outcome)
        if self._threads:
            for blocked in list(self._threads):
                blocked.release()
        if self._waiters:
            waiters = list(self._waiters)
            self._waiters.clear()
            self._callbacks.clear()
            _wake(waiters)
        return True

    def enter(
        self, loop: AbstractEventLoop, callback: Callback | None = None
    ) -> "Future[None]":
        """Return a future of the running ``loop`` that is done when the fence is.

        It must be given back with `leave`. `futures_of` finds it by ``callback``.
        """
        future = loop.create_future()
        self._waiters[future] = callback
        if callback is not None:
            self._callbacks.setdefault((loop, callback), []).append(future)
        if self.outcome is not None and not future.done():
            future.set_result(None)
        return future

    def leave(self, future: "Future[None]") -> None:
        """Forget a future that `enter` returned."""
        callback = self._waiters.pop(future, None)
        if callback is not None:
            key = future.get_loop(), callback
            others = [
                other for other in self._callbacks.pop(key, ()) if other != future
            ]
            if others:
                self._callbacks[key] = others

    def futures_of(
        self, loop: AbstractEventLoop, callback: Callback
    ) -> "list[Future[None]]":
        """Return the futures of the running ``loop`` that came with ``callback``."""
        return list(self._callbacks.get((loop, callback), ()))

    def block(self, timeout: float | None) -> None:
        """Block this thread until the fence is resolved, or ``timeout`` seconds."""
        signal = threading.Lock()
        signal.acquire()  # released by whoever resolves
        self._threads[signal] = None
        if self.outcome is None:
            signal.acquire(timeout=-1 if timeout is None else timeout)
        self._threads.pop(signal, None)

    def _publish(self, outcome: Outcome) -> None:  # noqa: B027 - most have no descriptor
        """Tell those who hold the descriptor."""


def _wake(futures: "Iterable[Future[None]]") -> None:
    by_loop: dict[AbstractEventLoop, list[Future[None]]] = {}
    for future in futures:
        by_loop.setdefault(future.get_loop(), []).append(future)
    here = running_loop()
    for loop, waiting in by_loop.items():
        if loop is here:
            _settle(waiting)
        else:
            with suppress(RuntimeError):  # a closed loop waits for nothing
                loop.call_soon_threadsafe(_settle, waiting)


def _settle(futures: "Iterable[Future[None]]") -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def running_loop() -> AbstractEventLoop | None:
    """Return the loop that runs in this thread, if any does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
