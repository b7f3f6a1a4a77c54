"""Names and numbers of extension types: models of the HAL have numbers, people names.

`numbered` writes a model with types of extensions as the HAL has it. Names go with a
model, in files as well, so that it can be shown and explained where its extensions are
not installed.

Source: HAL 1.2/types.hal (Model.ExtensionNameAndPrefix).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count, starmap
from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operands import (
    AnyExtensionType,
    ExtensionOperandType,
    extension_types_of,
)
from asyncnn.hal.types import (
    BASE_MAX,
    EXTENSION_TYPE_BITS,
    ExtensionNameAndPrefix,
    Model,
    Operand,
    Operation,
    Subgraph,
)
from asyncnn.hal.validate.rules import operand_type_name, operation_type_name

T = TypeVar("T", Operand, Operation)

TYPE_NAME = r"\A[A-Za-z0-9_]{1,100}\Z"
"""What the name of a type looks like."""

TypeName: TypeAlias = Annotated[str, msgspec.Meta(pattern=TYPE_NAME)]


class ExtensionNames(msgspec.Struct, frozen=True, omit_defaults=True):
    """Names of types of one extension, by their numbers there."""

    extension: str
    operand_types: dict[int, TypeName] = {}
    operation_types: dict[int, TypeName] = {}


def names_in(model: Model) -> tuple[ExtensionNames, ...]:
    """Return the names of all types that a resolved model uses of extensions."""
    names: dict[str, ExtensionNames] = {}
    for type_ in sorted(extension_types_of(model), key=lambda each: each.number):
        known = names.setdefault(
            type_.extension, ExtensionNames(type_.extension, {}, {})
        )
        is_operand = isinstance(type_, ExtensionOperandType)
        of_kind = known.operand_types if is_operand else known.operation_types
        of_kind[type_.number] = type_.name
    return tuple(names[extension] for extension in sorted(names))


def joined(
    first: Iterable[ExtensionNames], second: Iterable[ExtensionNames]
) -> tuple[ExtensionNames, ...]:
    """Return the names that are in either.

    :raises InvalidArgumentError: if a type has two names: one of them is mistaken.
    """
    names = {each.extension: each for each in first}
    for each in second:
        known = names.get(each.extension, each)
        names[each.extension] = ExtensionNames(
            each.extension,
            _joined(each.extension, known.operand_types, each.operand_types),
            _joined(each.extension, known.operation_types, each.operation_types),
        )
    return tuple(names[extension] for extension in sorted(names))


class Vocabulary:
    """Words for the types of one model, such as ``com.example.spectral/MAGNITUDE``.

    A type whose name is not known has its number instead.
    """

    def __init__(self, model: Model, names: Sequence[ExtensionNames]) -> None:
        self._extensions = {
            entry.prefix: entry.name for entry in model.extension_name_to_prefix
        }
        self._operands = {each.extension: each.operand_types for each in names}
        self._operations = {each.extension: each.operation_types for each in names}

    def extension_of(self, type_: int) -> str | None:
        """Return the name of the extension of a type; None if the model names none."""
        return self._extensions.get(type_ >> EXTENSION_TYPE_BITS)

    def operand_type(self, type_: int) -> str:
        """Return the name of an operand type, of an extension or not."""
        return self._name(type_, self._operands) or operand_type_name(type_)

    def operation_type(self, type_: int) -> str:
        """Return the name of an operation type, of an extension or not."""
        return self._name(type_, self._operations) or operation_type_name(type_)

    def _name(self, type_: int, names: Mapping[str, Mapping[int, str]]) -> str:
        extension = self.extension_of(type_)
        if extension is None:
            return ""
        number = type_ & BASE_MAX
        return f"{extension}/{names.get(extension, {}).get(number, number)}"


def _joined(
    extension: str, first: Mapping[int, str], second: Mapping[int, str]
) -> dict[int, str]:
    for number in first.keys() & second.keys():
        if first[number] != second[number]:
            raise InvalidArgumentError(
                f"type {number} of {extension} is called both {first[number]} and "
                f"{second[number]}",
                hint="another version of the extension made the model",
            )
    return dict(sorted({**first, **second}.items()))


def numbered(model: Model) -> Model:
    """Return the model with numbers for types, and prefixes for their extensions.

    Extensions that have a prefix already keep it.
    """
    used = dict.fromkeys([type_.extension for type_ in extension_types_of(model)])
    if not used:
        return model
    prefixes = {entry.name: entry.prefix for entry in model.extension_name_to_prefix}
    for name in used:
        if name not in prefixes:
            # Prefix 0 would make them numbers of the HAL itself.
            taken = frozenset(prefixes.values())
            prefixes[name] = next(free for free in count(1) if free not in taken)

    def number(type_: int) -> int:
        if isinstance(type_, AnyExtensionType):
            return prefixes[type_.extension] << EXTENSION_TYPE_BITS | type_.number
        return type_

    named = tuple(starmap(ExtensionNameAndPrefix, prefixes.items()))
    return retyped(replace(model, extension_name_to_prefix=named), number, number)


def _changed(each: T, of_type: Callable[[int], int]) -> T:
    type_ = of_type(each.type)
    return each if type_ is each.type else replace(each, type=type_)


def retyped(
    model: Model, of_operand: Callable[[int], int], of_operation: Callable[[int], int]
) -> Model:
    """Return the model with other types of its operands and operations.

    What has the same is the same object: most have, of which there are many.
    """

    def of(subgraph: Subgraph) -> Subgraph:
        return replace(
            subgraph,
            operands=tuple([_changed(o, of_operand) for o in subgraph.operands]),
            operations=tuple([_changed(o, of_operation) for o in subgraph.operations]),
        )

    referenced = tuple(map(of, model.referenced))
    return replace(model, main=of(model.main), referenced=referenced)
