"""Builds operations briefly: bound ones for shape rules, model ones for checks."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from asyncnn.hal.operands import DTYPES
from asyncnn.hal.operations import check_operation, infer_shapes
from asyncnn.hal.operations.bound import BoundOperand, BoundOperation, Shape
from asyncnn.hal.operations.signature import BOOL, F32, FLOAT32, I32, INT32
from asyncnn.hal.types import (
    HalVersion,
    Operand,
    OperandType,
    Operation,
    OperationType,
    Subgraph,
)

Given: TypeAlias = tuple | list | bool | int | float | BoundOperand | None
"""A shape, an int32 tensor's value, a scalar, a whole operand, or an omitted one."""


def constant(type_: OperandType, value: object) -> BoundOperand:
    array = np.asarray(value, DTYPES[type_])
    return BoundOperand(type_, array.shape, value=array)


def operand_of(given: Given) -> BoundOperand | None:
    if given is None or isinstance(given, BoundOperand):
        return given
    if isinstance(given, tuple):
        return BoundOperand(F32, given)
    if isinstance(given, list):
        return constant(I32, given)
    if isinstance(given, bool):
        return constant(BOOL, given)
    return constant(INT32 if isinstance(given, int) else FLOAT32, given)


def bound(
    type_: OperationType, inputs: Sequence[Given], outputs: int = 1
) -> BoundOperation:
    return BoundOperation(
        type_, tuple(map(operand_of, inputs)), (BoundOperand(F32, None),) * outputs
    )


def shapes(
    type_: OperationType, inputs: Sequence[Given], outputs: int = 1
) -> tuple[Shape | None, ...]:
    return infer_shapes(bound(type_, inputs, outputs))


def check(
    type_: OperationType,
    inputs: Sequence[Operand],
    outputs: Sequence[Operand],
    version: HalVersion = HalVersion.AIDL_V4,
    referenced: Sequence[Subgraph] = (),
) -> HalVersion:
    count = len(inputs)
    operation = Operation(
        type_, tuple(range(count)), tuple(range(count, count + len(outputs)))
    )
    return check_operation(operation, [*inputs, *outputs], version, referenced)
