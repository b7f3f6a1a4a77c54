"""What is known of an operation: arguments, layouts, type rows, checks, shape rule.

An `OperationSignature` has all of it. Its *rows* bind type variables (``T`` is
the main one) to operand types, each since some HAL version; its *layouts* list the
arguments in order; *checks* are the rules that fit neither; *shape* is the rule by
which output shapes follow from the inputs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operands import AnyOperandType, AnyOperationType
from asyncnn.hal.operations.bound import ShapeRule
from asyncnn.hal.types import (
    Dimensions,
    HalVersion,
    Operand,
    OperandLifeTime,
    OperandType,
    Subgraph,
)

# The names by which tables of signatures know types.
F16 = OperandType.TENSOR_FLOAT16
F32 = OperandType.TENSOR_FLOAT32
I32 = OperandType.TENSOR_INT32
B8 = OperandType.TENSOR_BOOL8
Q8 = OperandType.TENSOR_QUANT8_ASYMM
Q8S = OperandType.TENSOR_QUANT8_ASYMM_SIGNED
Q8SYM = OperandType.TENSOR_QUANT8_SYMM
Q8PC = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
Q16S = OperandType.TENSOR_QUANT16_SYMM
Q16A = OperandType.TENSOR_QUANT16_ASYMM
FLOAT16 = OperandType.FLOAT16
FLOAT32 = OperandType.FLOAT32
INT32 = OperandType.INT32
BOOL = OperandType.BOOL

V1_0 = HalVersion.V1_0
V1_2 = HalVersion.V1_2
"""The version that brought extensions, and so the one that their rows are since."""

UP_TO_4 = (1, 2, 3, 4)
"""Ranks of operations that never learned about more than four axes."""

Quantization: TypeAlias = Mapping[OperandType, tuple[float, int]]
"""The one (scale, zero point) that an argument may have, by its type."""


class TypeRow(msgspec.Struct, frozen=True):
    """One allowed combination of operand types; the first is the main type."""

    since: HalVersion
    types: dict[str, AnyOperandType]

    @property
    def main(self) -> AnyOperandType:
        """The type that names the row in documentation and capabilities."""
        return next(iter(self.types.values()))


def row(since: HalVersion, **types: AnyOperandType) -> TypeRow:
    """Return one row; the keywords are the type variables, the main one first."""
    return TypeRow(since, types)


class Argument(msgspec.Struct, frozen=True):
    """One operand of an operation.

    ``type`` is an operand type, a type variable of the rows, or None for any type.
    ``ranks`` limits the rank where that is known, ``optional`` allows NO_VALUE,
    ``since`` is the version that added it to its layout, and an argument with
    ``at_least`` occurs that many times or more. ``quantization`` is enforced when
    shapes are inferred.
    """

    name: str
    type: AnyOperandType | str | None = "T"
    ranks: tuple[int, ...] = ()
    optional: bool = False
    since: HalVersion = V1_0
    at_least: int | None = None
    quantization: Quantization | None = None

    def expected_type(self, row: TypeRow) -> AnyOperandType | None:
        """Return the type that ``row`` demands here, None for any."""
        if isinstance(self.type, str):
            return row.types[self.type]
        return self.type


class ArgumentLayout(msgspec.Struct, frozen=True):
    """Arguments in order. ``counts`` lists the legal numbers of inputs, if not all."""

    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    counts: tuple[int, ...] = ()
    since: HalVersion = V1_0

    def take_inputs(self, count: int) -> tuple[Argument, ...] | None:
        """Return the argument of each of ``count`` inputs, None if they don't fit."""
        if self.counts:
            return self.inputs[:count] if count in self.counts else None
        return _repeated(self.inputs, count)

    def take_outputs(self, count: int) -> tuple[Argument, ...] | None:
        """Return the argument of each of ``count`` outputs, None if they don't fit."""
        return _repeated(self.outputs, count)

    def describe_counts(self) -> str:
        """Return the legal operand counts in words."""
        *most, last = map(str, self.counts or (_describe(self.inputs),))
        inputs = f"{', '.join(most)} or {last}" if most else last
        outputs = _describe(self.outputs)
        return f"{plural(inputs, 'input')} and {plural(outputs, 'output')}"


