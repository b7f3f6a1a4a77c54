"""ABS, NEG, EXP, LOG, SQRT, RSQRT, SIN, FLOOR and CAST, element by element.

Source: 1.3/types.hal (the operations above); AIDL feature level 7 (RSQRT of codes).
"""

import numpy as np

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.hal.types import OperationType
from asyncnn.kernels.elementwise.ufuncs import of_one
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    Prepare,
    PreparedKernel,
    Run,
    Scratch,
    stateless,
)
from asyncnn.kernels.numerics.float16 import widen_float16
from asyncnn.kernels.numerics.tables import formula_lookup


def _each(ufunc: np.ufunc) -> Prepare:
    return lambda operation: of_one(ufunc)


def _rsqrt_formula(real: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(1 / np.sqrt(real))


def _prepare_rsqrt(operation: BoundOperation) -> PreparedKernel:
    """Compute ``1 / sqrt(x)``; of codes, 0 gives the largest code."""
    if operation.input(0).type in QUANT8_TYPES:
        return formula_lookup(operation, _rsqrt_formula)

    def run(inputs: Inputs, outputs: Outputs) -> None:
        np.sqrt(inputs[0], out=outputs[0])
        np.reciprocal(outputs[0], out=outputs[0])

    return widen_float16(operation, stateless(run))


def _prepare_cast(operation: BoundOperation) -> PreparedKernel:
    """Convert stored values; fractions are dropped, integers saturate."""
    source, target = operation.input(0), operation.outputs[0]
    narrows = target.dtype.kind in "iu" and source.dtype != target.dtype
    if narrows and source.dtype != np.uint8:
        return _saturating_cast(operation)

    def run(inputs: Inputs, outputs: Outputs) -> None:
        np.copyto(outputs[0], inputs[0], casting="unsafe")

    return stateless(run)


def _saturating_cast(operation: BoundOperation) -> PreparedKernel:
    source, target = operation.input(0).dtype, operation.outputs[0].dtype
    limits = np.iinfo(target)
    # float16 holds no int32 limit, and float64 is the first float to hold both.
    wide = np.dtype(np.float64) if source.kind == "f" else source
    low, high = (np.array(limit, wide) for limit in (limits.min, limits.max))
    shape = operation.shape(0)

    def instantiate(scratch: Scratch) -> Run:
        clamped = scratch.transient(shape, wide)

        def run(inputs: Inputs, outputs: Outputs) -> None:
            np.maximum(inputs[0], low, out=clamped)
            np.minimum(clamped, high, out=clamped)
            np.copyto(outputs[0], clamped, casting="unsafe")

        return run

    return instantiate


KERNELS: dict[OperationType, Prepare] = {
    OperationType.ABS: _each(np.absolute),
    OperationType.NEG: _each(np.negative),
    OperationType.EXP: _each(np.exp),
    OperationType.LOG: _each(np.log),
    OperationType.SQRT: _each(np.sqrt),
    OperationType.SIN: _each(np.sin),
    OperationType.FLOOR: _each(np.floor),
    OperationType.RSQRT: _prepare_rsqrt,
    OperationType.CAST: _prepare_cast,
}
