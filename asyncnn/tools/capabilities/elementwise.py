"""Workloads of an operation or a few, for the types that have little arithmetic.

The first operand of an operation decides which figure counts for it: symmetric codes
come first in DEQUANTIZE and CAST alone, whatever they are weights of.
"""

from collections.abc import Callable

import numpy as np

from asyncnn.devices.measured_capabilities import ReferenceWorkload
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    FusedActivationFunc,
    Operand,
    OperandType,
    OperationType,
    SymmPerChannelQuantParams,
)
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.tools.capabilities.workload import Workload, add_inputs

_SHAPE = (1024, 1024)
_STEP = 2.0**-6

_F32, _I32, _B8 = (
    OperandType.TENSOR_FLOAT32,
    OperandType.TENSOR_INT32,
    OperandType.TENSOR_BOOL8,
)
_FLOATS = Operand(_F32, _SHAPE)


def integers() -> Workload:
    """Return ``(x + y) * y``, and of that the rows that other integers name."""
    rng = np.random.default_rng(2)
    x, y = rng.integers(-1000, 1000, (2, *_SHAPE), np.int32)
    rows = rng.permutation(_SHAPE[0]).astype(np.int32)
    tensor = Operand(_I32, _SHAPE)
    builder = ModelBuilder()
    first, second, which = add_inputs(
        builder, tensor, tensor, Operand(_I32, rows.shape)
    )
    none = builder.scalar(FusedActivationFunc.NONE)
    value = builder.operation(OperationType.ADD, (first, second, none), tensor)
    value = builder.operation(OperationType.MUL, (value, second, none), tensor)
    value = builder.operation(OperationType.EMBEDDING_LOOKUP, (which, value), tensor)
    builder.output(value, "picked")

    def plain(x: Array, y: Array, rows: Array) -> tuple[Array]:
        return (((x + y) * y)[rows],)

    return Workload(
        ReferenceWorkload.TENSOR_INT32, builder.build(), (x, y, rows), plain
    )


def booleans() -> Workload:
    """Return numbers of x or y, as ``(a & b) | ~a`` chooses."""
    rng = np.random.default_rng(3)
    a, b = rng.random((2, *_SHAPE)) < 0.5
    x, y = rng.random((2, *_SHAPE), np.float32)
    tensor = Operand(_B8, _SHAPE)
    builder = ModelBuilder()
    first, second, one, other = add_inputs(builder, tensor, tensor, _FLOATS, _FLOATS)
    both = builder.operation(OperationType.LOGICAL_AND, (first, second), tensor)
    none = builder.operation(OperationType.LOGICAL_NOT, (first,), tensor)
    which = builder.operation(OperationType.LOGICAL_OR, (both, none), tensor)
    chosen = builder.operation(OperationType.SELECT, (which, one, other), _FLOATS)
    builder.output(chosen, "chosen")

    def plain(a: Array, b: Array, x: Array, y: Array) -> tuple[Array]:
        return (np.where((a & b) | ~a, x, y),)

    return Workload(
        ReferenceWorkload.TENSOR_BOOL8, builder.build(), (a, b, x, y), plain
    )


def symmetric() -> Workload:
    """Return DEQUANTIZE of codes with one scale."""
    return _one_operation(
        ReferenceWorkload.TENSOR_QUANT8_SYMM,
        OperationType.DEQUANTIZE,
        Operand(OperandType.TENSOR_QUANT8_SYMM, _SHAPE, scale=_STEP),
        _signed_codes(np.int8),
        _FLOATS,
        lambda codes: (codes.astype(np.float32) * np.float32(_STEP),),
    )


def symmetric_per_channel() -> Workload:
    """Return DEQUANTIZE of codes with a scale for each column."""
    scales = np.linspace(_STEP, 2 * _STEP, _SHAPE[1], dtype=np.float32)
    params = SymmPerChannelQuantParams(tuple(scales.tolist()), channel_dim=1)
    return _one_operation(
        ReferenceWorkload.TENSOR_QUANT8_SYMM_PER_CHANNEL,
        OperationType.DEQUANTIZE,
        Operand(
            OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL, _SHAPE, extra_params=params
        ),
        _signed_codes(np.int8),
        _FLOATS,
        lambda codes: (codes.astype(np.float32) * scales,),
    )


def symmetric_16_bit() -> Workload:
    """Return CAST of codes to their own type, which is a copy."""
    tensor = Operand(OperandType.TENSOR_QUANT16_SYMM, _SHAPE, scale=_STEP)
    return _one_operation(
        ReferenceWorkload.TENSOR_QUANT16_SYMM,
        OperationType.CAST,
        tensor,
        _signed_codes(np.int16),
        tensor,
        lambda codes: (codes.copy(),),
    )


def _signed_codes(dtype: type[np.signedinteger]) -> Array:
    return np.random.default_rng(5).integers(-100, 101, _SHAPE, dtype)


def _one_operation(
    name: ReferenceWorkload,
    operation: OperationType,
    operand: Operand,
    codes: Array,
    result: Operand,
    plain: Callable[[Array], tuple[Array]],
) -> Workload:
    builder = ModelBuilder()
    output = builder.operation(operation, add_inputs(builder, operand), result)
    builder.output(output, "result")
    return Workload(name, builder.build(), (codes,), plain)
