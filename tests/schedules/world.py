"""One schedule: a clock, threads and an event loop that chance alone moves.

A `World` has a seed. Its time passes when its threads say so, or when there is nothing
else to do; of its threads, one runs at a time, the loop's or another, and chance says
which goes on wherever one takes a lock, spends time, or the loop looks for events. What
has come by then is seen in any order, or later: bytes of sockets, eventfds and timers.
What was asked of the loop by `call_soon` is called in order, as asyncio promises it.

The process is given to this alone: `install` puts its clock, locks and threads in the
place of the real ones in all modules of asyncnn, which must not be imported before.
"""

import asyncio
import random
import selectors
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

_real_start = threading.Thread.start
_real_ns, _real_sleep = time.monotonic_ns, time.sleep

MOST_TURNS = 30_000
_LOOK_NS = 60
"""What a look at the clock takes, so that what spins comes to an end."""


class StuckError(Exception):
    """Nothing is ever going to happen, or too much."""


class Strand:
    """A thread of a world; it runs only while the world lets it ``go``."""

    def __init__(self, thread: threading.Thread) -> None:
        self.thread = thread
        self.go = threading.Lock()
        self.go.acquire()
        self.waits_for: Lock | None = None
        self.has_ended = False


class World:
    """What one seed brings about; ``chance`` decides all, ``now_ns`` is its time."""

    current: "World | None" = None

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.now_ns = 10**12
        self.turns = 0
        self.strands: list[Strand] = []
        self.running: Strand | None = None
        self._back = threading.Lock()
        self._back.acquire()
        self._switches = self.chance.choice((0.02, 0.1, 0.3))
        self._late = self.chance.choice((0.0, 0.2, 0.5))
        self._stalls = self.chance.choice((0.0, 0.0, 0.05))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make it the current one inside the block."""
        World.current = self
        try:
            yield
        finally:
            World.current = None

    def look(self) -> int:
        """Return the time, which passes meanwhile; another thread may go on."""
        self.now_ns += _LOOK_NS
        self.switch()
        return self.now_ns

    def spend(self, ns: int) -> None:
        """Let time pass, and others go on where it is not the loop's thread."""
        self.now_ns += ns
        if self.running is not None:
            self._pause()

    def start(self, thread: threading.Thread) -> None:
        """Do what `threading.Thread.start` does, for a thread that waits to be let."""
        strand, run = Strand(thread), thread.run

        def live() -> None:
            strand.go.acquire()
            try:
                run()
            finally:
                strand.has_ended = True
                self.strands.remove(strand)
                self._back.release()

        thread.run = live  # type: ignore[method-assign]
        self.strands.append(strand)
        _real_start(thread)

    def switch(self) -> None:
        """Let another thread go on, if chance has it so."""
        if self.chance.random() < self._switches:
            if self.running is not None:
                self._pause()
            else:
                self.let_one()

    def let_one(self) -> bool:
        """Let a thread go on until it pauses or ends; False if none can."""
        able = [
            strand
            for strand in self.strands
            if strand.waits_for is None or not strand.waits_for.locked()
        ]
        if not able:
            return False
        self.running = strand = self.chance.choice(able)
        strand.go.release()
        self._back.acquire()
        self.running = None
        if strand.has_ended:
            strand.thread.join()
        return True

    def wait_for(self, lock: "Lock") -> None:
        """Let others go on, as this thread cannot."""
        strand = self.running
        if strand is None:
            if not self.let_one():
                raise StuckError("the loop waits for a lock that nobody gives back")
            return
        strand.waits_for = lock
        self._pause()
        strand.waits_for = None

    def _pause(self) -> None:
        strand = self.running
        assert strand is not None
        self._back.release()
        strand.go.acquire()

    def events(
        self, ready: Callable[[], list[Any]], timeout: float | None
    ) -> list[Any]:
        """Return what the loop sees of what is ``ready``, after so many seconds."""
        self.turns += 1
        if self.turns > MOST_TURNS:
            raise StuckError(f"{MOST_TURNS} turns of the loop have come to no end")
        for _ in range(self.chance.choice((0, 0, 1, 1, 2))):
            self.let_one()
        if self.chance.random() < self._stalls:
            self.now_ns += round(self.chance.expovariate(1 / 3e6))
        found = ready()
        if not found and (timeout is None or timeout > 0):
            if self.let_one():
                found = ready()
            elif timeout is None:
                raise StuckError("nothing is going to happen any more")
            else:
                self.now_ns += round(timeout * 1e9) + 1000
        found.sort(key=lambda event: event[0].fd)
        self.chance.shuffle(found)
        return [e for e in found if self.chance.random() >= self._late] or found[:1]


