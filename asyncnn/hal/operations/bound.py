"""An operation together with all that is known of its operands.

Shape rules read it to find output shapes, kernels to prepare themselves. A value that
is not known yet (it comes with the request, or another operation computes it) is asked
for with `BoundOperand.require_value`; the engine then tries again at execution, when
everything is known.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operands import AnyOperandType, AnyOperationType, dtype_of
from asyncnn.hal.types import FusedActivationFunc, SymmPerChannelQuantParams

Array: TypeAlias = NDArray[Any]
Shape: TypeAlias = tuple[int, ...]
"""Concrete axis lengths; here, unlike in HAL dimensions, 0 means empty."""


NCHW_TO_NHWC = (0, 2, 3, 1)
"""Which axis of a channels-first image is which of a channels-last one."""

_Scalar = TypeVar("_Scalar", int, float, bool)
_Noted = TypeVar("_Noted")

_ACTIVATIONS = frozenset(FusedActivationFunc)


class OperationFailedError(GeneralFailureError):
    """An operand has a value or shape that the operation cannot work with."""


class ValueNeededError(Exception):
    """A shape rule or kernel needs the value of an operand that is not constant."""


class BoundOperand(msgspec.Struct, frozen=True, eq=False, gc=False):
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


class BoundOperation(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """An operation with its operands; None stands for an omitted input.

    Trailing inputs that the model does not list are absent from ``inputs``; `has`
    is false for both. ``relaxed`` allows float16 precision for float32 arithmetic.
    ``packed`` are the arrays that `pack` has made, by name; ``noted`` is what `note`
    has. Copies with other outputs share both. It ``makes_way`` if its executions are to
    keep nobody else waiting.
    """

    type: AnyOperationType
    inputs: tuple[BoundOperand | None, ...]
    outputs: tuple[BoundOperand, ...]
    relaxed: bool = False
    packed: dict[str, tuple[Array, ...]] = {}
    noted: dict[str, tuple[object, Any]] = {}
    makes_way: bool = False

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

    def note(self, name: str, read: Callable[[], _Noted]) -> _Noted:
        """Return what ``read`` finds in the inputs, which it is called for once."""
        noted = self.noted.get(name)
        if noted is None or noted[0] is not self.inputs:
            noted = self.noted[name] = self.inputs, read()
        found: _Noted = noted[1]
        return found

    def has(self, index: int) -> bool:
        """Return whether input ``index`` is present and not omitted."""
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
        element = self._element(index)
        return int(element) if element is not None else self._default(index, default)

    def real(self, index: int, default: float | None = None) -> float:
        """Return scalar input ``index`` as a float, ``default`` if it is absent."""
        element = self._element(index)
        return float(element) if element is not None else self._default(index, default)

    def boolean(self, index: int, default: bool | None = None) -> bool:
        """Return scalar input ``index`` as a bool, ``default`` if it is absent."""
        element = self._element(index)
        return bool(element) if element is not None else self._default(index, default)

    def _element(self, index: int) -> Any:
        """Return the value of scalar input ``index``, None if it is absent."""
        operand = self.inputs[index] if index < len(self.inputs) else None
        if operand is None:
            return None
        if operand.value is None:
            raise ValueNeededError
        return operand.value.item()

    def _default(self, index: int, default: _Scalar | None) -> _Scalar:
        """Return what an absent input counts as; without that, it is an error."""
        if default is None:
            self.input(index)
        assert default is not None
        return default

    def activation(self, index: int) -> FusedActivationFunc:
        """Return the fused activation in scalar input ``index``.

        :raises OperationFailedError: if it is not a `FusedActivationFunc`.
        """
        code = self.integer(index)
        self.require(code in _ACTIVATIONS, f"{code} is not a fused activation (0 to 3)")
        return FusedActivationFunc(code)

    def axis(self, index: int, rank: int, default: int | None = None) -> int:
        """Return the axis in scalar input ``index`` within ``[0, rank)``.

        :raises OperationFailedError: if it is outside ``[-rank, rank)``.
        """
        axis = self.integer(index, default)
        self.require(-rank <= axis < rank, f"axis {axis} is outside of rank {rank}")
        return axis % rank

    def require(self, condition: bool, message: str) -> None:
        """Check a rule that operands have to meet.

        :raises OperationFailedError: if ``condition`` is false.
        """
        if not condition:
            raise OperationFailedError(f"{self.type.name}: {message}")

    def require_if_known(
        self, index: int, legal: Callable[[float], bool], message: str
    ) -> None:
        """Check a scalar that shapes do not depend on, if its value is known yet.

        :raises OperationFailedError: if it is known and not ``legal``.
        """
        if self.has(index) and self.input(index).value is not None:
            self.require(legal(self.real(index)), message)

    def shape_of_rank(self, index: int, *ranks: int) -> Shape:
        """Return the shape of input ``index``, whose rank is one of ``ranks``.

        :raises OperationFailedError: if its rank is another one.
        """
        shape = self.shape(index)
        if len(shape) not in ranks:
            expected = " or ".join(map(str, ranks))
            message = f"input {index} has rank {len(shape)}, expected {expected}"
            raise OperationFailedError(f"{self.type.name}: {message}")
        return shape

    def image_shape(self, nchw: bool) -> Shape:
        """Return the shape of input 0 as [N, H, W, C], whatever its layout."""
        shape = self.shape_of_rank(0, 4)
        return tuple(shape[axis] for axis in NCHW_TO_NHWC) if nchw else shape

    def check_shape(self, index: int, expected: Shape, name: str) -> None:
        """Check that input ``index``, called ``name``, has the shape ``expected``.

        :raises OperationFailedError: if it has another one.
        """
        actual = self.shape(index)
        if actual != expected:
            message = f"has shape {list(actual)}, expected {list(expected)}"
            raise OperationFailedError(f"{self.type.name}: {name} {message}")

    def integers(self, index: int) -> list[int]:
        """Return the elements of the int32 tensor ``index`` in row-major order."""
        return [int(element) for element in self.value(index).reshape(-1)]

    def integers_of_length(self, index: int, length: int) -> list[int]:
        """Return the elements of the one-axis int32 tensor ``index``.

        :raises OperationFailedError: if it has not exactly ``length`` elements.
        """
        self.check_shape(index, (length,), f"input {index}")
        return self.integers(index)

    def normalized_axes(self, index: int, rank: int) -> set[int]:
        """Return the axes in the int32 tensor ``index``, each within ``[0, rank)``.

        :raises OperationFailedError: if one is outside ``[-rank, rank)``.
        """
        self.shape_of_rank(index, 1)
        axes = self.integers(index)
        for axis in axes:
            self.require(-rank <= axis < rank, f"axis {axis} is outside rank {rank}")
        return {axis % rank for axis in axes}

    def whole_quotient(self, size: int, divisor: int, what: str) -> int:
        """Return ``size / divisor``.

        :raises OperationFailedError: if that is not a whole number.
        """
        is_whole = divisor > 0 and size % divisor == 0
        self.require(is_whole, f"{what} {size} is not divisible by {divisor}")
        return size // divisor


ShapeRule: TypeAlias = Callable[[BoundOperation], tuple[Shape | None, ...]]
"""Output shapes from the inputs; None for one that only the computed data show.

:raises ValueNeededError: if a value or shape is needed that is not known yet.
:raises OperationFailedError: if the operands do not fit together.
"""
