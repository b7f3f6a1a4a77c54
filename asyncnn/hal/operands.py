"""Operand types: types of extensions, dtypes, sizes, and how dimensions combine.

In a model the type of an extension is a number: a prefix, which that model alone gives
a meaning, and the number within the extension. What it stands for is an object of one
of the classes below. They are integers themselves, so that they take the place of the
number wherever the HAL has a type, but greater than any number a model can hold.

Source: HAL 1.2/types.hal (Extension), 1.3/types.hal (OperandType, OperationType) and
the rules of its validation utilities.
"""

import math
from collections.abc import Sequence
from itertools import compress, count
from typing import Any, Self, TypeAlias

import numpy as np

from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.types import (
    BASE_MAX,
    Dimensions,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
)

_tokens = count(1 << 32)


class _ExtensionType(int):
    """Something that ``extension`` calls ``name``, and models by ``number``."""

    extension: str
    name: str
    number: int

    def __new__(cls, extension: str, name: str, number: int) -> Self:
        symbol = super().__new__(cls, next(_tokens))
        symbol.extension = extension
        symbol.name = name
        symbol.number = number
        return symbol

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.extension} {self.name}>"

    __str__ = __repr__


class ExtensionOperandType(_ExtensionType):
    """An operand type; ``dtype`` is one element's, scalars have just one."""

    dtype: np.dtype[Any]
    is_tensor: bool


class ExtensionOperationType(_ExtensionType):
    """An operation type, and what validation and shape inference know of it."""

    signature: object


AnyOperandType: TypeAlias = OperandType | ExtensionOperandType
AnyOperationType: TypeAlias = OperationType | ExtensionOperationType
AnyExtensionType: TypeAlias = ExtensionOperandType | ExtensionOperationType


def extension_types_of(model: Model) -> list[AnyExtensionType]:
    """Return what is known of extensions in a resolved model, each as often as used."""
    found: list[AnyExtensionType] = []
    for subgraph in (model.main, *model.referenced):
        types: list[int] = [each.type for each in subgraph.operands]
        types += [each.type for each in subgraph.operations]
        found += [type_ for type_ in types if isinstance(type_, AnyExtensionType)]
    return found


_DTYPES = {
    "float32": "FLOAT32 TENSOR_FLOAT32",
    "float16": "FLOAT16 TENSOR_FLOAT16",
    "int32": "INT32 TENSOR_INT32",
    "uint32": "UINT32",
    "bool": "BOOL TENSOR_BOOL8",
    "uint8": "TENSOR_QUANT8_ASYMM OEM TENSOR_OEM_BYTE",
    "int8": "TENSOR_QUANT8_SYMM TENSOR_QUANT8_SYMM_PER_CHANNEL "
    "TENSOR_QUANT8_ASYMM_SIGNED",
    "int16": "TENSOR_QUANT16_SYMM",
    "uint16": "TENSOR_QUANT16_ASYMM",
}
DTYPES: dict[int, np.dtype[Any]] = {
    OperandType[name]: np.dtype(dtype)
    for dtype, names in _DTYPES.items()
    for name in names.split()
}
"""NumPy dtype of one stored element, by the HAL's own types; SUBGRAPH has none."""

_ELEMENT_SIZES = {type_: dtype.itemsize for type_, dtype in DTYPES.items()}
_ELEMENT_SIZES[OperandType.OEM] = 0

SCALAR_TYPES = frozenset(
    each for each in OperandType if each in DTYPES and "TENSOR" not in each.name
)
"""Types whose operands have rank 0 (SUBGRAPH is neither scalar nor tensor)."""

QUANT8_TYPES = frozenset(
    {OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED}
)


def is_extension_type(type_: int) -> bool:
    """Return whether an operand or operation type belongs to an extension."""
    return type_ > BASE_MAX


def is_opaque_type(type_: int) -> bool:
    """Return whether it is an extension's operand type of which nothing is known."""
    return type_ > BASE_MAX and not isinstance(type_, ExtensionOperandType)


def is_scalar(type_: int) -> bool:
    """Return whether operands of ``type_`` have rank 0."""
    if isinstance(type_, ExtensionOperandType):
        return not type_.is_tensor
    return type_ in SCALAR_TYPES


def dtype_of(type_: int) -> np.dtype[Any]:
    """Return the NumPy dtype of one stored element.

    :raises InvalidArgumentError: if there is none, or it is an opaque type.
    """
    if isinstance(type_, ExtensionOperandType):
        return type_.dtype
    try:
        return DTYPES[type_]
    except KeyError:
        raise InvalidArgumentError(f"operand type {type_:#x} is not known") from None


def is_tensor(type_: int) -> bool:
    """Return whether ``type_`` is a tensor type of the HAL itself."""
    return type_ in DTYPES and type_ not in SCALAR_TYPES


def element_size_bytes(type_: int) -> int:
    """Return the bytes of one element; 0 for SUBGRAPH, OEM and opaque types."""
    if isinstance(type_, ExtensionOperandType):
        return type_.dtype.itemsize
    return _ELEMENT_SIZES.get(type_, 0)


def has_unknown_dimensions(operand: Operand) -> bool:
    """Return whether a tensor operand leaves its rank or an axis open."""
    return not operand.dimensions or 0 in operand.dimensions


def size_of_data_bytes(type_: int, dimensions: Dimensions) -> int:
    """Return the bytes of a value of this type, 0 if any axis or the rank is unknown.

    :raises InvalidArgumentError: if the size does not fit in 32 bits.
    """
    size = element_size_bytes(type_)
    if not is_scalar(type_):
        size *= math.prod(dimensions) if dimensions else 0
    if size > 0xFFFFFFFF:
        raise InvalidArgumentError(
            f"dimensions {list(dimensions)} overflow the 32-bit size of data"
        )
    return size


def combine_dimensions(first: Dimensions, second: Dimensions) -> Dimensions:
    """Merge what two descriptions say of one tensor; unknown gives way to known.

    :raises InvalidArgumentError: if ranks or known axes differ.
    """
    if not first or not second:
        return first or second
    if len(first) != len(second):
        raise InvalidArgumentError(
            f"rank {len(first)} of {list(first)} differs from "
            f"rank {len(second)} of {list(second)}"
        )
    for axis, (a, b) in enumerate(zip(first, second, strict=True)):
        if a and b and a != b:
            raise InvalidArgumentError(
                f"axis {axis} is {a} in {list(first)} but {b} in {list(second)}"
            )
    return tuple(a or b for a, b in zip(first, second, strict=True))


def has_lengths(shape: Dimensions, dimensions: Dimensions) -> bool:
    """Return whether a shape has the lengths of dimensions that are not open."""
    fixed = [*filter(None, dimensions)]
    return len(shape) == len(dimensions) and [*compress(shape, dimensions)] == fixed


def check_declared(
    operand: Operand, shape: Dimensions, type_: AnyOperationType
) -> None:
    """Check a computed shape against the dimensions that the model declares.

    :raises GeneralFailureError: if the rank or a declared axis differs.
    """
    declared = operand.dimensions
    if declared and not has_lengths(shape, declared):
        raise GeneralFailureError(
            f"{type_.name} gives shape {list(shape)}, "
            f"but the model declares {list(declared)}"
        )


def bodies_of(operation: Operation, operands: Sequence[Operand]) -> list[int]:
    """Return the numbers of the subgraphs that an operation, an IF or WHILE, runs."""
    given = [operands[index] for index in operation.inputs]
    body = OperandLifeTime.SUBGRAPH
    return [each.location.offset for each in given if each.lifetime == body]
