"""What figures depend on beside the code: the machine and the libraries."""

import os
import platform

import msgspec
import numpy as np

from asyncnn._version import __version__
from asyncnn.devices.measured_capabilities import Blas, blas_in_use, cpu_name


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