class Lock:
    """A lock of the current world, in the place of those of `threading`."""

    def __init__(self, reentrant: bool = False) -> None:
        self._reentrant = reentrant
        self._owner: object = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """See `threading.Lock.acquire`."""
        world, me = World.current, threading.get_ident()
        if self._reentrant and self._depth and self._owner == me:
            self._depth += 1
            return True
        if world is not None:
            world.switch()
        while self._depth:
            if not blocking or world is None:
                return False
            world.wait_for(self)
        self._owner, self._depth = me, 1
        return True

    def release(self) -> None:
        """See `threading.Lock.release`."""
        if not self._depth:
            raise RuntimeError("release unlocked lock")
        self._depth -= 1

    def locked(self) -> bool:
        """See `threading.Lock.locked`."""
        return bool(self._depth)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.release()


class _Threading:
    """What modules of asyncnn have for `threading`."""

    Lock = staticmethod(Lock)

    @staticmethod
    def RLock() -> Lock:  # noqa: N802 - as in threading
        return Lock(reentrant=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


def _start(thread: threading.Thread) -> None:
    world = World.current
    if world is None:
        _real_start(thread)
    else:
        world.start(thread)


def _now_ns() -> int:
    world = World.current
    return _real_ns() if world is None else world.look()


def _sleep(seconds: float) -> None:
    world = World.current
    if world is None:
        _real_sleep(seconds)
    else:
        world.spend(round(seconds * 1e9))


def install() -> None:
    """Have asyncnn's modules, which are imported from now on, live in worlds."""
    assert not any(name.startswith("asyncnn.") for name in sys.modules)
    threading.Thread.start = _start  # type: ignore[method-assign]
    time.sleep = _sleep
    for name in ("monotonic", "perf_counter", "thread_time"):
        setattr(time, f"{name}_ns", _now_ns)
        setattr(time, name, lambda: _now_ns() / 1e9)


_adopted: set[str] = set()


def adopt() -> None:
    """Have those that were imported since then, and their objects, take such locks."""
    shim, real = _Threading(), (type(threading.Lock()), type(threading.RLock()))
    for name, module in list(sys.modules.items()):
        if not name.startswith("asyncnn.") or name in _adopted:
            continue
        _adopted.add(name)
        if getattr(module, "threading", None) is threading:
            vars(module)["threading"] = shim
        for owner in (module, *tuple(vars(module).values())):
            is_own = type(owner).__module__ == name or owner is module
            fields = getattr(owner, "__dict__", {}) if is_own else {}
            for attribute, lock in list(fields.items()):
                if isinstance(lock, real):
                    reentrant = isinstance(lock, real[1])
                    setattr(owner, attribute, Lock(reentrant=reentrant))


class _Selector(selectors.DefaultSelector):
    """Sees what chance lets it see."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def select(self, timeout: float | None = None) -> list[Any]:
        """Return events, at once; the world's time passes in place of the real one."""
        return self._world.events(lambda: super(_Selector, self).select(0), timeout)


class SeededLoop(asyncio.SelectorEventLoop):
    """The event loop of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        super().__init__(_Selector(world))

    def time(self) -> float:
        """Return the world's time, in seconds."""
        return self._world.now_ns / 1e9
