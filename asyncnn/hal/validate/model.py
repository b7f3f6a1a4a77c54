"""Checks whole models: rules M1 to M16.

Everything that later rules index with is checked first, for all subgraphs; signatures
and execution order follow. The work is linear in the size of the model. A model that
was found valid and cannot change since is remembered for as long as it lives.

Source: HAL 1.0 to 1.3/types.hal (Model) and 1.3/IDevice.hal (prepareModel_1_3).
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary

from asyncnn.hal import types
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations import check_operation
from asyncnn.hal.operations.signature import Form, Pattern, known_pattern, limit
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
from asyncnn.lazy import compiled_module
from asyncnn.pacing import Steps, make_way


def _sample(kind: Any) -> Any:
    return kind(*[object() for _ in kind.__struct_fields__])


def _taught(prescans: Any) -> Any:
    """Return the module in C; None without it, or where structs are unlike its own."""
    samples = map(_sample, (Operand, Operation, types.DataLocation))
    enums = types.OperandType, OperandLifeTime, types.OperationType
    try:
        if prescans is not None:
            prescans.learn(*samples, *enums, OperandLifeTime.SUBGRAPH)
    except ValueError:  # another version of msgspec may keep fields elsewhere
        return None
    return prescans


_prescans = _taught(
    compiled_module("asyncnn.hal.validate._prescan", "ASYNCNN_PURE_RULES")
)


def _prescan_of(subgraph: Subgraph) -> Any:
    parts: tuple[object, object] = subgraph.operands, subgraph.operations
    if _prescans is None or {*map(type, parts)} != {tuple}:
        return None
    with suppress(MemoryError):  # Python asks for less at a time
        return _prescans.Prescan(*parts)
    return None


_known: WeakValueDictionary[tuple[int, HalVersion, bool], Model] = WeakValueDictionary()
"""By identity: to compare models by value would take as long as to validate them.

An entry dies with its model, before another one can get the same identity. Entries of
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
    model: Model,
    version: HalVersion,
    *,
    runtime_only_features: bool = False,
    are_structs: bool = False,
) -> None:
    """Let `is_known` know a valid model, while it lives, if it cannot change.

    One that has ``runtime_only_features`` is known to those only who take them. The
    caller vouches for what lies within operands and operations, and may for that they
    are structs of these very types.
    """
    if (
        isinstance(model, Model)
        and isinstance(model.operand_values, bytes)
        and isinstance(model.pools, tuple)
        and isinstance(model.extension_name_to_prefix, tuple)
        and isinstance(model.referenced, tuple)
        and all(map(_is_unchangeable_pool, model.pools))
        and all(
            _is_unchangeable(each, are_structs)
            for each in (model.main, *model.referenced)
        )
    ):
        _known[id(model), version, runtime_only_features] = model


