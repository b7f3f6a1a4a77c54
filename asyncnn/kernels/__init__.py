"""Floor 2: NumPy reference kernels, one folder per family of operations.

Pure NumPy: no asyncio, no files, no global state. `prepare` finds the kernel of an
operation; `asyncnn.kernels.kernel` says what a kernel is. A family knows no other: what
they share is in `asyncnn.kernels.numerics`. Imports only `asyncnn.hal`.
"""

from asyncnn.kernels.registry import (
    compute,
    is_data_dependent,
    is_supported,
    prepare,
    supported_operations,
)

__all__ = (
    "compute",
    "is_data_dependent",
    "is_supported",
    "prepare",
    "supported_operations",
)
