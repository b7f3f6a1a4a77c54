"""What figures depend on beside the code: the machine, the libraries and the CPUs."""

import contextlib
import importlib
import importlib.metadata
import os
import platform
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np

from asyncnn import __version__
from asyncnn.devices.measured_capabilities import Blas, blas_in_use, cpu_name
from asyncnn.hal.errors import AsyncnnError

ONE_CPU = "one"
ALL_CPUS = "all"


class PeerMissingError(AsyncnnError):
    """A library that a benchmark compares with is not installed."""


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


def peer_module(module: str, name: str, requirement: str) -> Any:
    """Import a module of a peer of that name.

    :raises PeerMissingError: if it cannot be imported; says what to install.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise PeerMissingError(
            f"{name} cannot be imported: {error}",
            hint=f"install it with: pip install {requirement}",
        ) from error


def installed_versions(*packages: str) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    versions = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


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


class CpuPair(NamedTuple):
    """The CPUs of this process and of another one."""

    client: int
    other: int

    @property
    def is_apart(self) -> bool:
        """Whether they are different ones."""
        return self.client != self.other

    def __str__(self) -> str:
        other = f"CPU {self.other}" if self.is_apart else "it too"
        return f"application on CPU {self.client}, the other process on {other}"


def cpu_pairs() -> list[CpuPair]:
    """Return where two processes are to run: apart if they can, then together."""
    *others, last = sorted(os.sched_getaffinity(0))  # the first serve most interrupts
    apart = [CpuPair(last, other) for other in others[-1:]]
    return [*apart, CpuPair(last, last)]
