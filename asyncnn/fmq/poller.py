"""What one event loop does for all queues whose packets are served by callbacks.

A served queue is cold, hot or paused. The reader of a cold one is announced as asleep,
and its bell is a file descriptor that the loop watches: it costs nothing. A hot one is
looked at in slices of 50 us, each followed by an ordinary turn of the loop, until
nothing has come for as long as its window lasts. A paused one is left alone. So one
thread, that of the loop, spins for all queues, and only while somebody makes use of it.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol
from weakref import WeakKeyDictionary

from asyncnn.fmq.layout import QueueBusyError
from asyncnn.fmq.spin import MANY_LOOKS, Patience, clock, give_way
from asyncnn.interpreter import own

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


SLICE_NS = 50_000
"""Nanoseconds for which the loop is kept from its other work while a queue is hot."""

TURN_NS = 100_000
"""Nanoseconds of packets that came without waiting before other tasks get a turn."""

RECHECK_S = 0.005
"""Seconds that pass once or twice before a sleeper looks again."""


class LoopPoller:
    """Serves queues on one event loop, the one that runs when it is called.

    ``served`` lists them.
    """

    def __init__(self) -> None:
        self.served: list[Served] = []
        self._hot: list[Served] = []
        self._patience = Patience()
        self._has_turn = False
        self._gives_way = False  # since the latest packet
        self._has_turned = True
        self._turned_ns = 0
        self._is_serving = False
        self._lain_down: set[Callable[[], None]] = set()
        self._asleep: set[Callable[[], None]] = set()
        self._looks_again = False

    def disown(self) -> None:
        """Forget all queues: in a forked child they are the parent's to serve."""
        for served in self.served:
            served.disown()
        self.served.clear()
        self._hot.clear()
        self._asleep.clear()
        self._lain_down.clear()

    @staticmethod
    def running() -> "LoopPoller":
        """Return the poller of the running loop.

        :raises RuntimeError: if no loop runs.
        """
        loop = asyncio.get_running_loop()
        try:
            return _POLLERS[loop]
        except KeyError:
            poller = _POLLERS[loop] = LoopPoller()
            own(poller)
            return poller

    def serve(
        self,
        queue: Readable,
        on_ready: Callable[[], object],
        on_failed: Callable[[BaseException], object] | None = None,
    ) -> Served:
        """Have ``on_ready`` called whenever there is something to read.

        Nobody else may wait at this end then. ``on_failed`` learns if that ends for a
        reason other than `Served.stop`.

        :raises QueueBusyError: if it is served already.
        """
        if queue.served is not None:
            raise QueueBusyError("this end of the queue is served already")
        served = queue.served = Served(self, queue, on_ready, on_failed)
        self.served.append(served)
        self.heat(served)
        return served

    def serve_ready(self) -> None:
        """Serve what is there at the moment, for one who spins on this loop's thread.

        Does nothing within a callback of this poller.
        """
        if self._is_serving:
            return
        for served in tuple(self.served):
            if not served.is_paused and served.queue.is_readable():
                self._handle(served)
                if not served.is_paused:
                    self.heat(served)

    def look_later(self, look: Callable[[], None]) -> None:
        """Have ``look`` called once, some milliseconds from now."""
        self._lain_down.add(look)
        if not self._looks_again:
            self._looks_again = True
            asyncio.get_running_loop().call_later(RECHECK_S, self._look_again)

    def owes_turn(self) -> bool:
        """Tell whether other tasks of this loop have waited for long.

        Ask before each packet that may be there already; `turned` when they had one.
        """
        if self._has_turned:
            self._has_turned = False
            self._turned_ns = clock()
            asyncio.get_running_loop().call_soon(self.turned)
            return False
        return clock() - self._turned_ns > TURN_NS

    def turned(self) -> None:
        """Note that every task that was ready has had its turn."""
        self._has_turned = True

    def heat(self, served: Served) -> None:
        """Look at a queue from the next turn of the loop on."""
        served.queue.stay_awake()
        if served not in self._hot:
            self._hot.append(served)
        if not self._has_turn:
            self._has_turn = True
            asyncio.get_running_loop().call_soon(self._take_turn)

    def forget(self, served: Served) -> None:
        """Look at a queue no more, and do not listen for its bell."""
        served.queue.stay_awake()
        if served in self._hot:
            self._hot.remove(served)

    def remove(self, served: Served) -> None:
        """Drop a queue that was forgotten."""
        served.queue.served = None
        self.served.remove(served)

    def _take_turn(self) -> None:
        try:
            self._spend_slice()
        finally:  # whatever a callback has raised, the others are served on
            self._has_turn = bool(self._hot)
            if self._has_turn:
                asyncio.get_running_loop().call_soon(self._take_turn)

    def _spend_slice(self) -> None:
        patience = self._patience
        end = clock() + SLICE_NS
        cools = True  # early and late: windows are longer than a turn
        while self._hot:
            came = self._look(patience.looks)
            now = clock()
            is_over = now > end
            if came:
                self._gives_way = False
            elif cools or is_over:
                cools = False
                self._cool([served for served in self._hot if served.has_cooled(now)])
            if is_over:
                break
            if self._hot and not came:
                self._give_way(now)

    def _look(self, most: int = MANY_LOOKS) -> bool:
        """Look at the hot queues a few times; tell whether one was served."""
        hot = self._hot
        looks = most // len(hot) or 1
        came = False
        for served in hot:
            queue = served.queue
            if queue.is_readable(1 if queue.is_local else looks):
                self._handle(served)
                came = True
        if came and self._gives_way:
            self._patience.paid()
        return came

    def _give_way(self, now: int) -> None:
        """Let others use this core; sleep if they take their time, or did so lately."""
        if not (self._gives_way or self._patience.may_give_way()):
            if not self._patience.stare(self._look):
                self._cool(list(self._hot))
            return
        give_way()
        took_ns = clock() - now
        self._gives_way = self._patience.gave_way(took_ns)
        if self._gives_way:
            return
        if self._look(1):
            self._patience.cost(took_ns)
        else:
            self._cool(list(self._hot))

    def _cool(self, hot: list[Served]) -> None:
        for served in hot:
            if served in self._hot:  # one that fails may have had it stopped
                self._hot.remove(served)
                self._sleep(served)

    def _sleep(self, served: Served) -> None:
        on_failed = served.on_failed
        try:
            is_asleep = served.queue.sleep_until_readable(served.woken)
        except Exception as error:  # neither hot nor asleep it would be forgotten
            served.fail(error, on_failed)
            return
        if not is_asleep:
            self.heat(served)

    def woken(self, served: Served) -> None:
        """Serve a cold queue whose bell has rung, perhaps for nothing."""
        served.queue.stay_awake()
        if served.queue.is_readable():
            served.learn()
            self._handle(served)
            if served.is_paused:
                return
            if served.window_ns:
                if served not in self._hot:  # its callback may have resumed it
                    self._hot.append(served)
                if not self._has_turn:
                    self._has_turn = True
                    self._take_turn()
                return
        self._sleep(served)

    def _handle(self, served: Served) -> None:
        self._is_serving = True
        on_failed = served.on_failed
        try:
            served.on_ready()
            served.idle_since_ns = clock()
        except (Exception, asyncio.CancelledError) as error:
            served.fail(error, on_failed)
        finally:
            self._is_serving = False

    def _look_again(self) -> None:
        looks = self._asleep
        self._asleep, self._lain_down = self._lain_down, set()
        self._looks_again = bool(self._asleep)
        if self._looks_again:
            asyncio.get_running_loop().call_later(RECHECK_S, self._look_again)
        for look in looks:
            look()


_POLLERS: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopPoller] = WeakKeyDictionary()
