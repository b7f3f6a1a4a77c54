"""What all handles of one fence share: its outcome and who waits for it.

Sources signal from any thread, and the garbage collector from within any statement of
any thread, so nothing here holds a lock while it works. A waiter registers before it
checks the outcome, and `Core.resolve` sets the outcome before it looks for waiters: in
any interleaving at least one of the two sees the other.
"""

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop, Future
from asyncio import _get_running_loop as running_loop
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, Protocol, TypeAlias

import msgspec

from asyncnn.deadlines import late_for_fences
from asyncnn.hal.errors import AsyncnnError, error_for, waited_in_vain
from asyncnn.hal.interfaces import ISyncFence
from asyncnn.hal.types import ErrorStatus
from asyncnn.tracing import Layer, Phase, active


class FenceState(Enum):
    """What can be seen of a fence; UNKNOWN is a closed one's state."""

    ACTIVE = "active"
    SIGNALLED = "signalled"
    ERROR = "error"
    UNKNOWN = "unknown"


class FenceOutcome(msgspec.Struct, frozen=True, gc=False):
    """How a fence ended; ``at_ns`` is of the steady clock, None if not known."""

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


def outcome_now(
    status: ErrorStatus = ErrorStatus.NONE, reason: str = ""
) -> FenceOutcome:
    """Return the outcome of a fence that ends at this moment."""
    return FenceOutcome(status, reason, time.monotonic_ns())


Callback: TypeAlias = Callable[..., Any]


class Producer(Protocol):
    """What will end a fence.

    One that ``is_remote`` does so in another process, which must learn of foreign
    waiters. For any other, this process writes to the pipe.
    """

    @property
    def is_remote(self) -> bool:
        """Whether `hand_over` is to be called."""
        ...

    def tell(self, callback: "Callable[[Any], object]") -> bool:
        """Have ``callback`` called inside the call that ends the fence; False if not.

        That is on the running loop; what cannot do so leaves it to the fence.
        """
        ...

    def hand_over(self, write_end: int) -> None:
        """Own and pass on the write end of the pipe that the outcome is written to.

        Called at most once, by the thread that asks for the fence's descriptor.
        """
        ...


class IWaitable(Protocol):
    """A fence, or what ends one; see `asyncnn.hal.interfaces.ISyncFence`."""

    @property
    def status(self) -> ErrorStatus | None:
        """How it ended; None while it has not."""

    @property
    def reason(self) -> str:
        """Why it failed; empty otherwise."""

    def duplicate(self) -> ISyncFence:
        """Return another fence that is done when this one is, closed by itself."""


class Core(ABC):
    """The state of a fence, which is resolved once and for all.

    ``outcome`` is what is known already; `look` finds out what can be known now.
    ``producer`` is what will end the fence, if it has one and is active.
    """

    __slots__ = (
        "__weakref__",
        "_blocked_threads",
        "_callbacks",
        "_resolving",
        "_waiters",
        "outcome",
        "producer",
    )

    def __init__(self, producer: Producer | None = None) -> None:
        self.outcome: FenceOutcome | None = None
        self.producer = producer
        self._resolving = threading.Lock()
        self._waiters: dict[Future[None], Callback | None] = {}
        self._callbacks: dict[tuple[AbstractEventLoop, Callback], list[Future[None]]]
        self._callbacks = {}
        self._blocked_threads: dict[threading.Lock, None] = {}

    @abstractmethod
    def look(self) -> FenceOutcome | None:
        """Return the outcome, or None if there is none yet."""

    @abstractmethod
    def fileno(self) -> int:
        """Return the descriptor to poll, which is the fence's own.

        :raises ResourceExhaustedTransientError: if descriptors have run out.
        """

    def resolve(self, outcome: FenceOutcome) -> bool:
        """Settle on ``outcome`` and wake all waiters; False if that was done before."""
        # Never released: of all that resolve, the first wins and none waits.
        if not self._resolving.acquire(False):
            return False
        self.outcome = outcome
        self.producer = None  # it may refer to this fence: break the cycle
        self._publish(outcome)
        if self._blocked_threads:
            for blocked in list(self._blocked_threads):
                blocked.release()
        if self._waiters:
            waiters = list(self._waiters)
            self._waiters.clear()
            self._callbacks.clear()
            _wake(waiters)
        return True

    def add_waiter(
        self, loop: AbstractEventLoop, callback: Callback | None = None
    ) -> "Future[None]":
        """Return a future of the running ``loop`` that is done when the fence is.

        It must be given to `remove_waiter`. `waiters_of` finds it by ``callback``.
        """
        future = loop.create_future()
        self._waiters[future] = callback
        if callback is not None:
            self._callbacks.setdefault((loop, callback), []).append(future)
        # Checked after registering: `resolve` may have looked for waiters in between.
        if self.outcome is not None and not future.done():
            future.set_result(None)
        return future

    def remove_waiter(self, future: "Future[None]") -> None:
        """Forget a future that `add_waiter` returned."""
        callback = self._waiters.pop(future, None)
        if callback is not None:
            key = future.get_loop(), callback
            others = [
                other for other in self._callbacks.pop(key, ()) if other != future
            ]
            if others:
                self._callbacks[key] = others

    def waiters_of(
        self, loop: AbstractEventLoop, callback: Callback
    ) -> "list[Future[None]]":
        """Return the futures of the running ``loop`` that came with ``callback``."""
        return list(self._callbacks.get((loop, callback), ()))

    def block(self, timeout: float | None) -> None:
        """Block this thread until the fence is resolved, or ``timeout`` seconds."""
        signal = threading.Lock()
        signal.acquire()  # `resolve` releases it
        # Registered before it looks, as a waiter: `resolve` may come in between.
        self._blocked_threads[signal] = None
        if self.outcome is None:
            signal.acquire(timeout=-1 if timeout is None else timeout)
        self._blocked_threads.pop(signal, None)

    def _publish(self, outcome: FenceOutcome) -> None:  # noqa: B027 - most have no descriptor
        """Notify the holders of the fence's descriptor."""


