"""Operand and operation types of extensions, once their meaning is known.

In a model such a type is a number: a prefix, which that model alone gives a meaning,
and the number within the extension. What a model's numbers stand for are the objects
defined here. They are integers themselves, so that they take the place of the numbers
wherever the HAL has a type, but greater than any number that a model can hold.

Source: HAL 1.2/types.hal (OperandType, OperationType, Extension).
"""

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np

from asyncnn.hal.types import Model, OperandType, OperationType

if TYPE_CHECKING:
    from asyncnn.hal.operations.signature import OperationSignature

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
    """An operand type; ``dtype`` is that of one element, scalars have just one."""

    dtype: np.dtype[Any]
    is_tensor: bool


class ExtensionOperationType(_ExtensionType):
    """An operation type, and what validation and shape inference know of it."""

    signature: "OperationSignature"


AnyOperandType: TypeAlias = OperandType | ExtensionOperandType
AnyOperationType: TypeAlias = OperationType | ExtensionOperationType
AnyExtensionType: TypeAlias = ExtensionOperandType | ExtensionOperationType


def extension_types_of(model: Model) -> Iterator[AnyExtensionType]:
    """Yield what is known of extensions in a resolved model, as often as it is used."""
    for subgraph in (model.main, *model.referenced):
        for type_ in (
            *(operand.type for operand in subgraph.operands),
            *(operation.type for operation in subgraph.operations),
        ):
            if isinstance(type_, AnyExtensionType):
                yield type_