def _is_unchangeable(subgraph: Subgraph, are_structs: bool) -> bool:
    parts = (
        subgraph.operands,
        subgraph.operations,
        subgraph.input_indexes,
        subgraph.output_indexes,
    )
    return {*map(type, parts)} == {tuple} and (
        are_structs
        or (
            {*map(type, subgraph.operands)} == {Operand}
            and {*map(type, subgraph.operations)} == {Operation}
        )
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
        checked = [_Checking(subgraph, rules) for _, subgraph in _subgraphs(model)]
        for (name, _), each in zip(_subgraphs(model), checked, strict=True):
            try:
                yield from each.checking_forms()
            except InvalidArgumentError as error:
                raise located(name, error) from None
        _check_acyclic(model.referenced)
        for (name, subgraph), each in zip(_subgraphs(model), checked, strict=True):
            signatures = _Signatures(
                subgraph, version, model.referenced, runtime_only_features
            )
            try:
                yield from each.checking_the_rest(signatures)
            except InvalidArgumentError as error:
                raise located(name, error) from None
            is_for_drivers &= signatures.are_for_drivers
        if not rules.saw_odd:
            # A driver must not take for known what it has to refuse.
            remember(
                model,
                version,
                runtime_only_features=not is_for_drivers,
                are_structs=all(each.are_structs for each in checked),
            )


def _subgraphs(model: Model) -> Iterator[tuple[str, Subgraph]]:
    yield "main subgraph", model.main
    for index, subgraph in enumerate(model.referenced):
        yield f"referenced subgraph {index}", subgraph


class _Checking:
    """What is checked of one subgraph: by a prescan, where that was compiled.

    In doubt all is checked here, which finds what is wrong, and words it.
    """

    def __init__(self, subgraph: Subgraph, rules: OperandRules) -> None:
        self._subgraph = subgraph
        self._rules = rules
        self._prescan = _prescan_of(subgraph)
        self._forms: list[Form] = []

    @property
    def are_structs(self) -> bool:
        """Whether operands and operations were seen to be of these very types."""
        return self._prescan is not None and bool(self._prescan.are_structs)

    def checking_forms(self) -> Steps[None]:
        """Check operands by themselves, and that types and indices exist."""
        subgraph, rules = self._subgraph, self._rules
        if not subgraph.operands or not subgraph.operations:
            raise broken("M1", "there must be an operand and an operation")
        if self._prescan is not None and (yield from self._prescanning(self._prescan)):
            return
        self._prescan = None
        self._forms = yield from rules.checking(subgraph.operands)
        self._graph = GraphRules(subgraph)
        self._graph.check_border()
        yield from self._graph.checking_forms(rules)

    def _prescanning(self, prescan: Any) -> Steps[bool]:
        """Do the same by a prescan; return False in doubt."""
        operands, rules = self._subgraph.operands, self._rules
        while (left := prescan.operands(SLICE)) > 0:
            yield
        if left:
            return False
        for index in prescan.alone_operands:
            greatest = rules.greatest_offset(operands, index)
            if greatest < prescan.greatest_offset(index):
                return False
            yield
        graph = self._graph = GraphRules(self._subgraph)
        graph.check_border()
        prescan.connect(graph.are_written())
        while (left := prescan.operations(SLICE)) > 0:
            yield
        if left:
            return False
        for index in prescan.alone_operations:
            graph.check_form(index, rules)
            yield
        return True

    def checking_the_rest(self, signatures: "_Signatures") -> Steps[None]:
        """Check signatures, order and consumers."""
        graph, prescan = self._graph, self._prescan
        if prescan is None:
            yield from signatures.checking(self._forms)
        else:
            for index in prescan.alone_operations:
                signatures.look_into(index)
                yield
        if prescan is None or not prescan.is_ordered:
            yield from graph.checking_order()
        if prescan is None or not prescan.is_counted:
            yield from graph.checking_consumers()


class _Signatures:
    """Checks operations of a subgraph against their signatures (M9)."""

    def __init__(
        self,
        subgraph: Subgraph,
        version: HalVersion,
        referenced: Sequence[Subgraph],
        runtime_only_features: bool,
    ) -> None:
        self._operations = subgraph.operations
        self._operands = subgraph.operands
        self._version = version
        self._referenced = referenced
        self._runtime_only_features = runtime_only_features
        self.are_for_drivers = True
        """Whether drivers have to take all that were checked."""

    def checking(self, forms: Sequence[Form]) -> Steps[None]:
        """Check all operations, whose operands have these forms."""
        form, version = forms.__getitem__, self._version
        for index, operation in enumerate(self._operations):
            given, made = map(form, operation.inputs), map(form, operation.outputs)
            pattern = known_pattern((operation.type, tuple(given), tuple(made)))
            if pattern is None or version < pattern.settled_since:
                self.look_into(index, pattern)
            if not index % SLICE:
                yield

    def look_into(self, index: int, pattern: Pattern | None = None) -> None:
        """Check one operation, which is used in the way of ``pattern``."""
        operation = self._operations[index]
        try:
            if pattern is None:
                self._check_wholly(operation)
            else:
                self._check_requirement(operation, pattern)
        except InvalidArgumentError as error:
            raise broken("M9", f"operation {index}: {error.message}") from None

    def _check_wholly(self, operation: Operation) -> None:
        version, referenced = self._version, self._referenced
        check_operation(
            operation,
            self._operands,
            version,
            referenced,
            runtime_only_features=self._runtime_only_features,
        )
        if self._runtime_only_features and referenced:
            self.are_for_drivers &= _is_for_drivers(
                operation, self._operands, version, referenced
            )

    def _check_requirement(self, operation: Operation, pattern: Pattern) -> None:
        operand, version = self._operands.__getitem__, self._version
        needed = pattern.requirement(
            tuple(map(operand, operation.inputs)),
            tuple(map(operand, operation.outputs)),
            self._referenced,
            version,
        )
        self.are_for_drivers &= not needed.is_runtime_only
        if needed.version > version or needed.is_runtime_only:
            limit(
                pattern.type.name,
                needed,
                version,
                runtime_only_features=self._runtime_only_features,
            )


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
