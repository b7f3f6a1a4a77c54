"""Pools as a client describes them, and the traces that pools leave in a process."""

import gc
import os
from pathlib import Path

from asyncnn.hal.types import Handle, Memory


def sent(memory: Memory) -> Memory:
    """Return what arrives in a driver: the kind, size and handle of a pool."""
    return Memory(memory.name, memory.size, memory.handle)


def pool_of(fd: int, size: int, *ints: int, name: str = "ashmem") -> Memory:
    """Return a pool as a client may describe it, rightly or not."""
    return Memory(name, size, Handle((fd,), ints))


def traces() -> set[str]:
    """Return the descriptors, mapped pools and shared-memory names of this process."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{number} -> {os.readlink(f'/proc/self/fd/{number}')}")
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd:" in line or "/dev/shm/" in line:
            found.add(line)
    own = f"asyncnn-{os.getpid()}-"
    return found | {name for name in os.listdir("/dev/shm") if name.startswith(own)}


def leaks(before: set[str]) -> set[str]:
    """Return what has come to stay since ``before``."""
    if traces() - before:
        gc.collect()
    return traces() - before
