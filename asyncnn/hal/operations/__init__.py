"""The operations of the HAL: what they accept and which shapes they give.

`SIGNATURES` declares every operation, one file per family. `check_operation` validates
an operation of a model against it; `infer_shapes` finds output shapes. Kernels read
operations through `bound` and share the arithmetic of `windows`. Imports nothing of
asyncnn but the HAL's data and the errors.
"""

from asyncnn.hal.operations.check import check_operation, infer_shapes
from asyncnn.hal.operations.table import SIGNATURES, allowed_types

__all__ = ("SIGNATURES", "allowed_types", "check_operation", "infer_shapes")
