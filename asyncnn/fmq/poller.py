"""What one event loop does for all queues whose packets are served by callbacks.

A served queue is cold, hot or paused. The reader of a cold one is announced as asleep,
and its doorbell is a file descriptor that the loop watches: it costs nothing. A hot one
is looked at in slices of 50 us, each followed by an ordinary turn of the loop, until
nothing has come for as long as its window lasts. A paused one is left alone. So one
thread, the loop's, spins for all queues, and only while packets come.

Windows follow what happens: a gap between two packets that a longer window would have
bridged widens it, up to 5 ms, and each window that passes in vain is halved. What comes
less often than every 5 ms is not waited for: a camera costs a wake-up a frame.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol
from weakref import WeakKeyDictionary

from asyncnn.fmq.layout import QueueBusyError
from asyncnn.fmq.spin import MANY_LOOKS, AdaptiveSpinner, clock, yield_core
from asyncnn.interpreter_hooks import disown_in_children
from asyncnn.pacing import TakeTurn
from asyncnn.turn import TURN_NS

SPIN_SLICE_NS = 50_000
"""Nanoseconds for which hot queues keep the loop from its other work."""

RECHECK_S = 0.005
"""Seconds that pass once or twice before a sleeper looks again."""

MAX_WINDOW_NS = 5_000_000
"""Nanoseconds that a queue stays hot without a packet, at most."""

_MIN_WINDOW_NS = 100_000
_NEVER = -(1 << 62)


class Readable(Protocol):
    """The reading end of a queue, as the poller needs it.

    ``served`` is set while it is served; closing the queue stops that.
    """

    served: "Served | None"

    @property
    def is_local(self) -> bool:
        """Whether this process writes as well, so that spinning only delays it."""

    def is_readable(self, looks: int = 1) -> bool:
        """Return whether a packet waits, looking ``looks`` times at most."""

    def arm_wakeup(self, wake: Callable[[], None]) -> bool:
        """Have ``wake`` called once the writer rings; False if a packet waits."""

    def disarm_wakeup(self) -> None:
        """Have ``wake`` called no more."""


class Served:
    """A queue that is served by a callback, until `stop`.

    ``on_ready`` is called by the loop soon after a packet has come, and again while one
    is there. An exception in it, or that the queue cannot be listened to, ends the
    serving; ``on_failed`` is called with it, or by default the loop's handler.
    Beside others, it waits until ``take_turn`` lets it.
    """

    def __init__(
        self,
        poller: "LoopPoller",
        queue: Readable,
        on_ready: Callable[[], object],
        on_failed: Callable[[BaseException], object] | None = None,
        take_turn: TakeTurn | None = None,
    ) -> None:
        self._poller = poller
        self.queue = queue
        self.on_ready = on_ready
        self.on_failed = on_failed or _report
        self.take_turn = take_turn
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
            # They may refer back to this: break the cycle.
            self.on_ready, self.on_failed = _ignore, _report
            self._poller.remove(self)

    def fail(
        self, error: BaseException, on_failed: Callable[[BaseException], object]
    ) -> None:
        """Call back no more, and report ``error`` to ``on_failed``.

        The caller read that beforehand: a queue that breaks stops itself, which resets
        it.
        """
        self.stop()
        try:
            on_failed(error)
        except Exception as another:  # the other queues are served on
            _report(another)

    def disown(self) -> None:
        """Call back no more, in a forked child."""
        self.is_paused = self.is_stopped = True
        self.on_ready, self.on_failed = _ignore, _report

    def woken(self) -> None:
        """Note that the doorbell was rung, perhaps for nothing."""
        self._poller.woken(self)

    def learn(self) -> None:
        """Widen the window if that would have bridged the gap before this packet."""
        gap = clock() - self.idle_since_ns
        if gap <= MAX_WINDOW_NS and not self.queue.is_local:
            wanted = min(MAX_WINDOW_NS, max(_MIN_WINDOW_NS, 2 * gap))
            self.window_ns = max(self.window_ns, wanted)

    def has_cooled(self, now_ns: int) -> bool:
        """Return whether nothing came within the window, and learn from it."""
        if now_ns - self.idle_since_ns < self.window_ns:
            return False
        self.window_ns //= 2
        if self.window_ns < _MIN_WINDOW_NS:
            self.window_ns = 0
        return True


class LoopPoller:
    """Serves queues on one event loop, the one that runs when it is called.

    ``served`` lists them.
    """

    def __init__(self) -> None:
        self.served: list[Served] = []
        self._hot: list[Served] = []
        self._spinner = AdaptiveSpinner()
        self._is_scheduled = False
        # Whether yields since the latest packet were fast: then no need to ask again.
        self._is_yielding = False
        self.turn_ends_ns = 0
        self._is_serving = False
        self._armed_lately: set[Callable[[], None]] = set()
        self._asleep: set[Callable[[], None]] = set()
        self._is_rechecking = False

    def disown(self) -> None:
        """Forget all queues in a forked child: the parent serves them."""
        for served in self.served:
            served.disown()
        self.served.clear()
        self._hot.clear()
        self._asleep.clear()
        self._armed_lately.clear()

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
            disown_in_children(poller)
            return poller

    def serve(
        self,
        queue: Readable,
        on_ready: Callable[[], object],
        on_failed: Callable[[BaseException], object] | None = None,
        take_turn: TakeTurn | None = None,
    ) -> Served:
        """Have ``on_ready`` called whenever there is something to read.

        No task may wait at this end then. ``on_failed`` is called with an error that
        ends the serving. Where more than one queue is served, each packet has to
        ``take_turn``.

        :raises QueueBusyError: if it is served already.
        """
        if queue.served is not None:
            raise QueueBusyError("this end of the queue is served already")
        served = queue.served = Served(self, queue, on_ready, on_failed, take_turn)
        self.served.append(served)
        self.heat(served)
        return served

    def serve_ready(self) -> None:
        """Serve what is there now, for a task that spins on this loop's thread.

        Without it the task could spin for a packet that its own loop has to answer.
        Does nothing within a callback of this poller.
        """
        if self._is_serving:
            return
        for served in tuple(self.served):
            if not served.is_paused and served.queue.is_readable():
                served.queue.disarm_wakeup()
                self._handle(served)
                if not served.is_paused:
                    self.heat(served)

    def recheck_later(self, look: Callable[[], None]) -> None:
        """Have ``look`` called once, some milliseconds from now.

        For sleepers, in case a wake-up is lost; one timer serves all of them.
        """
        self._armed_lately.add(look)
        if not self._is_rechecking:
            self._is_rechecking = True
            asyncio.get_running_loop().call_later(RECHECK_S, self._recheck)

    def must_yield(self) -> bool:
        """Return whether other tasks of this loop have waited for `TURN_NS`.

        Asked before each packet that may be there already, once ``turn_ends_ns`` has
        passed. `yielded_to_loop` has the next turn begin.
        """
        if self.turn_ends_ns:
            return True
        self.turn_ends_ns = clock() + TURN_NS
        asyncio.get_running_loop().call_soon(self.yielded_to_loop)
        return False

    def yielded_to_loop(self) -> None:
        """Note that every task that was ready has run."""
        self.turn_ends_ns = 0

    def heat(self, served: Served) -> None:
        """Spin for a queue, which is not asleep, from the next turn of the loop on."""
        if served not in self._hot:
            self._hot.append(served)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def forget(self, served: Served) -> None:
        """Neither spin for a queue nor listen for its doorbell."""
        served.queue.disarm_wakeup()
        if served in self._hot:
            self._hot.remove(served)

    def remove(self, served: Served) -> None:
        """Drop a queue after `forget`."""
        served.queue.served = None
        self.served.remove(served)

    def _run(self) -> None:
        try:
            self._spin_slice()
        finally:  # whatever a callback raised, the other queues are served on
            self._is_scheduled = bool(self._hot)
            if self._is_scheduled:
                asyncio.get_running_loop().call_soon(self._run)

    def _spin_slice(self) -> None:
        spinner = self._spinner
        end = clock() + SPIN_SLICE_NS
        cools = True  # at the first and the last look: windows are longer than a slice
        while self._hot:
            came = self._look(spinner.looks)
            now = clock()
            is_over = now > end
            if came:
                self._is_yielding = False
            elif cools or is_over:
                cools = False
                self._cool([served for served in self._hot if served.has_cooled(now)])
            if is_over:
                break
            if self._hot and not came:
                self._yield_core(now)

    def _look(self, most: int = MANY_LOOKS) -> bool:
        """Look at the hot queues a few times each; return whether one was served."""
        hot = self._hot
        looks = most // len(hot) or 1
        came = False
        for served in hot:
            queue = served.queue
            if queue.is_readable(1 if queue.is_local else looks):
                self._handle(served)
                came = True
        if came and self._is_yielding:
            self._spinner.hits += 1
        return came

    def _yield_core(self, now: int) -> None:
        """Yield the core; cool all queues if that takes long, or did so lately."""
        if not (self._is_yielding or self._spinner.may_yield()):
            if not self._spinner.spin_without_yielding(self._look):
                self._cool(list(self._hot))
            return
        yield_core()
        took_ns = clock() - now
        self._is_yielding = self._spinner.yielded(took_ns)
        if self._is_yielding:
            return
        if self._look(1):
            self._spinner.note_late(took_ns)
        else:
            self._cool(list(self._hot))

    def _cool(self, hot: list[Served]) -> None:
        for served in hot:
            if served in self._hot:  # the failure of another may have stopped it
                self._hot.remove(served)
                self._sleep(served)

    def _sleep(self, served: Served) -> None:
        on_failed = served.on_failed
        try:
            is_asleep = served.queue.arm_wakeup(served.woken)
        except Exception as error:  # neither hot nor asleep, it would never be served
            served.fail(error, on_failed)
            return
        if not is_asleep:  # a packet came between the last look and the announcement
            self.heat(served)

    def woken(self, served: Served) -> None:
        """Serve a cold queue whose doorbell was rung, perhaps for nothing."""
        served.queue.disarm_wakeup()
        if served.queue.is_readable():
            served.learn()
            self._handle(served)
            if served.is_paused:
                return
            if served.window_ns:
                if served not in self._hot:  # its own callback may have resumed it
                    self._hot.append(served)
                if not self._is_scheduled:
                    self._is_scheduled = True
                    self._run()
                return
        self._sleep(served)

    def _handle(self, served: Served) -> None:
        take = served.take_turn
        if (
            take is None
            or len(self.served) == 1
            or take(partial(self._proceed, served))
        ):
            self._call_back(served)
        else:
            served.pause()

    def _proceed(self, served: Served) -> bool:
        served.resume()
        if served.is_stopped or not served.queue.is_readable():
            return False
        self._call_back(served)
        return True

    def _call_back(self, served: Served) -> None:
        self._is_serving = True
        on_failed = served.on_failed
        try:
            served.on_ready()
            served.idle_since_ns = clock()
        except (Exception, asyncio.CancelledError) as error:
            served.fail(error, on_failed)
        finally:
            self._is_serving = False

    def _recheck(self) -> None:
        # Two generations: each sleeper sleeps for one whole period before it looks.
        looks = self._asleep
        self._asleep, self._armed_lately = self._armed_lately, set()
        self._is_rechecking = bool(self._asleep)
        if self._is_rechecking:
            asyncio.get_running_loop().call_later(RECHECK_S, self._recheck)
        for look in looks:
            look()


_POLLERS: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopPoller] = WeakKeyDictionary()


def _report(error: BaseException) -> None:
    asyncio.get_running_loop().call_exception_handler(
        {"message": "serving a queue failed", "exception": error}
    )


def _ignore() -> None:
    """Stand in for a callback that is called no more."""
