"""Targets that do what none may do: the search has to find it."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.tools.fuzz.targets import FuzzTarget

MARK = b"!"
ORIGINAL = bytes(range(64)) + b"!" + bytes(range(64))


def crashing() -> None:
    """Read what is not mapped."""
    ctypes.string_at(0)


def hanging() -> None:
    """Go round for ever."""
    while True:
        pass


def stuck() -> None:
    """Hang where no signal is heard."""
    ctypes.CDLL(None).sigprocmask(0, (ctypes.c_uint64 * 16)(*[2**64 - 1] * 16), None)
    while True:
        pass


def hungry() -> None:
    """Take much memory, and answer afterwards."""
    np.ones(300 << 20, np.uint8)
    raise InvalidArgumentError("large")


def failing_to_allocate() -> None:
    """Want more memory than there is, and hide it."""
    try:
        np.empty(1 << 50, np.uint8)
    except MemoryError as error:
        raise GeneralFailureError("large") from error


def careless() -> None:
    """Raise what is no answer."""
    raise IndexError("list index out of range")


def chatty() -> None:
    """Write more than a line."""
    raise InvalidArgumentError("one\ntwo")


def _target(fails: Callable[[], None]) -> FuzzTarget:
    """Return a target that fails on bytes with `MARK`, and refuses all others."""

    def run(data: bytes) -> None:
        if MARK in data:
            fails()
        raise InvalidArgumentError("refused")

    @contextmanager
    def opened(_: str) -> Iterator[Callable[[bytes], None]]:
        yield run

    return FuzzTarget(fails.__doc__ or "", lambda: [b"", ORIGINAL], opened)


KINDS = (crashing, hanging, stuck, hungry, failing_to_allocate, careless, chatty)
TARGETS = {kind.__name__: _target(kind) for kind in KINDS}
