"""An operation together with all that is known of its operands.

Shape rules read it to find output shapes, kernels to prepare themselves. A value that
is not known yet (it comes with the request, or another operation computes it) is asked
for with `BoundOperand.require_value`; the engine then tries again at execution, when
everything is known.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operands import AnyOperandType, AnyOperationType, dtype_of
from asyncnn.hal.types import (
    FusedActivationFunc,
    SymmPerChannelQuantParams,
)

Array: TypeAlias = NDArray[Any]
Shape: TypeAlias = tuple[int, ...]
"""Concrete axis lengths; here, unlike in HAL dimensions, 0 means empty."""


class OperationFailedError(GeneralFailureError):
    """An operand has a value or shape that the operation cannot work with."""


class ValueNeededError(Exception):
    """A shape rule or kernel needs the value of an operand that is not constant."""


class BoundOperand(msgspec.Struct, frozen=True, eq=False):
    """An operand of known type; ``shape`` is None and ``value`` is None while open.

    ``value`` has the dtype of the type and the shape ``shape`` (scalars: rank 0).
    ``opaque_params`` are what the model says of an operand of an extension's type.
    """

    type: AnyOperandType
    shape: Shape | None
    scale: float = 0.0
    zero_point: int = 0
    channel_quant: SymmPerChannelQuantParams | None = None
    value: Array | None = None
    opaque_params: bytes = b""

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of the stored elements."""
        return dtype_of(self.type)

    def require_shape(self) -> Shape:
        """Return the shape.

        :raises ValueNeededError: if it is not known before execution.
        """
        if self.shape is None:
            raise ValueNeededError
        return self.shape

    def require_value(self) -> Array:
        """Return the value.

        :raises ValueNeededError: if it is not known before execution.
        """
        if self.value is None:
            raise ValueNeededError
        return self.value


class BoundOperation(msgspec.Struct, frozen=True, eq=False):
    """An operation with its operands; None stands for an omitted input.

    Trailing inputs that the model does not list are absent from ``inputs``; `has`
    tells for both. ``relaxed`` allows float16 precision for float32 arithmetic.
    ``packed`` are the arrays that `pack` has made, by name.
    """

    type: AnyOperationType
    inputs: tuple[BoundOperand | None, ...]
    outputs: tuple[BoundOperand, ...]
    relaxed: bool = False
    packed: dict[str, tuple[Array, ...]] = {}

    def pack(
        self, name: str, make: Callable[[], tuple[Array, ...]]
    ) -> tuple[Array, ...]:
        """Return the arrays of ``name``, made once; they may come from a cache.

        They must follow from the operation alone. A cache can hold wrong numbers, but
        their dtypes and shapes are right.
        """
        arrays = self.packed.get(name)
        if arrays is None:
            arrays = self.packed[name] = make()
        return arrays

    def has(self, index: int) -> bool:
        """Tell whether input ``index`` is present and not omitted."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def input(self, index: int) -> BoundOperand:
        """Return input ``index``.

        :raises OperationFailedError: if it is absent or omitted.
        """
        operand = self.inputs[index] if index < len(self.inputs) else None
        if operand is None:
            raise OperationFailedError(
                f"{self.type.name} needs input {index}, which is omitted"
            )
        return operand

    def shape(self, index: int) -> Shape:
        """Return the shape of input ``index``.

        :raises ValueNeededError: if it is not known before execution.
        """
        return self.input(index).require_shape()

    def value(self, index: int) -> Array:
        """Return the value of input ``index`` as an array.

        :raises ValueNeededError: if it is not known before execution.
        """
        return self.input(index).require_value()

    def integer(self, index: int, default: int | None = None) -> int:
        """Return scalar input ``index`` as an int, ``default`` if it is absent."""
        if default is not None and not self.has(index):
            return default
        return int(self.value(index).reshape(()))

    def real(self, index: int, default: float | None = None) -> float:
        """Return scalar input ``index`` as a float, ``default`` if it is absent."""
        if default is not None and not self.has(index):
            return default
        return float(self.value(index).reshape(()))

    def boolean(self, index: int, default: bool | None = None) -> bool:
        """Return scalar input ``index`` as a bool, ``default`` if it is absent."""
        if default is not None and not self.has(index):
            return default
        return bool(self.value(index).reshape(()))

    def activation(self, index: int) -> FusedActivationFunc:
        """Return the fused activation in scalar input ``index``.

        :raises OperationFailedError: if it is not a `FusedActivationFunc`.
        """
        code = self.integer(index)
        try:
            return FusedActivationFunc(code)
        except ValueError:
            raise OperationFailedError(
                f"{self.type.name}: {code} is not a fused activation (0 to 3)"
            ) from None

    def axis(self, index: int, rank: int, default: int | None = None) -> int:
        """Return the axis in scalar input ``index`` within ``[0, rank)``.

        :raises OperationFailedError: if it is outside ``[-rank, rank)``.
        """
        axis = self.integer(index, default)
        if not -rank <= axis < rank:
            raise OperationFailedError(
                f"{self.type.name}: axis {axis} is outside of rank {rank}"
            )
        return axis % rank


ShapeRule: TypeAlias = Callable[[BoundOperation], tuple[Shape | None, ...]]
"""Output shapes from the inputs; None for one that only the computed data tell.

:raises ValueNeededError: if a value or shape is needed that is not known yet.
:raises OperationFailedError: if the operands do not fit together.
"""
