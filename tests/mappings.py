"""What the system says of a process: its memory and its children."""

import os
from pathlib import Path


def mapped_pools() -> int:
    """Return how many mappings of shared pools there are, of drivers and clients."""
    return Path("/proc/self/maps").read_text().count("asyncnn-pool")


def resident_bytes(pid: int | str = "self") -> int:
    """Return how much memory a process has in RAM."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def children() -> set[int]:
    """Return the processes that this one has started."""
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return {int(pid) for pid in path.read_text().split()}
