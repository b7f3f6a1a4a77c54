"""The extensions of one device: what the numbers of a model mean there, and checks.

`Extensions.resolved` puts types in place of numbers; `check_extended` checks what only
the extension knows of its operands and operations.

Source: HAL 1.2/types.hal (OperandType, OperationType, Extension).
"""

from collections.abc import Iterable, Mapping
from functools import partial

from asyncnn.extensions.extension import BROUGHT, Extension, load_extension
from asyncnn.extensions.names import retyped
from asyncnn.hal import types as hal
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.operands import (
    ExtensionOperandType,
    ExtensionOperationType,
    has_unknown_dimensions,
    is_extension_type,
    size_of_data_bytes,
)
from asyncnn.hal.operations import check_operation
from asyncnn.hal.types import (
    EXTENSION_TYPE_BITS,
    HalVersion,
    Model,
    Operand,
    OperandLifeTime,
    Operation,
    Subgraph,
)


class Extensions:
    """What a device has of types beyond the HAL's.

    :raises InvalidArgumentError: if two have the same name.
    """

    def __init__(self, extensions: Iterable[Extension] = ()) -> None:
        self._by_name: dict[str, Extension] = {}
        for extension in extensions:
            if extension.name in self._by_name:
                raise InvalidArgumentError(f"{extension.name} is given twice")
            self._by_name[extension.name] = extension

    def extended(self, extension: Extension) -> "Extensions":
        """Return the same and one more; it takes the place of one of its name."""
        others = {**self._by_name, extension.name: extension}
        return Extensions(others.values())

    def described(self) -> tuple[hal.Extension, ...]:
        """Return what the HAL says of them."""
        given = tuple(extension.described() for extension in self._by_name.values())
        others = sorted(BROUGHT.keys() - self._by_name.keys())
        return (*given, *(hal.Extension(name, ()) for name in others))

    def versions(self, model: Model) -> tuple[str, ...]:
        """Return names and versions of those that ``model`` uses."""
        used = (self._find(entry.name) for entry in model.extension_name_to_prefix)
        return tuple(f"{each.name} {each.version}" for each in used if each)

    def resolved(self, model: Model) -> Model:
        """Return a validated model with types instead of the numbers for them.

        Numbers that are nothing of these extensions stay.
        """
        found = {
            entry.prefix: self._find(entry.name)
            for entry in model.extension_name_to_prefix
        }
        known = {prefix: each for prefix, each in found.items() if each is not None}
        if not known:
            return model

        def of(kind: str, number: int) -> int:
            extension = known.get(number >> EXTENSION_TYPE_BITS)
            types: Mapping[int, int] = getattr(extension, kind, {})
            return types.get(number & hal.BASE_MAX, number)

        return retyped(
            model, partial(of, "operand_types"), partial(of, "operation_types")
        )

    def _find(self, name: str) -> Extension | None:
        if name in BROUGHT and name not in self._by_name:
            return load_extension(name)
        return self._by_name.get(name)


NO_EXTENSIONS = Extensions()
"""For a device that has none but what asyncnn itself brings."""


_CONSTANTS = frozenset(
    {OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE}
)
_NEWEST = max(HalVersion)


def check_extended(model: Model) -> None:
    """Check all that a resolved model has of extensions.

    :raises InvalidArgumentError: if a rule of an extension is broken.
    :raises GeneralFailureError: if an extension, or a type of it, is not known.
    """
    if not model.extension_name_to_prefix:
        return
    for subgraph in (model.main, *model.referenced):
        for index, operand in enumerate(subgraph.operands):
            _check_operand(model, index, operand)
        for operation in subgraph.operations:
            _check_operation(model, subgraph, operation)


def check_extended_operation(
    model: Model, subgraph: Subgraph, operation: Operation
) -> None:
    """Check one operation of a resolved model, and the operands that it uses.

    :raises InvalidArgumentError: if a rule of an extension is broken.
    :raises GeneralFailureError: if an extension, or a type of it, is not known.
    """
    for index in (*operation.inputs, *operation.outputs):
        _check_operand(model, index, subgraph.operands[index])
    _check_operation(model, subgraph, operation)


def _check_operand(model: Model, index: int, operand: Operand) -> None:
    type_ = operand.type
    if not isinstance(type_, ExtensionOperandType):
        _check_known(model, type_, "operand")
        return
    what = f"operand {index} ({type_.name})"
    if operand.dimensions and not type_.is_tensor:
        raise InvalidArgumentError(f"{what} is a scalar, but has dimensions")
    size = size_of_data_bytes(type_, operand.dimensions)
    if operand.lifetime not in _CONSTANTS:
        return
    if type_.is_tensor and has_unknown_dimensions(operand):
        raise InvalidArgumentError(f"{what} is a constant with open dimensions")
    if operand.location.length != size:
        raise InvalidArgumentError(
            f"{what} is a constant of {operand.location.length} bytes, expected {size}"
        )


def _check_operation(model: Model, subgraph: Subgraph, operation: Operation) -> None:
    if isinstance(operation.type, ExtensionOperationType):
        check_operation(operation, subgraph.operands, _NEWEST, model.referenced)
    else:
        _check_known(model, operation.type, "operation")


def _check_known(model: Model, type_: int, kind: str) -> None:
    if not is_extension_type(type_):
        return
    prefix = type_ >> EXTENSION_TYPE_BITS
    names = {entry.prefix: entry.name for entry in model.extension_name_to_prefix}
    name, number = names[prefix], type_ - (prefix << EXTENSION_TYPE_BITS)
    raise GeneralFailureError(
        f"{kind} type {number} of extension {name} is not known to this device",
        hint="open the device with the extension, or a newer version of it",
    )
