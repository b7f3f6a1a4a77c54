"""What of the Python interpreter concerns the whole process: forks and collections.

A forked child inherits copies of open devices and connections, but none of their
threads, and it shares their sockets and the event loop's selector with its parent. So
whatever a process owns is notified in the child that it has no owner there
(`disown_in_children`): from then on it refuses all use with `ForkedError`, and closing
it does nothing.

A full garbage collection looks at every object of the process at once and holds the
interpreter: some hundred milliseconds where a model of 20,000 operations is prepared,
several times on the way. So there is none while such a structure is built
(`building_large`). Then it is frozen, where that is allowed (`freezing_allowed`): later
collections leave it out, though it is freed as ever with its last reference. Freezing
concerns all objects that exist then (see `gc.freeze`), and is undone when it is no
longer allowed.
"""

import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol
from weakref import WeakSet

from asyncnn.hal.errors import ForkedError


class Owned(Protocol):
    """What only the process that made it can use."""

    def disown(self) -> None:
        """Refuse all use from now on; touch no descriptor, lock or event loop."""


_owned: WeakSet[Owned] = WeakSet()


def disown_in_children(thing: Owned) -> None:
    """Have ``thing`` disowned in every child that this process forks."""
    _owned.add(thing)


def forked_error(what: str) -> ForkedError:
    """Return the error for using ``what`` in a child of the process that owns it."""
    return ForkedError(
        f"{what} belongs to the process that opened it, and this is a fork of it",
        hint="open a device in this process, or start it with spawn",
    )


def _disown_all() -> None:
    for thing in tuple(_owned):
        with suppress(Exception):
            thing.disown()
    _owned.clear()


os.register_at_fork(after_in_child=_disown_all)


LARGE_OPERATIONS = 500
"""Operations of a large model; smaller ones are made and freed within milliseconds."""

_NEVER = 2**31 - 1

MOST_IMMORTAL = 4096 if sys.version_info[:2] == (3, 12) else 0
"""Objects that count as frozen though nobody froze any, at most.

Collections of Python 3.12 put aside what never ends, some hundred objects. What an
application freezes is more: the interpreter has six thousand when it starts.
"""


class _Collector:
    """Who builds, and who allows to freeze what was built."""

    def __init__(self) -> None:
        # The collector itself ends blocks that were left for good, even in here.
        self._lock = threading.RLock()
        # Of this process: a forked child has copies of blocks, but not their counts.
        self._building: set[object] = set()
        self._allowing: set[object] = set()
        self._has_frozen = False
        self._usual = gc.get_threshold()
        self._ours = self._usual

    def _begin(self, block: object) -> None:
        with self._lock:
            is_first = not self._building
            self._building.add(block)
            if is_first:
                self._usual = young, middle, _ = gc.get_threshold()
                if young:  # 0: the application has switched the collector off
                    gc.set_threshold(young, middle, _NEVER)
                self._ours = gc.get_threshold()

    def _end(self, block: object) -> None:
        with self._lock:
            if block not in self._building:
                return
            self._building.remove(block)
            if self._building:
                return
            if self._allowing and gc.isenabled():
                # What the application has frozen is its own to thaw. Asked once: all
                # that is frozen is counted one by one.
                self._has_frozen = (
                    self._has_frozen or gc.get_freeze_count() <= MOST_IMMORTAL
                )
                gc.freeze()
            if gc.get_threshold() == self._ours:  # nobody has changed it meanwhile
                gc.set_threshold(*self._usual)

    @contextmanager
    def building(self) -> Iterator[None]:
        """Have no full collection inside the block, which builds much that stays.

        They are frozen at its end, or at the last such block's, where that is allowed.
        """
        block = object()
        self._begin(block)
        try:
            yield
        finally:
            self._end(block)

    @contextmanager
    def allowing(self) -> Iterator[None]:
        """Have what is built frozen, inside the block."""
        block = object()
        with self._lock:
            self._allowing.add(block)
        try:
            yield
        finally:
            with self._lock:
                self._allowing.discard(block)
                if not self._allowing and self._has_frozen:
                    self._has_frozen = False
                    gc.unfreeze()

    def renew(self) -> None:
        """Begin anew in a forked child, whose parent's threads may hold the lock."""
        if self._building and gc.get_threshold() == self._ours:
            gc.set_threshold(*self._usual)
        self._lock = threading.RLock()
        self._building, self._allowing = set(), set()


_collector = _Collector()
os.register_at_fork(after_in_child=_collector.renew)

building_large = _collector.building
freezing_allowed = _collector.allowing
