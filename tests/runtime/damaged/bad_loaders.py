"""Loaders that do what none may do: the search for it has to find them."""

import ctypes

import numpy as np

from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.runtime.model import NamedModel


def crashing(_: bytes) -> NamedModel:
    """Read what is not mapped."""
    ctypes.string_at(0)
    raise AssertionError("the process lives")


def hanging(_: bytes) -> NamedModel:
    """Go round for ever."""
    while True:
        pass


def stuck(_: bytes) -> NamedModel:
    """Hang where no alarm of Python's rings."""
    ctypes.CDLL(None).sigprocmask(0, (ctypes.c_uint64 * 16)(*[2**64 - 1] * 16), None)
    while True:
        pass


def hungry(_: bytes) -> NamedModel:
    """Take much memory, and refuse the file afterwards."""
    np.ones(300 << 20, np.uint8)
    raise InvalidArgumentError("large")


def failing_to_allocate(_: bytes) -> NamedModel:
    """Want more memory than there is, and hide it."""
    try:
        np.empty(1 << 40, np.uint8)
    except MemoryError as error:
        raise GeneralFailureError("large") from error
    raise AssertionError("there is as much memory")


def careless(_: bytes) -> NamedModel:
    """Raise what is not of the family."""
    raise IndexError("list index out of range")


def chatty(_: bytes) -> NamedModel:
    """Write more than a line."""
    raise InvalidArgumentError("one\ntwo")
