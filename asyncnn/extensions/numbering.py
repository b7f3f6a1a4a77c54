"""Writes models with types of extensions as the HAL has them: with numbers."""

from itertools import count

from msgspec.structs import replace

from asyncnn.hal.extensions import AnyExtensionType, extension_types_of
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
    used = dict.fromkeys(type_.extension for type_ in extension_types_of(model))
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
    if isinstance(type_, AnyExtensionType):
        return prefixes[type_.extension] << EXTENSION_TYPE_BITS | type_.number
    return type_
