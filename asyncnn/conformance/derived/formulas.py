"""Operations that one line of NumPy computes: cases made from nothing."""

from collections.abc import Callable, Iterator, Set

import numpy as np

from asyncnn.conformance.coverage import Pair
from asyncnn.conformance.rewriting import Stored, put_together
from asyncnn.conformance.vectors import Case
from asyncnn.hal.operands import DTYPES
from asyncnn.hal.operations.bound import Array, Shape
from asyncnn.hal.types import (
    FusedActivationFunc,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    SymmPerChannelQuantParams,
)

_FOLDER = "V1_3"
_SPEC = "formulas"
_ROWS = 2
"""Length of the first axis of sampled tensors, along which scales may differ."""

_SCALE = 0.125
_CHANNEL_SCALES = SymmPerChannelQuantParams((0.125, 2.5), 0)
_ZERO_POINTS = {
    OperandType.TENSOR_QUANT8_ASYMM: 100,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: -28,
    OperandType.TENSOR_QUANT16_ASYMM: 40_000,
    OperandType.TENSOR_QUANT16_SYMM: 0,
    OperandType.TENSOR_QUANT8_SYMM: 0,
}

Parts = tuple[list[Stored], list[Stored]]
"""Inputs and expected outputs."""


def computed(wanted: Set[Pair]) -> Iterator[Case]:
    """Yield a case for each wanted pair whose operation has a formula here."""
    for pair in sorted(wanted):
        if pair.operation not in _FORMULAS:
            continue
        inputs, outputs = _FORMULAS[pair.operation](*pair.types)
        indexes = tuple(range(len(inputs) + len(outputs)))
        operation = Operation(
            pair.operation, indexes[: len(inputs)], indexes[len(inputs) :]
        )
        name = f"{_SPEC}_{pair}".lower()
        yield put_together(_FOLDER, _SPEC, name, inputs + outputs, [operation])


def _dequantize(source: OperandType, target: OperandType) -> Parts:
    codes = _sample(source)
    assert codes.value is not None
    scale, zero_point = np.array(codes.operand.scale), codes.operand.zero_point
    if isinstance(codes.operand.extra_params, SymmPerChannelQuantParams):
        scale = np.array(codes.operand.extra_params.scales).reshape(_ROWS, 1)
    numbers = scale * (codes.value.astype(np.float64) - zero_point)
    return [codes], [_output(target, numbers.astype(DTYPES[target]))]


def _divide(type_: OperandType) -> Parts:
    largest = np.iinfo(np.int32).max
    numerators = np.array([*range(-8, 9), largest, -largest], np.int32)
    divisors = np.array([[-largest], [-3], [-1], [1], [2], [7], [largest]], np.int32)
    quotients = np.floor(numerators.astype(np.float64) / divisors).astype(np.int32)
    activation = Stored(
        Operand(OperandType.INT32, lifetime=OperandLifeTime.CONSTANT_COPY),
        np.array(FusedActivationFunc.NONE, np.int32),
    )
    inputs = [_input(type_, numerators), _input(type_, divisors), activation]
    return inputs, [_output(type_, quotients)]


def _copy(source: OperandType, target: OperandType) -> Parts:
    codes = _sample(source)
    assert codes.value is not None
    return [codes], [_output(target, codes.value)]


def _magnitude(type_: OperandType) -> Parts:
    numbers = np.linspace(-300, 299, 256).astype(DTYPES[type_]).reshape(_ROWS, 128)
    return [_input(type_, numbers)], [_output(type_, np.abs(numbers))]


def _rank(type_: OperandType) -> Parts:
    given = _sample(type_)
    return [given], [_output(OperandType.INT32, np.array(2, np.int32))]


_FORMULAS: dict[OperationType, Callable[..., Parts]] = {
    OperationType.DEQUANTIZE: _dequantize,
    OperationType.DIV: _divide,
    OperationType.ABS: _magnitude,
    OperationType.CAST: _copy,
    OperationType.RANK: _rank,
}


def _sample(type_: OperandType) -> Stored:
    """Return an input of shape [2, 128] that holds every byte there is."""
    dtype = DTYPES[type_]
    raw = np.resize(np.arange(256, dtype=np.uint8), 256 * dtype.itemsize)
    if dtype == np.bool_:
        raw = raw % 2
    return _input(type_, raw.view(dtype).reshape(_ROWS, 128))


def _input(type_: OperandType, value: Array) -> Stored:
    operand = _operand(type_, value.shape, OperandLifeTime.SUBGRAPH_INPUT)
    return Stored(operand, value)


def _output(type_: OperandType, value: Array) -> Stored:
    operand = _operand(type_, value.shape, OperandLifeTime.SUBGRAPH_OUTPUT)
    return Stored(operand, value)


def _operand(type_: OperandType, shape: Shape, lifetime: OperandLifeTime) -> Operand:
    per_channel = type_ == OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
    return Operand(
        type_,
        shape,
        scale=_SCALE if type_ in _ZERO_POINTS else 0.0,
        zero_point=_ZERO_POINTS.get(type_, 0),
        lifetime=lifetime,
        extra_params=_CHANNEL_SCALES if per_channel else None,
    )
