"""Floor 2: NumPy reference kernels, one file per family of operations.

Pure NumPy: no asyncio, no files, no global state. `prepare` does all one-time work of
an operation and returns its kernel; `asyncnn.kernels.kernel` says what a kernel is.
`compute` runs the operations whose output shapes only the data tell. A family knows no
other; what they share is in ``numerics`` (stored values), ``rounding`` (sums that
become codes) and ``lookup_tables``. Imports only `asyncnn.hal`.
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
