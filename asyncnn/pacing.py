"""Long work that makes way: in steps that may be left, or by resting beside executions.

A generator of steps yields wherever it may be left for a while. Its driver decides at
each step whether to go on, and may do so on another thread, or never. What has no such
steps looks at a `Pause` at its boundaries.

Threads of one interpreter share it evenly, and an execution of many short operations
asks for it anew after each of them: beside a thread that never rests, each operation
waits for as long as the interpreter lets that thread go on. So long work rests while
there are executions, for several times as long as it has just worked, and all such work
together takes no more than a fixed share. Without executions it does not rest. Long
work says where it may be left by `make_way`, which does nothing on threads that have
not said that they are for long work: an event loop never rests.
"""

import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeAlias, TypeVar
from weakref import WeakSet

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""Yields between two steps and returns the result."""

CALLS_PER_CHECK = 64
"""Calls between two readings of the clock."""

YIELD_AFTER_NS = 3_000_000
"""Nanoseconds of short calls after which others get a turn."""

_YIELD_S = 1e-6
"""The system makes some 50 us of it: about what it takes to wake a thread."""

TakeTurn: TypeAlias = Callable[[Callable[[], bool]], bool]
"""Says whether something may be read now.

If not, what it is given is called in a later turn of the loop, and says whether it has
read something.
"""


class Pause:
    """Asks work to stop at its next boundary, or at the first from ``from_ns`` on.

    ``interrupt`` brings that about where work computes without looking here.
    ``lanes_each`` is how many lanes there are for each piece of work that runs, 0 if
    unknown; the work says how many ``threads`` it has made of that.
    """

    interrupt: Callable[[], None] | None = None
    requested = False
    from_ns: int | None = None
    lanes_each = 0
    threads = 1

    def request(self) -> None:
        """Ask for it; from any thread."""
        self.requested = True
        # Behind the request, which work looks at after it has set this.
        interrupt = self.interrupt
        if interrupt is not None:
            interrupt()


class TimedPause(Pause):
    """Asks work to stop at its next boundary from some time on, or earlier."""

    from_ns: int

    def __init__(self, from_ns: int) -> None:
        self.from_ns = from_ns

    @property
    def requested(self) -> bool:
        """Whether to stop; costs a look at the clock."""
        return time.monotonic_ns() >= self.from_ns

    @requested.setter
    def requested(self, value: bool) -> None:
        self.from_ns = 0 if value else self.from_ns


class ThreadYielder:
    """Pauses a thread every few milliseconds that it spends on many short calls.

    A thread that computes gives up the interpreter when another has waited for a switch
    interval in vain. But short operations of NumPy release it for a microsecond or two
    of their own accord, BLAS on small matrices above all. Each time the thread that
    waits is woken, finds it taken again, and waits anew, so that the interval never
    ends: event loops were seen to stand still for 100 ms. So a series of short
    operations pauses now and then for long enough to be relieved. Longer calls need no
    pause.
    """

    __slots__ = ("_calls", "_since_ns")

    def __init__(self) -> None:
        self._calls = 0
        self._since_ns = time.monotonic_ns()

    def count(self, calls: int) -> None:
        """Note that so many calls were made; pause if others are due."""
        self._calls += calls
        if self._calls < CALLS_PER_CHECK:
            return
        self._calls = 0
        if time.monotonic_ns() - self._since_ns >= YIELD_AFTER_NS:
            time.sleep(_YIELD_S)
            self._since_ns = time.monotonic_ns()


def completed(steps: Steps[T]) -> T:
    """Take all steps; return the result."""
    stepwise = Stepwise(steps)
    stepwise.advance(lambda: False)
    return stepwise.result


class Stepwise(Generic[T]):
    """Steps that are taken up where they were left.

    Dropping this closes them.
    """

    def __init__(self, steps: Steps[T]) -> None:
        self._results: list[T] = []
        # Nothing of it refers to this: it goes with this, and no collector has to come.
        self._steps = _keeping(self._results, steps)

    @property
    def has_ended(self) -> bool:
        """Whether there is a result."""
        return bool(self._results)

    @property
    def result(self) -> T:
        """What the steps have returned; it is there at the end."""
        return self._results[0]

    def advance(self, must_stop: Callable[[], bool]) -> bool:
        """Take steps until ``must_stop`` says so after one; True at the end of all.

        What a step raises is their end, too.
        """
        return not any(must_stop() for _ in self._steps)

    def close(self) -> None:
        """Go on no more, and let go of what the steps hold."""
        self._steps.close()


def _keeping(results: list[T], steps: Steps[T]) -> Steps[None]:
    results.append((yield from steps))


SLICE_S = 0.0005
"""How long work goes on between two rests."""

REST = 4.0
"""How many times as long it rests: it has a fifth of a processor's time."""

