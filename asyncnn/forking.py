"""What a forked child process has to leave to its parent.

A child inherits copies of open devices and connections, but none of their threads, and
it shares their sockets and the event loop's selector with its parent. So whatever a
process owns is told in the child that it has no owner there: from then on it refuses
all use with `ForkedError`, and closing it does nothing.
"""

import os
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet

from asyncnn.errors import ForkedError


class Owned(Protocol):
    """What only the process that made it can use."""

    def disown(self) -> None:
        """Refuse all use from now on; touch no descriptor, lock or event loop."""
        ...


_owned: WeakSet[Owned] = WeakSet()


def own(thing: Owned) -> None:
    """Have ``thing`` disowned in every child that this process forks."""
    _owned.add(thing)


def inherited(what: str) -> ForkedError:
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
