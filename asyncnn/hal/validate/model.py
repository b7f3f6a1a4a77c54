"""Checks whole models: rules M1 to M16.

Everything that later rules index with is checked first, for all subgraphs; signatures
and execution order follow. The work is linear in the size of the model. A model that
was found valid and cannot change since is remembered for as long as it lives.

Source: HAL 1.0 to 1.3/types.hal (Model) and 1.3/IDevice.hal (prepareModel_1_3).
"""

import re
from collections.abc import Generator, Iterator, Sequence
from weakref import WeakValueDictionary

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations import check_operation
from asyncnn.hal.operations.signature import Form, known_pattern, limit
from asyncnn.hal.types import (
    ExtensionNameAndPrefix,
    HalVersion,
    Memory,
    Model,
    Operand,
    OperandLifeTime,
    Operation,
    Subgraph,
)
from asyncnn.hal.validate.graph import GraphRules
from asyncnn.hal.validate.operand import OperandRules
from asyncnn.hal.validate.rules import (
    SLICE,
    brief,
    broken,
    located,
    malformed_as_invalid,
    validate_memory,
)
from asyncnn.pacing import Steps, make_way

_known: WeakValueDictionary[tuple[int, HalVersion, bool], Model] = WeakValueDictionary()
"""By identity: to compare models by value would take as long as to validate them.

An entry dies with its model, before another one can get the same identity. Those of
models that a driver need not take have True.
"""


def is_known(
    model: Model, version: HalVersion, *, runtime_only_features: bool = False
) -> bool:
    """Return whether this very model is remembered, as one that may have features."""
    kinds = (False, True) if runtime_only_features else (False,)
    return isinstance(model, Model) and any(
        _known.get((id(model), version, kind)) is model for kind in kinds
    )