def _repeated(
    declared: tuple[Argument, ...], count: int
) -> tuple[Argument, ...] | None:
    if len(declared) == count and all(a.at_least is None for a in declared):
        return declared
    for position, argument in enumerate(declared):
        if argument.at_least is not None:
            times = count - len(declared) + 1
            if times < argument.at_least:
                return None
            return declared[:position] + (argument,) * times + declared[position + 1 :]
    return None


def _describe(declared: tuple[Argument, ...]) -> str:
    for argument in declared:
        if argument.at_least is not None:
            return f"{len(declared) - 1 + argument.at_least} or more"
    return str(len(declared))


def plural(count: str | int, word: str) -> str:
    """Return ``word`` with its count, in the plural where that is called for."""
    return f"{count} {word}{'' if str(count) == '1' else 's'}"


class Requirement(msgspec.Struct, frozen=True):
    """The version that a way of using an operation needs, and why.

    What ``is_runtime_only`` no driver need accept, whatever its version.
    """

    version: HalVersion
    reason: str
    is_runtime_only: bool = False


class Usage(msgspec.Struct, frozen=True, eq=False):
    """An operation of a model whose operand counts and types have been matched.

    ``positions`` are the inputs' by name, the first one if it repeats.
    """

    type: AnyOperationType
    input_arguments: tuple[Argument, ...]
    inputs: tuple[Operand, ...]
    output_arguments: tuple[Argument, ...]
    outputs: tuple[Operand, ...]
    referenced: Sequence[Subgraph]
    positions: Mapping[str, int]

    def has(self, name: str) -> bool:
        """Return whether the input ``name`` is listed."""
        return name in self.positions

    def all(self, name: str) -> list[Operand]:
        """Return the operands of input ``name``, several if it repeats."""
        pairs = zip(self.input_arguments, self.inputs, strict=True)
        return [operand for argument, operand in pairs if argument.name == name]

    def input(self, name: str) -> Operand:
        """Return the (first) operand of the input ``name``, which is listed."""
        return self.inputs[self.positions[name]]

    @property
    def output(self) -> Operand:
        """The first output."""
        return self.outputs[0]

    def error(self, name: str, rule: str) -> InvalidArgumentError:
        """Return the error that says which rule the argument ``name`` breaks."""
        kind, declared = "output", self.output_arguments
        if self.has(name):
            kind, declared = "input", self.input_arguments
        position = [argument.name for argument in declared].index(name)
        return argument_error(self.type, kind, position, declared[position], rule)


def argument_error(
    type_: AnyOperationType, kind: str, position: int, argument: Argument, rule: str
) -> InvalidArgumentError:
    """Return the error of one operand; ``kind`` is ``input`` or ``output``."""
    return InvalidArgumentError(
        f"{type_.name}: {kind} {position} ({argument.name}) {rule}"
    )


Check: TypeAlias = Callable[[Usage], Requirement | None]
"""A rule beyond counts and types; may demand a newer version.

:raises InvalidArgumentError: if the rule is broken.
"""


class TypedCheck(msgspec.Struct, frozen=True):
    """A check that says nothing unless an input has one of some types.

    One with ``until`` breaks no rule, but may demand that version.
    """

    input: str
    types: frozenset[AnyOperandType]
    check: Check
    until: HalVersion | None = None

    def concerns(self, row: TypeRow, inputs: Sequence[Argument]) -> bool:
        """Return whether the check could say anything of operands of these types."""
        return any(
            argument.name == self.input and argument.expected_type(row) in self.types
            for argument in inputs
        )


AnyCheck: TypeAlias = Check | TypedCheck


class OperationSignature(msgspec.Struct, frozen=True):
    """All that validation and shape inference know of one operation."""

    type: AnyOperationType
    rows: tuple[TypeRow, ...]
    layouts: tuple[ArgumentLayout, ...]
    shape: ShapeRule
    checks: tuple[AnyCheck, ...] = ()

    @property
    def since(self) -> HalVersion:
        """The version that introduced the operation."""
        return max(
            min(row.since for row in self.rows),
            min(layout.since for layout in self.layouts),
        )


