"""A queue that is served by a callback, and how long it is worth spinning for.

Windows follow what happens: a gap between two packets that a longer window would have
bridged widens it, up to 5 ms, and each window that passes in vain is halved. What comes
less often than every 5 ms is not waited for: a camera costs a wake-up a frame.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from asyncnn.fmq.spin import clock

if TYPE_CHECKING:
    from asyncnn.fmq.poller import LoopPoller

MAX_WINDOW_NS = 5_000_000
"""Nanoseconds that a queue stays hot without a packet, at most."""

_MIN_WINDOW_NS = 100_000
_NEVER = -(1 << 62)


class Readable(Protocol):
    """What is served: the reading end of a queue.

    ``served`` says how, if it is; closing the queue stops that.
    """

    served: "Served | None"

    @property
    def is_local(self) -> bool:
        """Whether this process writes as well, so that nothing comes of spinning."""
        ...

    def is_readable(self, looks: int = 1) -> bool:
        """Tell whether a packet waits, after so many looks at most."""
        ...

    def sleep_until_readable(self, wake: Callable[[], None]) -> bool:
        """Have ``wake`` called once the writer rings; False if a packet waits."""
        ...

    def stay_awake(self) -> None:
        """Have no ``wake`` called any more."""
        ...


class Served:
    """A queue that is served by a callback, until `stop`.

    ``on_ready`` is called by the loop soon after a packet has come, and again while one
    is there. An exception in it, or that the queue cannot be listened to, ends the
    serving; ``on_failed`` is called with it, or by default the loop's handler.
    """

    def __init__(
        self,
        poller: "LoopPoller",
        queue: Readable,
        on_ready: Callable[[], object],
        on_failed: Callable[[BaseException], object] | None = None,
    ) -> None:
        self._poller = poller
        self.queue = queue
        self.on_ready = on_ready
        self.on_failed = on_failed or _report
        self.is_paused = False
        self.is_stopped = False
        self.window_ns = 0
        self.idle_since_ns = _NEVER

    def pause(self) -> None:
        """Call back no more for now; costs nothing while it lasts."""
        if not self.is_paused:
            self.is_paused = True
            self._poller.forget(self)

    def resume(self) -> None:
        """Call back again, from the next turn of the loop on."""
        if self.is_paused and not self.is_stopped:
            self.is_paused = False
            self.idle_since_ns = clock()
            self._poller.heat(self)

    def stop(self) -> None:
        """Call back no more. The queue stays open."""
        if not self.is_stopped:
            self.pause()
            self.is_stopped = True
            # Whoever is called back may hold this.
            self.on_ready, self.on_failed = _nobody, _report
            self._poller.remove(self)

    def fail(
        self, error: BaseException, on_failed: Callable[[BaseException], object]
    ) -> None:
        """Call back no more, and tell whoever wanted the queue served.

        That is ``on_failed`` as it was before: a queue that breaks stops by itself.
        """
        self.stop()
        try:
            on_failed(error)
        except Exception as another:  # the other queues are served on
            _report(another)

    def disown(self) -> None:
        """Call back no more, in a forked child."""
        self.is_paused = self.is_stopped = True
        self.on_ready, self.on_failed = _nobody, _report

    def woken(self) -> None:
        """Note that the bell has rung, perhaps for nothing."""
        self._poller.woken(self)

    def learn(self) -> None:
        """Widen the window if that would have bridged the gap before this packet."""
        gap = clock() - self.idle_since_ns
        if gap <= MAX_WINDOW_NS and not self.queue.is_local:
            wanted = min(MAX_WINDOW_NS, max(_MIN_WINDOW_NS, 2 * gap))
            self.window_ns = max(self.window_ns, wanted)

    def has_cooled(self, now_ns: int) -> bool:
        """Tell whether nothing came within the window, and learn from it."""
        if now_ns - self.idle_since_ns < self.window_ns:
            return False
        self.window_ns //= 2
        if self.window_ns < _MIN_WINDOW_NS:
            self.window_ns = 0
        return True


def _report(error: BaseException) -> None:
    asyncio.get_running_loop().call_exception_handler(
        {"message": "serving a queue failed", "exception": error}
    )


def _nobody() -> None:
    """Stand in for who is called back no more."""