def _wake(futures: "Iterable[Future[None]]") -> None:
    by_loop: dict[AbstractEventLoop, list[Future[None]]] = {}
    for future in futures:
        by_loop.setdefault(future.get_loop(), []).append(future)
    here = running_loop()
    for loop, waiting in by_loop.items():
        if loop is here:
            _settle(waiting)
        else:
            with suppress(RuntimeError):  # a closed loop has no waiters
                loop.call_soon_threadsafe(_settle, waiting)


def _settle(futures: "Iterable[Future[None]]") -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


class Gate:
    """What an execution waits for: fences, others, and its deadline, if it has one.

    ``opened`` is called on the running loop, inside the call that ends the last of
    them, with the error if one of them has failed. Until `close` it is also called with
    the status of a deadline that has passed.
    """

    __slots__ = ("_begun_ns", "_left", "_opened", "_timer", "_watched")

    def __init__(
        self,
        sources: Sequence[IWaitable],
        deadline_ns: int | None,
        opened: Callable[[AsyncnnError | None], object],
    ) -> None:
        self._begun_ns = time.monotonic_ns()
        self._left = len(sources)
        self._opened: Callable[[AsyncnnError | None], object] | None = opened
        self._watched: list[ISyncFence] = []
        self._timer: asyncio.TimerHandle | None = None
        if deadline_ns is not None:
            self._watch(deadline_ns, self._begun_ns)
        for source in sources:
            producer: Producer | None = getattr(source, "producer", None)
            if producer is not None and producer.tell(self._source_ended):
                continue
            own = source.duplicate()  # the caller may close the fence
            self._watched.append(own)
            own.add_done_callback(self._source_ended)

    def _source_ended(self, source: IWaitable) -> None:
        opened = self._opened
        if opened is None or not self._left:
            return
        if source.status:
            failure = waited_in_vain(source.reason or source.status.name)
            self.close()
            opened(failure)
            return
        self._left -= 1
        if not self._left:
            self._unwatch()
            if active.recorder is not None:
                active.recorder.add(
                    "wait-fence",
                    Layer.DRIVER,
                    Phase.EXECUTION,
                    self._begun_ns,
                    time.monotonic_ns(),
                    active.recorder.new_group(),
                )
            opened(None)

    def close(self) -> None:
        """Wait no more, and call nobody."""
        self._opened = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._unwatch()

    def _unwatch(self) -> None:
        for fence in self._watched:
            fence.remove_done_callback(self._source_ended)
            fence.close()
        self._watched.clear()

    def _watch(self, deadline_ns: int, now_ns: int) -> None:
        loop, delay = asyncio.get_running_loop(), (deadline_ns - now_ns) / 1e9
        self._timer = loop.call_later(delay, self._expire, deadline_ns)

    def _expire(self, deadline_ns: int) -> None:
        opened, now_ns = self._opened, time.monotonic_ns()
        if opened is None:
            return
        if now_ns < deadline_ns:  # timers of uvloop may be a millisecond early
            self._watch(deadline_ns, now_ns)
            return
        self.close()
        opened(late_for_fences(deadline_ns, self._begun_ns))
