"""Formulas of operations on each element alone, or on pairs of elements."""

from collections.abc import Callable

import numpy as np

from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.hal.types import OperandType, OperationType
from tests.random_graphs.naive.expected import (
    ONCE,
    QUANTIZED,
    TWICE,
    Expected,
    exact,
    real,
    rounded,
)

Formula = Callable[[BoundOperation], Expected]

ACTIVATIONS = {0: (-np.inf, np.inf), 1: (0, np.inf), 2: (-1, 1), 3: (0, 6)}
"""Bounds of NONE, RELU, RELU1 and RELU6."""


def is_quantized(operation: BoundOperation) -> bool:
    """Return whether the first output has a scale."""
    return operation.outputs[0].type in QUANTIZED


def clamped(expected: Expected, code: int) -> Expected:
    """Apply a fused activation, which moves no two values apart."""
    return expected._replace(value=np.clip(expected.value, *ACTIVATIONS[code]))


def _pair(operation: BoundOperation) -> tuple[Array, Array]:
    return real(operation.input(0)), real(operation.input(1))


def _arithmetic(ufunc: np.ufunc) -> Formula:
    def formula(operation: BoundOperation) -> Expected:
        x, y = _pair(operation)
        if operation.outputs[0].type == OperandType.TENSOR_INT32:
            return exact(_integers(ufunc, x, y))
        return clamped(rounded(ufunc(x, y), places=TWICE), operation.integer(2))

    return formula


def _integers(ufunc: np.ufunc, x: Array, y: Array) -> Array:
    """Wrap around at 32 bits; division floors, and by zero gives zero."""
    if ufunc is np.divide:
        return np.where(y == 0, 0, np.floor(x / np.where(y == 0, 1, y)))
    wide: Array = ufunc(x.astype(np.int64), y.astype(np.int64))
    return wide.astype(np.int32)


def _extremum(ufunc: np.ufunc) -> Formula:
    def formula(operation: BoundOperation) -> Expected:
        value = ufunc(*_pair(operation))
        return rounded(value) if is_quantized(operation) else exact(value)

    return formula


def _comparison(ufunc: np.ufunc) -> Formula:
    """Codes are compared in float32, where real values may seem to be equal."""

    def formula(operation: BoundOperation) -> Expected:
        x, y = _pair(operation)
        value = ufunc(x, y)
        if operation.input(0).type not in QUANTIZED:
            return exact(value)
        doubtful = np.isclose(x, y, rtol=1e-6, atol=0) & (x != y)
        return Expected(value, doubtful.astype(float))

    return formula


def _unary(function: Callable[[Array], Array], roundings: float) -> Formula:
    return lambda op: rounded(function(real(op.input(0))), roundings)


def _exactly(function: Callable[[Array], Array]) -> Formula:
    return lambda op: exact(function(real(op.input(0))))


def _clamp(code: int) -> Formula:
    """The bounds of quantised tensors are rounded to codes."""

    def formula(operation: BoundOperation) -> Expected:
        value = np.clip(real(operation.input(0)), *ACTIVATIONS[code])
        return Expected(value, places=ONCE if is_quantized(operation) else 0)

    return formula


def _prelu(operation: BoundOperation) -> Expected:
    x, alpha = _pair(operation)
    return rounded(np.where(x >= 0, x, alpha * x), places=TWICE)


def _sin(operation: BoundOperation) -> Expected:
    return rounded(np.sin(real(operation.input(0))), 4, 1)


def _hard_swish(operation: BoundOperation) -> Expected:
    x = real(operation.input(0))
    return rounded(x * np.clip(x + 3, 0, 6) / 6, 4, np.abs(x) * (np.abs(x) + 3) / 6)


def _elu(operation: BoundOperation) -> Expected:
    x, alpha = real(operation.input(0)), operation.real(1)
    value = np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))
    return rounded(value, 4, np.abs(x) + abs(alpha))


def _select(operation: BoundOperation) -> Expected:
    condition, x, y = (real(operation.input(i)) for i in range(3))
    value = np.where(condition != 0, x, y)
    return rounded(value) if is_quantized(operation) else exact(value)


def _cast(operation: BoundOperation) -> Expected:
    """Convert stored values, not real ones; integers saturate."""
    source, target = operation.input(0), operation.outputs[0]
    value = source.require_value().astype(np.float64)
    if target.dtype.kind == "f":
        return rounded(value)
    if target.dtype.kind in "iu":
        limits = np.iinfo(target.dtype)
        value = np.trunc(np.clip(value, limits.min, limits.max))
    if target.type in QUANTIZED:
        value = (value - target.zero_point) * target.scale
    return exact(value)


def _quantize(operation: BoundOperation) -> Expected:
    return rounded(real(operation.input(0)), 2)


def _dequantize(operation: BoundOperation) -> Expected:
    return rounded(real(operation.input(0)), 1)


_OP = OperationType
FORMULAS: dict[OperationType, Formula] = {
    _OP.ADD: _arithmetic(np.add),
    _OP.SUB: _arithmetic(np.subtract),
    _OP.MUL: _arithmetic(np.multiply),
    _OP.DIV: _arithmetic(np.divide),
    _OP.MAXIMUM: _extremum(np.maximum),
    _OP.MINIMUM: _extremum(np.minimum),
    _OP.POW: lambda op: rounded(np.power(*_pair(op)), 8),
    _OP.PRELU: _prelu,
    _OP.ABS: _exactly(np.abs),
    _OP.NEG: _exactly(np.negative),
    _OP.FLOOR: _exactly(np.floor),
    _OP.EXP: _unary(np.exp, 4),
    _OP.LOG: _unary(np.log, 4),
    _OP.SQRT: _unary(np.sqrt, 0),
    _OP.RSQRT: _unary(lambda x: 1 / np.sqrt(x), 2),
    _OP.SIN: _sin,
    _OP.RELU: _clamp(1),
    _OP.RELU1: _clamp(2),
    _OP.RELU6: _clamp(3),
    _OP.LOGISTIC: _unary(lambda x: 1 / (1 + np.exp(-x)), 8),
    _OP.TANH: _unary(np.tanh, 4),
    _OP.HARD_SWISH: _hard_swish,
    _OP.ELU: _elu,
    _OP.EQUAL: _comparison(np.equal),
    _OP.NOT_EQUAL: _comparison(np.not_equal),
    _OP.LESS: _comparison(np.less),
    _OP.LESS_EQUAL: _comparison(np.less_equal),
    _OP.GREATER: _comparison(np.greater),
    _OP.GREATER_EQUAL: _comparison(np.greater_equal),
    _OP.LOGICAL_AND: lambda op: exact(np.logical_and(*_pair(op))),
    _OP.LOGICAL_OR: lambda op: exact(np.logical_or(*_pair(op))),
    _OP.LOGICAL_NOT: _exactly(np.logical_not),
    _OP.SELECT: _select,
    _OP.CAST: _cast,
    _OP.QUANTIZE: _quantize,
    _OP.DEQUANTIZE: _dequantize,
}
