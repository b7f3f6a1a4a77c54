"""What is known of operations that follow a signature, by the forms of their operands.

Which row of types and which layout an operation follows is decided by nothing but the
types of its operands, their ranks and which of them are omitted. Models are full of
operations that agree in these, so that the decision is remembered.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operands import AnyOperationType
from asyncnn.hal.operations.signature import (
    V1_0,
    AnyCheck,
    Argument,
    Check,
    Requirement,
    TypedCheck,
    TypeRow,
    Usage,
)
from asyncnn.hal.types import Dimensions, HalVersion, Operand, OperandLifeTime, Subgraph

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
    ``settled_since``. ``positions`` are those of the inputs by name.
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
                if requirement and requirement.version > needed.version:
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


def limit(name: str, needed: Requirement, version: HalVersion) -> HalVersion:
    """Return the needed version.

    :raises InvalidArgumentError: if ``version`` is older.
    """
    if needed.version > version:
        raise InvalidArgumentError(
            f"{name} needs HAL {needed.version.name}, not {version.name}: "
            f"{needed.reason}"
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
