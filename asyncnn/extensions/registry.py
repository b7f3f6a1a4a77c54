"""The extensions of one device, and what models mean there."""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from asyncnn.errors import InvalidArgumentError
from asyncnn.extensions.extension import Extension
from asyncnn.hal import types as hal
from asyncnn.hal.types import (
    EXTENSION_TYPE_BITS,
    Model,
    Operand,
    Operation,
    Subgraph,
)


class Extensions:
    """What a device has of types beyond those of the HAL.

    :raises InvalidArgumentError: if two have the same name.
    """

    def __init__(self, extensions: Iterable[Extension] = ()) -> None:
        self._by_name: dict[str, Extension] = {}
        for extension in extensions:
            if extension.name in self._by_name:
                raise InvalidArgumentError(f"{extension.name} is given twice")
            self._by_name[extension.name] = extension

    def described(self) -> tuple[hal.Extension, ...]:
        """Return what the HAL says of them."""
        return tuple(extension.described() for extension in self._by_name.values())

    def versions(self, model: Model) -> tuple[str, ...]:
        """Return names and versions of those that ``model`` uses."""
        used = (
            self._by_name.get(entry.name) for entry in model.extension_name_to_prefix
        )
        return tuple(f"{each.name} {each.version}" for each in used if each)

    def resolved(self, model: Model) -> Model:
        """Return a validated model with types instead of the numbers for them.

        Numbers that are nothing of these extensions stay.
        """
        known = {
            entry.prefix: self._by_name[entry.name]
            for entry in model.extension_name_to_prefix
            if entry.name in self._by_name
        }
        if not known:
            return model
        return replace(
            model,
            main=_resolved_subgraph(model.main, known),
            referenced=tuple(
                _resolved_subgraph(subgraph, known) for subgraph in model.referenced
            ),
        )


NO_EXTENSIONS = Extensions()
"""Those of a device that has none."""


def _resolved_subgraph(subgraph: Subgraph, known: Mapping[int, Extension]) -> Subgraph:
    return replace(
        subgraph,
        operands=tuple(_resolved_operand(each, known) for each in subgraph.operands),
        operations=tuple(
            _resolved_operation(each, known) for each in subgraph.operations
        ),
    )


def _resolved_operand(operand: Operand, known: Mapping[int, Extension]) -> Operand:
    extension = known.get(operand.type >> EXTENSION_TYPE_BITS)
    if extension is None:
        return operand
    type_ = extension.operand_types.get(operand.type & hal.BASE_MAX)
    return operand if type_ is None else replace(operand, type=type_)


def _resolved_operation(
    operation: Operation, known: Mapping[int, Extension]
) -> Operation:
    extension = known.get(operation.type >> EXTENSION_TYPE_BITS)
    if extension is None:
        return operation
    type_ = extension.operation_types.get(operation.type & hal.BASE_MAX)
    return operation if type_ is None else replace(operation, type=type_)
