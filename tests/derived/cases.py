"""Cases for what the public vectors leave out.

Some operations are one line of NumPy, so that cases of them can be made from nothing.
All other cases are variants of vectors: see `tests.derived.variants`.
"""

from collections.abc import Callable, Iterable, Iterator, Set
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np

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
from asyncnn.tools.conformance.vectors import Case
from tests.derived.coverage import Pair, all_pairs, pairs_with_vectors, succeeding_cases
from tests.derived.rewriting import Stored, is_single, put_together
from tests.derived.variants import coupled, mirrored, reinterpreted, retyped

_FOLDER = "V1_3"
_SPEC = "formulas"
_ROWS = 2
"""Length of the first axis of tensors whose scales may differ along it."""

_PER_CHANNEL = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
_SCALE = 0.125
_CHANNEL_SCALES = SymmPerChannelQuantParams((0.125, 2.5), 0)
_ZERO_POINTS = {
    OperandType.TENSOR_QUANT8_ASYMM: 100,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: -28,
    OperandType.TENSOR_QUANT16_ASYMM: 40_000,
    OperandType.TENSOR_QUANT16_SYMM: 0,
    OperandType.TENSOR_QUANT8_SYMM: 0,
}

Parts: TypeAlias = tuple[list[Stored], list[Stored]]
"""Inputs and expected outputs."""


@cache
def derived_cases(directory: Path) -> tuple[Case, ...]:
    """Return cases for what the vectors below ``directory`` leave out."""
    missing = frozenset(all_pairs()) - pairs_with_vectors(directory)
    return tuple(derive(succeeding_cases(directory), missing))


def derive(templates: Iterable[Case], wanted: Set[Pair]) -> Iterator[Case]:
    """Yield cases that exercise wanted pairs, as far as the templates allow."""
    yield from computed(wanted)
    for case in templates:
        if is_single(case) and not case.relaxed and not case.multinomial_tolerance:
            yield from mirrored(case, wanted)
            yield from reinterpreted(case, wanted)
            yield from retyped(case, wanted)
            yield from coupled(case, wanted)


def computed(wanted: Set[Pair]) -> Iterator[Case]:
    """Yield a case for each wanted pair that has a formula here."""
    for pair in sorted(wanted):
        formula = _FORMULAS.get(pair.operation)
        parts = formula(*pair.types) if formula else None
        if parts is not None:
            yield _case(pair, *parts)


def _case(pair: Pair, inputs: list[Stored], outputs: list[Stored]) -> Case:
    indexes = tuple(range(len(inputs) + len(outputs)))
    read, written = indexes[: len(inputs)], indexes[len(inputs) :]
    operation = Operation(pair.operation, read, written)
    name = f"{_SPEC}_{pair}".lower()
    return put_together(_FOLDER, _SPEC, name, inputs + outputs, [operation])


def _dequantize(source: OperandType, target: OperandType) -> Parts:
    codes = _sample(source)
    scale = np.array(_SCALE)
    if source == _PER_CHANNEL:
        scale = np.array(_CHANNEL_SCALES.scales).reshape(_ROWS, 1)
    numbers = scale * (codes.astype(np.float64) - _ZERO_POINTS.get(source, 0))
    return [_input(source, codes)], [_output(target, numbers.astype(DTYPES[target]))]


def _divide(type_: OperandType) -> Parts | None:
    if type_ != OperandType.TENSOR_INT32:
        return None
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


def _magnitude(type_: OperandType) -> Parts:
    numbers = _sample(type_)
    return [_input(type_, numbers)], [_output(type_, np.abs(numbers))]


def _copy(source: OperandType, target: OperandType) -> Parts | None:
    if source != target:
        return None
    codes = _sample(source)
    return [_input(source, codes)], [_output(target, codes)]


def _rank(type_: OperandType) -> Parts:
    given = _sample(type_)
    rank = np.array(given.ndim, np.int32)
    return [_input(type_, given)], [_output(OperandType.INT32, rank)]


_FORMULAS: dict[int, Callable[..., Parts | None]] = {
    OperationType.DEQUANTIZE: _dequantize,
    OperationType.DIV: _divide,
    OperationType.ABS: _magnitude,
    OperationType.CAST: _copy,
    OperationType.RANK: _rank,
}


def _sample(type_: OperandType) -> Array:
    """Return floats of both signs, or integers that have every byte there is."""
    dtype = DTYPES[type_]
    if dtype.kind == "f":
        return np.linspace(-300, 299, 256).astype(dtype).reshape(_ROWS, 128)
    limit = 2 if dtype == np.bool_ else 256
    raw = np.resize(np.arange(limit, dtype=np.uint8), 256 * dtype.itemsize)
    return raw.view(dtype).reshape(_ROWS, 128)


def _input(type_: OperandType, value: Array) -> Stored:
    operand = _operand(type_, value.shape, OperandLifeTime.SUBGRAPH_INPUT)
    return Stored(operand, value)


def _output(type_: OperandType, value: Array) -> Stored:
    operand = _operand(type_, value.shape, OperandLifeTime.SUBGRAPH_OUTPUT)
    return Stored(operand, value)


def _operand(type_: OperandType, shape: Shape, lifetime: OperandLifeTime) -> Operand:
    return Operand(
        type_,
        shape,
        scale=_SCALE if type_ in _ZERO_POINTS else 0.0,
        zero_point=_ZERO_POINTS.get(type_, 0),
        lifetime=lifetime,
        extra_params=_CHANNEL_SCALES if type_ == _PER_CHANNEL else None,
    )
