"""Floor 2: NumPy reference kernels, one file per family of operations.

Pure NumPy: no asyncio, no files, no global state. `prepare` finds the kernel of an
operation; `asyncnn.kernels.kernel` says what a kernel is. Imports only `asyncnn.hal`.
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