Form: TypeAlias = int
"""Type, rank and omission of an operand as one number."""

PatternKey: TypeAlias = tuple[int, tuple[Form, ...], tuple[Form, ...]]
"""Operation type, and the forms of inputs and outputs."""

_MAX_PATTERNS = 4096
_MAX_OPERANDS = 64
"""Both bound what peers can have us remember."""

_NEVER = max(HalVersion) + 1
_OMITTED = OperandLifeTime.NO_VALUE


def form_of(type_: int, dimensions: Dimensions, lifetime: int) -> Form:
    """Return what of an operand decides which arguments of operations it fits."""
    return type_ << 32 | len(dimensions) << 1 | (lifetime == _OMITTED)


class Pattern(msgspec.Struct, frozen=True):
    """A way of using an operation that breaks no rule of counts, types and ranks.

    ``needed`` is the version for that. ``checks`` are the rules that are left, each
    with the version from which on it has nothing to say; all are settled since
    ``settled_since``. ``positions`` are the inputs' by name.
    """

    type: AnyOperationType
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    needed: Requirement
    checks: tuple[tuple[Check, int], ...]
    settled_since: int
    positions: dict[str, int]

    def requirement(
        self,
        inputs: tuple[Operand, ...],
        outputs: tuple[Operand, ...],
        referenced: Sequence[Subgraph],
        enough: HalVersion = V1_0,
    ) -> Requirement:
        """Check the rules that are left; return the version that is needed, and why.

        What cannot need more than version ``enough`` is not looked into.

        :raises InvalidArgumentError: if a rule is broken.
        """
        needed = self.needed
        if not self.checks:
            return needed
        usage = Usage(
            self.type,
            self.inputs,
            inputs,
            self.outputs,
            outputs,
            referenced,
            self.positions,
        )
        for check, until in self.checks:
            if enough < until:
                requirement = check(usage)
                if requirement and (
                    requirement.is_runtime_only or requirement.version > needed.version
                ):
                    needed = requirement
        return needed


def pattern_of(
    type_: AnyOperationType,
    row: TypeRow,
    arguments: tuple[tuple[Argument, ...], tuple[Argument, ...]],
    needed: Requirement,
    checks: Iterable[AnyCheck],
) -> Pattern:
    """Return the pattern of operands that follow ``row`` and ``arguments``.

    Those are the ones of inputs and of outputs. Of ``checks`` it has those that concern
    such operands.
    """
    inputs, outputs = arguments
    left = []
    for check in checks:
        if not isinstance(check, TypedCheck):
            left.append((check, _NEVER))
        elif check.concerns(row, inputs):
            left.append((check.check, check.until or _NEVER))
    return Pattern(
        type_,
        inputs,
        outputs,
        needed,
        tuple(left),
        max([needed.version, *(until for _, until in left)]),
        {each.name: index for index, each in reversed([*enumerate(inputs)])},
    )


def limit(
    name: str,
    needed: Requirement,
    version: HalVersion,
    *,
    runtime_only_features: bool = False,
) -> HalVersion:
    """Return the needed version.

    :raises InvalidArgumentError: if ``version`` is older, or only a runtime, not a
        driver, has what is needed.
    """
    if needed.is_runtime_only and not runtime_only_features:
        raise InvalidArgumentError(needed.reason)
    if needed.version > version:
        raise InvalidArgumentError(
            f"{name} needs {needed.version.title}, not {version.title}: {needed.reason}"
        )
    return needed.version


_patterns: dict[PatternKey, Pattern] = {}

known_pattern = _patterns.get
"""Returns the pattern of a key, None if it isn't remembered."""


def remember_pattern(key: PatternKey, pattern: Pattern) -> None:
    """Let `known_pattern` find ``pattern``, until there are too many."""
    if len(key[1]) + len(key[2]) > _MAX_OPERANDS:
        return
    if len(_patterns) >= _MAX_PATTERNS:
        _patterns.clear()
    _patterns[key] = pattern
