"""Pools as a client describes them, and the traces that pools leave in a process."""

import gc
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import Handle, Memory
from asyncnn.memory import slabs
from asyncnn.memory.descriptors import being_closed
from asyncnn.memory.handles import READ_WRITE, MappedSpan
from asyncnn.memory.pages import map_pages, os_errors
from asyncnn.memory.pools import owning


def sent(memory: Memory) -> Memory:
    """Return what arrives in a driver: the kind, size and handle of a pool."""
    return Memory(memory.name, memory.size, memory.handle)


def pool_of(fd: int, size: int, *ints: int, name: str = "ashmem") -> Memory:
    """Return a pool as a client may describe it, rightly or not."""
    return Memory(name, size, Handle((fd,), ints))


def allocate_unsealed(size: int) -> Memory:
    """Return a writable pool of zeros in a memory file that anybody may truncate."""
    if size < 0:
        raise InvalidArgumentError(f"a pool of {size} bytes")
    with os_errors(f"pool of {size} bytes"):
        fd = os.memfd_create("foreign", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            data = map_pages(MappedSpan(fd, READ_WRITE, 0, size), 0)
            return owning(Memory("ashmem", size, Handle((fd,)), data))
        except BaseException:
            os.close(fd)
            raise


def traces() -> set[str]:
    """Return the descriptors and mapped pools of this process.

    Sockets are counted: each time that uvloop runs it makes a new pair for itself. It
    also keeps a descriptor of /dev/null once it has started a process. Slabs that are
    kept for arrays to come are given back before, and threads have closed what they
    were given.
    """
    slabs.trim()
    ends = time.monotonic() + 20
    while being_closed() and time.monotonic() < ends:
        time.sleep(0.001)
    return untrimmed()


def untrimmed() -> set[str]:
    """Return the traces, those of slabs that are kept included."""
    found = set()
    sockets = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
        if name.startswith("socket:"):
            sockets += 1
        elif name != os.devnull:
            found.add(f"{number} -> {name}")
    found |= {f"socket {number}" for number in range(sockets)}
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd:" in line or "/dev/shm/" in line:
            found.add(line)
    return found


def leaks(before: set[str]) -> set[str]:
    """Return what has come to stay since ``before``."""
    if traces() - before:
        gc.collect()
    return traces() - before


def leaks_of_threads(before: set[str]) -> set[str]:
    """Return the leaks, once threads that are about to let go of some have done so."""
    ends = time.monotonic() + 2
    while (found := leaks(before)) and time.monotonic() < ends:
        time.sleep(0.001)
    return found


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Have no file be opened inside the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
