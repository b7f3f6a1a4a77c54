"""Writes models with types of extensions as the HAL has them: with numbers."""

from collections.abc import Iterable
from itertools import count

from msgspec.structs import replace

from asyncnn.hal.extensions import ExtensionOperandType, ExtensionOperationType
from asyncnn.hal.types import (
    EXTENSION_TYPE_BITS,
    ExtensionNameAndPrefix,
    Model,
    Subgraph,
)


def numbered(model: Model) -> Model:
    """Return the model with numbers for types, and prefixes for their extensions.

    Extensions that have a prefix already keep it.
    """
    subgraphs = (model.main, *model.referenced)
    used = dict.fromkeys(name for graph in subgraphs for name in _names(graph))
    if not used:
        return model
    prefixes = {entry.name: entry.prefix for entry in model.extension_name_to_prefix}
    for name in used:
        if name not in prefixes:
            # Prefix 0 would make the numbers those of the HAL itself.
            taken = frozenset(prefixes.values())
            prefixes[name] = next(free for free in count(1) if free not in taken)
    return replace(
        model,
        main=_numbered_subgraph(model.main, prefixes),
        referenced=tuple(
            _numbered_subgraph(graph, prefixes) for graph in model.referenced
        ),
        extension_name_to_prefix=tuple(
            ExtensionNameAndPrefix(name, prefix) for name, prefix in prefixes.items()
        ),
    )


def _names(subgraph: Subgraph) -> Iterable[str]:
    types = [operand.type for operand in subgraph.operands]
    types += [operation.type for operation in subgraph.operations]
    for type_ in types:
        if isinstance(type_, ExtensionOperandType | ExtensionOperationType):
            yield type_.extension


def _numbered_subgraph(subgraph: Subgraph, prefixes: dict[str, int]) -> Subgraph:
    return replace(
        subgraph,
        operands=tuple(
            replace(operand, type=_number(operand.type, prefixes))
            for operand in subgraph.operands
        ),
        operations=tuple(
            replace(operation, type=_number(operation.type, prefixes))
            for operation in subgraph.operations
        ),
    )


def _number(type_: int, prefixes: dict[str, int]) -> int:
    if isinstance(type_, ExtensionOperandType | ExtensionOperationType):
        return prefixes[type_.extension] << EXTENSION_TYPE_BITS | type_.number
    return type_
