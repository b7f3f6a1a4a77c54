"""Processes that answer the one in which a benchmark measures."""

import contextlib
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

from asyncnn.tools.bench.placement import pinned

READY = b"ready"
"""What a process sends first."""

SPAWN = multiprocessing.get_context("spawn")
"""Nothing is shared with the process that measures."""

Pipe: TypeAlias = "Connection[Any, Any]"


@contextlib.contextmanager
def process(
    cpu: int | None, serve: Callable[..., None], *args: object
) -> Iterator[Pipe]:
    """Run ``serve`` with one end of a pipe in a process on a CPU; yield the other end.

    Without a CPU it runs on any. ``serve`` sends `READY` once it is ready.
    """
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=serve, args=(theirs, *args), daemon=True)
    with contextlib.nullcontext() if cpu is None else pinned(cpu):
        process.start()
    theirs.close()
    try:
        ours.recv_bytes()
        yield ours
    finally:
        ours.close()
        process.terminate()
        process.join()


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Have a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="asyncnn-") as name:
        yield Path(name)
