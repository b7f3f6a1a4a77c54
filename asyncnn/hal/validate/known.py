"""Models that have been validated, so that none is twice.

What was validated stays valid, as long as nobody can change it: a model is remembered
if all that it consists of is unchangeable.
"""

from weakref import WeakValueDictionary

from asyncnn.hal.types import (
    HalVersion,
    Memory,
    Model,
    Operand,
    Operation,
    Subgraph,
)

_known: WeakValueDictionary[tuple[int, HalVersion], Model] = WeakValueDictionary()
"""By identity: to compare models by value would take as long as to validate them.

An entry dies with its model, before another one can get the same identity.
"""


def is_known(model: Model, version: HalVersion) -> bool:
    """Tell whether this very model is remembered."""
    return isinstance(model, Model) and _known.get((id(model), version)) is model


def remember(model: Model, version: HalVersion) -> None:
    """Let `is_known` know a valid model, while it lives, if it cannot change.

    The caller vouches for what lies within operands and operations.
    """
    if (
        isinstance(model, Model)
        and isinstance(model.operand_values, bytes)
        and isinstance(model.pools, tuple)
        and isinstance(model.extension_name_to_prefix, tuple)
        and isinstance(model.referenced, tuple)
        and all(map(_is_unchangeable_pool, model.pools))
        and all(map(_is_unchangeable, (model.main, *model.referenced)))
    ):
        _known[id(model), version] = model


def _is_unchangeable(subgraph: Subgraph) -> bool:
    parts = (
        subgraph.operands,
        subgraph.operations,
        subgraph.input_indexes,
        subgraph.output_indexes,
    )
    return (
        {*map(type, parts)} == {tuple}
        and {*map(type, subgraph.operands)} == {Operand}
        and {*map(type, subgraph.operations)} == {Operation}
    )


def _is_unchangeable_pool(pool: Memory) -> bool:
    if pool.buffer is None:
        return isinstance(pool.handle.fds, tuple)
    return isinstance(pool.buffer, memoryview)