def remember(
    model: Model, version: HalVersion, *, runtime_only_features: bool = False
) -> None:
    """Let `is_known` know a valid model, while it lives, if it cannot change.

    One that has ``runtime_only_features`` is known to those only who take them. The
    caller vouches for what lies within operands and operations.
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
        _known[id(model), version, runtime_only_features] = model


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


EXTENSION_NAME = re.compile(r"[a-z0-9_.]*\.[a-z0-9_.]*", re.ASCII)
"""What names of extensions look like; they begin with a domain in reverse."""

_PREFIX_MAX = 0xFFFF


def validate_model(
    model: Model,
    version: HalVersion = HalVersion.AIDL_V4,
    *,
    runtime_only_features: bool = False,
) -> None:
    """Check ``model`` against the rules for a model structure of ``version``.

    A model that has passed before passes at once, as long as it lives. With
    ``runtime_only_features`` it may have what a runtime must execute, but a driver need
    not: loops over values of unknown size.

    :raises InvalidArgumentError: if it breaks a rule.
    """
    for _ in validating(model, version, runtime_only_features=runtime_only_features):
        make_way()


def validating(
    model: Model,
    version: HalVersion = HalVersion.AIDL_V4,
    *,
    runtime_only_features: bool = False,
) -> Steps[None]:
    """Do as `validate_model` does, bit by bit: a caller can stop in between.

    :raises InvalidArgumentError: if the model breaks a rule.
    """
    if is_known(model, version, runtime_only_features=runtime_only_features):
        return
    is_for_drivers = True
    with malformed_as_invalid("model"):
        _check_pools(model.pools, version)
        _check_extensions(model.extension_name_to_prefix, version)
        if model.referenced and version < HalVersion.V1_3:
            raise broken("M16", f"{version.title} has no referenced subgraphs")
        rules = OperandRules(model, version)
        checked: list[tuple[GraphRules, list[Form]]] = []
        for name, subgraph in _subgraphs(model):
            try:
                checked.append((yield from _checking_form(subgraph, rules)))
            except InvalidArgumentError as error:
                raise located(name, error) from None
        _check_acyclic(model.referenced)
        for (name, subgraph), (graph, forms) in zip(
            _subgraphs(model), checked, strict=True
        ):
            try:
                is_for_drivers &= yield from _checking_signatures(
                    subgraph, forms, version, model.referenced, runtime_only_features
                )
                yield from graph.checking_order()
                yield from graph.checking_consumers()
            except InvalidArgumentError as error:
                raise located(name, error) from None
        if not rules.saw_odd:
            # A driver must not take for known what it has to refuse.
            remember(model, version, runtime_only_features=not is_for_drivers)


def _subgraphs(model: Model) -> Iterator[tuple[str, Subgraph]]:
    yield "main subgraph", model.main
    for index, subgraph in enumerate(model.referenced):
        yield f"referenced subgraph {index}", subgraph


def _checking_form(
    subgraph: Subgraph, rules: OperandRules
) -> Generator[None, None, tuple[GraphRules, list[Form]]]:
    if not subgraph.operands or not subgraph.operations:
        raise broken("M1", "there must be an operand and an operation")
    forms = yield from rules.checking(subgraph.operands)
    graph = GraphRules(subgraph)
    graph.check_border()
    yield from graph.checking_forms(rules)
    return graph, forms


def _checking_signatures(
    subgraph: Subgraph,
    forms: Sequence[Form],
    version: HalVersion,
    referenced: Sequence[Subgraph],
    runtime_only_features: bool,
) -> Generator[None, None, bool]:
    """Check all operations; return whether drivers have to take all of them."""
    is_for_drivers = True
    operands = subgraph.operands
    form, operand = forms.__getitem__, operands.__getitem__
    for index, operation in enumerate(subgraph.operations):
        inputs, outputs = operation.inputs, operation.outputs
        pattern = known_pattern(
            (operation.type, tuple(map(form, inputs)), tuple(map(form, outputs)))
        )
        try:
            if pattern is None:
                check_operation(
                    operation,
                    operands,
                    version,
                    referenced,
                    runtime_only_features=runtime_only_features,
                )
                if runtime_only_features and referenced:
                    is_for_drivers &= _is_for_drivers(
                        operation, operands, version, referenced
                    )
            elif version < pattern.settled_since:
                needed = pattern.requirement(
                    tuple(map(operand, inputs)),
                    tuple(map(operand, outputs)),
                    referenced,
                    version,
                )
                is_for_drivers &= not needed.is_runtime_only
                if needed.version > version or needed.is_runtime_only:
                    limit(
                        pattern.type.name,
                        needed,
                        version,
                        runtime_only_features=runtime_only_features,
                    )
        except InvalidArgumentError as error:
            raise broken("M9", f"operation {index}: {error.message}") from None
        if not index % SLICE:
            yield
    return is_for_drivers


def _is_for_drivers(
    operation: Operation,
    operands: Sequence[Operand],
    version: HalVersion,
    referenced: Sequence[Subgraph],
) -> bool:
    try:
        check_operation(operation, operands, version, referenced)
    except InvalidArgumentError:
        return False
    return True


def _check_pools(pools: Sequence[Memory], version: HalVersion) -> None:
    for index, pool in enumerate(pools):
        try:
            validate_memory(pool, version)
        except InvalidArgumentError as error:
            raise located(f"pool {index}", error) from None


def _check_extensions(
    extensions: Sequence[ExtensionNameAndPrefix], version: HalVersion
) -> None:
    if extensions and version < HalVersion.V1_2:
        raise broken("M15", f"{version.title} has no extensions")
    names: set[str] = set()
    prefixes: set[int] = set()
    for extension in extensions:
        name, prefix = extension.name, extension.prefix
        if not EXTENSION_NAME.fullmatch(name):
            raise broken("M15", f"{brief(name)} is not a name of an extension")
        if not 0 <= prefix <= _PREFIX_MAX:
            raise broken("M15", f"{brief(prefix)} is not a prefix of 16 bits")
        if name in names or prefix in prefixes:
            raise broken("M15", f"extension {brief(name)} or its prefix occurs twice")
        names.add(name)
        prefixes.add(prefix)


def _check_acyclic(referenced: Sequence[Subgraph]) -> None:
    """Check that no subgraph contains itself (M16), without recursion."""
    references = [sorted(_references(subgraph)) for subgraph in referenced]
    users = [0] * len(referenced)
    for targets in references:
        for target in targets:
            users[target] += 1
    free = [index for index, count in enumerate(users) if not count]
    checked = 0
    while free:
        checked += 1
        for target in references[free.pop()]:
            users[target] -= 1
            if not users[target]:
                free.append(target)
    if checked < len(referenced):
        rest = [index for index, count in enumerate(users) if count]
        raise broken("M16", f"referenced subgraphs {brief(rest)} contain a cycle")


def _references(subgraph: Subgraph) -> set[int]:
    return {
        operand.location.offset
        for operand in subgraph.operands
        if operand.lifetime == OperandLifeTime.SUBGRAPH
    }
