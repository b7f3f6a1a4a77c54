"""Checks whole models: rules M1 to M16.

Everything that later rules index with is checked first, for all subgraphs; signatures
and execution order follow. The work is linear in the size of the model.
Source: HAL 1.0 to 1.3/types.hal (Model) and 1.3/IDevice.hal (prepareModel_1_3).
"""

import re
from collections.abc import Iterator, Sequence

from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.operations import check_operation
from asyncnn.hal.types import (
    ExtensionNameAndPrefix,
    HalVersion,
    Memory,
    Model,
    OperandLifeTime,
    Subgraph,
)
from asyncnn.hal.validate.graph import (
    check_border,
    check_consumers,
    check_operation_form,
    check_order,
)
from asyncnn.hal.validate.memory import validate_memory
from asyncnn.hal.validate.operand import OperandRules
from asyncnn.hal.validate.wording import (
    brief,
    broken,
    located,
    malformed_as_invalid,
    operand_type_name,
    operation_type_name,
)

EXTENSION_NAME = re.compile(r"[a-z0-9_.]*\.[a-z0-9_.]*", re.ASCII)
"""What names of extensions look like; they begin with a domain in reverse."""

_PREFIX_MAX = 0xFFFF


def validate_model(model: Model, version: HalVersion = HalVersion.AIDL_V4) -> None:
    """Check ``model`` against the rules for a model structure of ``version``.

    :raises InvalidArgumentError: if it breaks one.
    """
    with malformed_as_invalid("model"):
        _check_pools(model.pools, version)
        _check_extensions(model.extension_name_to_prefix, version)
        if model.referenced and version < HalVersion.V1_3:
            raise broken("M16", f"{version.name} has no referenced subgraphs")
        rules = OperandRules(model, version)
        for name, subgraph in _subgraphs(model):
            try:
                _check_form(subgraph, rules)
            except InvalidArgumentError as error:
                raise located(name, error) from None
        _check_acyclic(model.referenced)
        for name, subgraph in _subgraphs(model):
            try:
                _check_meaning(subgraph, version, model.referenced)
            except InvalidArgumentError as error:
                raise located(name, error) from None


def _subgraphs(model: Model) -> Iterator[tuple[str, Subgraph]]:
    yield "main subgraph", model.main
    for index, subgraph in enumerate(model.referenced):
        yield f"referenced subgraph {index}", subgraph


def _check_form(subgraph: Subgraph, rules: OperandRules) -> None:
    if not subgraph.operands or not subgraph.operations:
        raise broken("M1", "there must be an operand and an operation")
    for index, operand in enumerate(subgraph.operands):
        try:
            rules.check(operand)
        except InvalidArgumentError as error:
            name = operand_type_name(operand.type)
            raise located(f"operand {index} ({name})", error) from None
    check_border(subgraph)
    for index, operation in enumerate(subgraph.operations):
        try:
            check_operation_form(operation, subgraph, rules)
        except InvalidArgumentError as error:
            name = operation_type_name(operation.type)
            raise located(f"operation {index} ({name})", error) from None


def _check_meaning(
    subgraph: Subgraph, version: HalVersion, referenced: Sequence[Subgraph]
) -> None:
    for index, operation in enumerate(subgraph.operations):
        try:
            check_operation(operation, subgraph.operands, version, referenced)
        except InvalidArgumentError as error:
            raise broken("M9", f"operation {index}: {error.message}") from None
    check_order(subgraph)
    check_consumers(subgraph)


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
        raise broken("M15", f"{version.name} has no extensions")
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