LINGER_S = 0.02
"""How long executions count after their end: more of them may be about to come."""

PROMPT_S = 0.005
"""What work that an execution waits for takes before it rests beside itself, too.

So the event loop that brought the execution is not kept waiting for long.
"""

_LOOK_S = 0.002
"""Between two looks, while work rests, whether there still are executions."""


class Busy(Protocol):
    """What long work makes way for."""

    @property
    def is_busy(self) -> bool:
        """Whether there is something to do at the moment; asked from any thread."""


def _never() -> bool:
    return False


class _Slice(threading.local):
    """What a thread has done since it rested; of threads for long work only."""

    def __init__(self) -> None:
        self.is_long_work = False
        self.must_stop: Callable[[], bool] = _never
        self.began_s = 0.0
        self.used_s = 0.0
        self.prompt_until_s = 0.0  # of what it has used


class Pace:
    """Lets threads that do long work rest; they share one share of the time.

    ``clock`` gives the time, ``used`` how long this thread has had a processor, both in
    seconds, and ``sleep`` waits. Thread-safe.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._used = used
        self._sleep = sleep
        self._slice = _Slice()
        self._lock = threading.Lock()
        self._watched: WeakSet[Busy] = WeakSet()
        self._awaited: WeakSet[Busy] = WeakSet()
        self._busy_until_s = float("-inf")
        self._free_s = float("-inf")

    def watch(self, executions: Busy, *, are_awaited: bool = False) -> None:
        """Have long work make way for ``executions``, for as long as they exist.

        They may be what executions wait for, itself long work, which does not make way
        for itself while it is short.
        """
        with self._lock:
            (self._awaited if are_awaited else self._watched).add(executions)

    @contextmanager
    def long_work(
        self, must_stop: Callable[[], bool] = _never, *, is_awaited: bool = False
    ) -> Iterator[None]:
        """Let the thread rest where the block, or what it calls, says `make_way`.

        A rest ends early when ``must_stop`` says so: to be stopped, and to show that it
        is not stuck, work has to come to its next boundary. What an execution waits for
        rests beside others alone until it has taken `PROMPT_S`.
        """
        mine = self._slice
        before = mine.is_long_work, mine.must_stop, mine.prompt_until_s
        mine.is_long_work, mine.must_stop = True, must_stop
        mine.prompt_until_s = self._used() + PROMPT_S if is_awaited else 0.0
        if not mine.began_s:
            mine.began_s, mine.used_s = self._clock(), self._used()
        try:
            yield
        finally:
            mine.is_long_work, mine.must_stop, mine.prompt_until_s = before

    def make_way(self) -> None:
        """Rest if it is time to, beside executions."""
        mine = self._slice
        if not mine.is_long_work or self._clock() - mine.began_s < SLICE_S:
            return
        if self._has_executions():
            self._rest(self._used() - mine.used_s, mine.must_stop)
        mine.began_s, mine.used_s = self._clock(), self._used()

    def renew(self) -> None:
        """Begin anew in a forked child, whose parent's threads may hold the lock."""
        self._lock = threading.Lock()
        self._watched, self._awaited = WeakSet(), WeakSet()

    def _has_executions(self) -> bool:
        now_s = self._clock()
        with self._lock:
            is_busy = any(each.is_busy for each in self._watched)
            if is_busy or any(each.is_busy for each in self._awaited):
                self._busy_until_s = now_s + LINGER_S
            until_s = self._slice.prompt_until_s
            is_prompt = until_s > 0 and self._used() < until_s
            return is_busy if is_prompt else now_s < self._busy_until_s

    def _rest(self, worked_s: float, must_stop: Callable[[], bool]) -> None:
        """Wait for a slice's turn: the slices of all threads follow one another."""
        with self._lock:
            from_s = max(self._clock() + worked_s * REST, self._free_s)
            self._free_s = from_s + worked_s * (1 + REST)
        while (left_s := from_s - self._clock()) > 0 and self._has_executions():
            if must_stop():  # what is left counts for the next rest
                return
            self._sleep(min(left_s, _LOOK_S))


_pace = Pace()
os.register_at_fork(after_in_child=_pace.renew)

watch = _pace.watch
long_work = _pace.long_work
make_way = _pace.make_way


def take_apart(pieces: list[list[object]]) -> None:
    """Empty the lists, one object after the other.

    Other threads may get the interpreter between any two, so that freeing a million
    objects stops nobody; dropping all of them at once would.
    """
    while pieces:
        items = pieces.pop()
        while items:
            items.pop()
            make_way()
