"""What figures depend on beside the code: the machine, the libraries, the placement."""

import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
from threadpoolctl import threadpool_info  # type: ignore[import-untyped]

from asyncnn._version import __version__

ONE_CPU = "one"
ALL_CPUS = "all"


class Blas(msgspec.Struct, frozen=True):
    """The BLAS that NumPy calls. ``core_type`` is OPENBLAS_CORETYPE, empty if unset."""

    name: str
    version: str
    architecture: str
    core_type: str


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
        blas = f"{self.blas.name} {self.blas.version} ({self.blas.architecture}"
        if self.blas.core_type:
            blas += f", OPENBLAS_CORETYPE={self.blas.core_type}"
        peers = "".join(f", {name} {version}" for name, version in self.peers.items())
        return (
            f"{self.cpu}, {self.cores} cores, {self.system}; asyncnn {self.asyncnn}, "
            f"Python {self.python}, NumPy {self.numpy}, {blas}){peers}"
        )


def describe_environment(**peers: str) -> Environment:
    """Describe this process; ``peers`` are the versions of the peers."""
    return Environment(
        asyncnn=__version__,
        cpu=_cpu_name(),
        cores=os.cpu_count() or 1,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        numpy=np.__version__,
        blas=_blas(),
        peers=peers,
    )


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _blas() -> Blas:
    found: dict[str, str] = next(
        (i for i in threadpool_info() if i["user_api"] == "blas"), {}
    )
    return Blas(
        name=found.get("internal_api", "unknown"),
        version=found.get("version") or "unknown",
        architecture=found.get("architecture", "unknown"),
        core_type=os.environ.get("OPENBLAS_CORETYPE", ""),
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
