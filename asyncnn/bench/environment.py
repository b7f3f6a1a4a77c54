"""What figures depend on beside the code: the machine, the libraries, the placement."""

import contextlib
import os
import platform
from collections.abc import Iterator

import msgspec
import numpy as np

from asyncnn._version import __version__
from asyncnn.devices.machine import Blas, blas_in_use, cpu_name

ONE_CPU = "one"
ALL_CPUS = "all"


class Environment(msgspec.Struct, frozen=True):
    """The circumstances of a measurement. ``peers`` maps libraries to versions."""

    asyncnn: str
    cpu: str
    cores: int
    system: str
    python: str
    numpy: str
    blas: Blas
    peers: dict[str, str]

    def __str__(self) -> str:
        peers = "".join(f", {name} {version}" for name, version in self.peers.items())
        return (
            f"{self.cpu}, {self.cores} cores, {self.system}; asyncnn {self.asyncnn}, "
            f"Python {self.python}, NumPy {self.numpy}, {self.blas}{peers}"
        )


def describe_environment(**peers: str) -> Environment:
    """Describe this process; ``peers`` are the versions of the peers."""
    return Environment(
        asyncnn=__version__,
        cpu=cpu_name(),
        cores=os.cpu_count() or 1,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        numpy=np.__version__,
        blas=blas_in_use(),
        peers=peers,
    )


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
    os.sched_setaffinity(0, {cpu})
    try:
        yield f"all threads pinned to CPU {cpu}"
    finally:
        os.sched_setaffinity(0, before)
