"""What decides how fast this process computes, beside the code."""

import contextlib
import os
import platform

import msgspec
from threadpoolctl import threadpool_info  # type: ignore[import-untyped]


class Blas(msgspec.Struct, frozen=True):
    """The BLAS that NumPy calls. ``core_type`` is OPENBLAS_CORETYPE, empty if unset."""

    name: str
    version: str
    architecture: str
    core_type: str

    def __str__(self) -> str:
        core_type = f", OPENBLAS_CORETYPE={self.core_type}" if self.core_type else ""
        return f"{self.name} {self.version} ({self.architecture}{core_type})"


def blas_in_use() -> Blas:
    """Describe the BLAS that this process has loaded, "unknown" if there is none."""
    found: dict[str, str] = next(
        (i for i in threadpool_info() if i["user_api"] == "blas"), {}
    )
    return Blas(
        name=found.get("internal_api", "unknown"),
        version=found.get("version") or "unknown",
        architecture=found.get("architecture", "unknown"),
        core_type=os.environ.get("OPENBLAS_CORETYPE", ""),
    )


def cpu_name() -> str:
    """Return the model name of the CPU, or its architecture where there is none."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        for line in lines:
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
