"""Floor 2: NumPy reference kernels, one folder per family of operations.

Pure NumPy: no asyncio, no files, no global state. `prepare` finds the kernel of an
operation; `asyncnn.kernels.kernel` says what a kernel is. A family knows no other: what
they share is in `asyncnn.kernels.numerics`. Imports only `asyncnn.hal`.
"""

from typing import TYPE_CHECKING

from asyncnn.lazy import lazy_names

if TYPE_CHECKING:
    from asyncnn.kernels.registry import (
        compute,
        is_data_dependent,
        is_supported,
        prepare,
        supported_operations,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "asyncnn.kernels.registry": (
                "compute",
                "is_data_dependent",
                "is_supported",
                "prepare",
                "supported_operations",
            ),
        },
    )

__all__ = (
    "compute",
    "is_data_dependent",
    "is_supported",
    "prepare",
    "supported_operations",
)
