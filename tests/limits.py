"""Programs in processes of their own, to which the system gives little.

The limit of processes, and hence of threads, does not hold for root: there the process
becomes an ordinary user first, who may still read all files.
"""

import ctypes
import os
import resource
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncnn.service.process import DriverProcess
from tests.processes import python

_ROOT = Path(__file__).parents[1]
_FIRST_USER = 1_000_000_000
"""To it the number of the process is added: other processes of a user would count."""

_READING = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""

_SET_KEEPCAPS, _CAPABILITY_VERSION_3 = 8, 0x20080522


def output_of(program: str, *arguments: object, timeout_s: float = 100.0) -> str:
    """Run a program of Python, with the packages of the tests; return what it prints.

    What it writes to standard error, and how it ended, follow if it has failed.
    """
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    ended = python("-c", program, *arguments, env=environment, timeout=timeout_s)
    failure = f"{ended.stderr}\nstatus {ended.returncode}" if ended.returncode else ""
    return ended.stdout + failure


def become_ordinary() -> None:
    """Give up all privileges of root but that of reading files, for good."""
    if os.geteuid():
        return
    c = ctypes.CDLL(None, use_errno=True)
    assert c.prctl(_SET_KEEPCAPS, 1, 0, 0, 0) == 0
    os.setgroups([])
    user = _FIRST_USER + os.getpid()
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    few = struct.pack("6I", _READING, _READING, 0, 0, 0, 0)
    assert c.capset(header, few) == 0, os.strerror(ctypes.get_errno())


def limit(kind: int, most: int) -> None:
    """Set a soft limit of this process."""
    resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))


@contextmanager
def lowered(driver: DriverProcess, kind: int, most: int) -> Iterator[None]:
    """Lower a limit of a driver that runs."""
    soft, hard = resource.prlimit(driver.pid, kind)
    resource.prlimit(driver.pid, kind, (most, hard))
    try:
        yield
    finally:
        resource.prlimit(driver.pid, kind, (soft, hard))
