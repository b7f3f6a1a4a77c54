"""Writes formulas as HAL operations: terms are operands, or numbers for constants.

The HAL broadcasts in arithmetic and comparisons; `Algebra` finds the shapes.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from msgspec.structs import replace

from asyncnn.hal.operands import DTYPES
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    Dimensions,
    FusedActivationFunc,
    Operand,
    OperandType,
    OperationType,
)
from asyncnn.runtime.tflite.node import Node

Term: TypeAlias = int | float | Array
"""An operand by its index; a float, or an array, for a constant.

A whole number that is meant as a constant is written as a float, too.
"""


class Algebra:
    """Adds operations on operands of ``type_``, TENSOR_FLOAT32 or TENSOR_INT32."""

    def __init__(self, node: Node, type_: OperandType) -> None:
        self._node = node
        self._type = type_
        self._none = node.scalar(FusedActivationFunc.NONE)

    def constant(self, value: float | Array) -> int:
        """Add a constant."""
        array = np.atleast_1d(np.asarray(value, DTYPES[self._type]))
        return self._node.builder.constant(array, self._type)

    def shape(self, operand: int) -> Dimensions:
        """Return the dimensions of an operand."""
        return self._node.builder.operand(operand).dimensions

    def apply(
        self, type_: OperationType, *terms: Term, to: OperandType | None = None
    ) -> int:
        """Add an operation on elements, whose result is of type ``to``."""
        operands = [self._operand(term) for term in terms]
        dimensions = np.broadcast_shapes(*map(self.shape, operands))
        if type_ in _FUSED:
            operands.append(self._none)
        output = Operand(self._type if to is None else to, dimensions)
        return self._node.compute(type_, operands, output)

    def add(self, first: Term, second: Term) -> int:
        """Add ``first + second``."""
        return self.apply(OperationType.ADD, first, second)

    def subtract(self, first: Term, second: Term) -> int:
        """Add ``first - second``."""
        return self.apply(OperationType.SUB, first, second)

    def multiply(self, first: Term, second: Term) -> int:
        """Add ``first * second``."""
        return self.apply(OperationType.MUL, first, second)

    def divide(self, first: Term, second: Term) -> int:
        """Add ``first / second``, of integers the floor."""
        return self.apply(OperationType.DIV, first, second)

    def negate(self, operand: int) -> int:
        """Add ``-operand``."""
        return self.apply(OperationType.NEG, operand)

    def absolute(self, operand: int) -> int:
        """Add the absolute value."""
        return self.apply(OperationType.ABS, operand)

    def floor(self, operand: int) -> int:
        """Add the floor of floats."""
        return self.apply(OperationType.FLOOR, operand)

    def clamp(self, operand: int, low: Term, high: Term) -> int:
        """Add the nearest value within two bounds."""
        above = self.apply(OperationType.MAXIMUM, operand, low)
        return self.apply(OperationType.MINIMUM, above, high)

    def polynomial(self, operand: int, coefficients: Sequence[float]) -> int:
        """Add a polynomial, the coefficient of the highest power first."""
        highest, second, *rest = map(float, coefficients)
        result = self.add(self.multiply(operand, highest), second)
        for coefficient in rest:
            result = self.add(self.multiply(result, operand), coefficient)
        return result

    def compare(self, type_: OperationType, first: Term, second: Term) -> int:
        """Add a comparison; its result is of booleans."""
        return self.apply(type_, first, second, to=OperandType.TENSOR_BOOL8)

    def both(self, first: int, second: int) -> int:
        """Add the conjunction of booleans."""
        boolean = OperandType.TENSOR_BOOL8
        return self.apply(OperationType.LOGICAL_AND, first, second, to=boolean)

    def select(self, condition: int, first: Term, second: Term) -> int:
        """Add a choice of elements; all three are broadcast."""
        operands = [condition, self._operand(first), self._operand(second)]
        dimensions = np.broadcast_shapes(*map(self.shape, operands))
        broadcast = [self._node.broadcast(each, dimensions) for each in operands]
        like = replace(self._node.builder.operand(operands[1]), dimensions=dimensions)
        return self._node.compute(OperationType.SELECT, broadcast, like)

    def _operand(self, term: Term) -> int:
        return term if isinstance(term, int) else self.constant(term)


_FUSED = frozenset(
    {OperationType.ADD, OperationType.SUB, OperationType.MUL, OperationType.DIV}
)
"""Operations that take an activation."""
