"""Where the threads and processes of a benchmark run."""

import contextlib
import os
from collections.abc import Iterator

ONE_CPU = "one"
ALL_CPUS = "all"


@contextlib.contextmanager
def placement(cpus: str) -> Iterator[str]:
    """Keep this thread, and threads it starts, on the ``one`` or on ``all`` CPUs.

    Yields a sentence that says where they run. Where the system cannot pin threads
    nothing is done, and the sentence says so.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield "not pinned: this system cannot"
        return
    before = os.sched_getaffinity(0)
    if cpus == ALL_CPUS:
        yield f"not pinned: any of {len(before)} CPUs"
        return
    cpu = max(before)  # the first ones serve most interrupts
    with pinned(cpu):
        yield f"all threads pinned to CPU {cpu}"


@contextlib.contextmanager
def pinned(cpu: int) -> Iterator[None]:
    """Keep this thread, and what it starts, on one CPU."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cpu_pairs() -> list[tuple[int, int]]:
    """Return the CPUs of this process and of another one: apart, then together."""
    *others, last = sorted(os.sched_getaffinity(0))  # the first serve most interrupts
    return [*((last, other) for other in others[-1:]), (last, last)]


def describe_pair(client: int, driver: int) -> str:
    """Return in words where the two processes run."""
    where = f"application on CPU {client}, the other process on "
    return where + (f"CPU {driver}" if driver != client else "it too")
