"""Checks operations of a model against their signatures, and infers output shapes.

Source: 1.0 to 1.3/types.hal (OperationType), AIDL OperationType.
"""

import math
from collections.abc import Sequence
from enum import IntEnum
from itertools import chain

import msgspec

from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.operands import (
    AnyOperandType,
    AnyOperationType,
    ExtensionOperandType,
    ExtensionOperationType,
    is_extension_type,
)
from asyncnn.hal.operations.bound import BoundOperation, OperationFailedError, Shape
from asyncnn.hal.operations.signature import (
    V1_0,
    V1_2,
    Argument,
    ArgumentLayout,
    Form,
    OperationSignature,
    Pattern,
    Requirement,
    TypeRow,
    argument_error,
    form_of,
    known_pattern,
    limit,
    pattern_of,
    plural,
    remember_pattern,
)
from asyncnn.hal.operations.table import signature_of
from asyncnn.hal.types import (
    HalVersion,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    Subgraph,
)


def check_operation(
    operation: Operation,
    operands: Sequence[Operand],
    version: HalVersion,
    referenced: Sequence[Subgraph] = (),
    *,
    runtime_only_features: bool = False,
) -> HalVersion:
    """Check counts, types and rules of one operation; return the version it needs.

    Of OEM_OPERATION, and of an extension's operation that is but a number, nothing is
    known, so that nothing is checked but the indices of their operands. ``referenced``
    are the subgraphs that IF and WHILE run.

    :raises InvalidArgumentError: if a rule is broken, or ``version`` is too old for
        the operation as it is used.
    """
    return check_operands(
        operation.type,
        _pick(operation, operation.inputs, operands),
        _pick(operation, operation.outputs, operands),
        version,
        referenced,
        runtime_only_features=runtime_only_features,
    )


def check_operands(
    type_: int,
    inputs: tuple[Operand, ...],
    outputs: tuple[Operand, ...],
    version: HalVersion,
    referenced: Sequence[Subgraph] = (),
    *,
    runtime_only_features: bool = False,
) -> HalVersion:
    """Check an operation on these operands, which no model has yet.

    :raises InvalidArgumentError: as `check_operation`.
    """
    key = type_, _forms(inputs), _forms(outputs)
    pattern = known_pattern(key)
    if pattern is None:
        signature = _signature(type_)
        if signature is None:
            is_oem = type_ == OperationType.OEM_OPERATION
            return V1_0 if is_oem else limit(_name(type_), _EXTENSION, version)
        pattern = _match(signature, inputs, outputs)
        remember_pattern(key, pattern)
    requirement = pattern.requirement(inputs, outputs, referenced)
    return limit(
        pattern.type.name,
        requirement,
        version,
        runtime_only_features=runtime_only_features,
    )


_EXTENSION = Requirement(V1_2, "it is an extension's")


def _forms(operands: tuple[Operand, ...]) -> tuple[Form, ...]:
    return tuple(
        [
            form_of(operand.type, operand.dimensions, operand.lifetime)
            for operand in operands
        ]
    )


def _name(type_: int, known: type[IntEnum] = OperationType) -> str:
    if isinstance(type_, ExtensionOperationType | ExtensionOperandType):
        return type_.name
    try:
        return known(type_).name
    except ValueError:
        what = "operation" if known is OperationType else "type"
        return f"{what} {type_:#x}"


def _signature(type_: int) -> OperationSignature | None:
    if isinstance(type_, ExtensionOperationType):
        return signature_of(type_)
    if is_extension_type(type_):
        return None
    try:
        return signature_of(OperationType(type_))
    except ValueError:
        raise InvalidArgumentError(f"there is no operation {type_}") from None


def _pick(
    operation: Operation, indices: Sequence[int], operands: Sequence[Operand]
) -> tuple[Operand, ...]:
    for index in indices:
        if not 0 <= index < len(operands):
            raise InvalidArgumentError(
                f"{_name(operation.type)} refers to operand {index}, "
                f"there are {len(operands)}"
            )
    return tuple([operands[index] for index in indices])


class _Candidate(msgspec.Struct, frozen=True):
    """A row of types and a layout that has room for the operands."""

    row: TypeRow
    layout: ArgumentLayout
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]

    @property
    def since(self) -> HalVersion:
        return max(self.row.since, self.layout.since)

    def expected_type(self, index: int) -> AnyOperandType | None:
        return self.argument(index).expected_type(self.row)

    def argument(self, index: int) -> Argument:
        count = len(self.inputs)
        return self.inputs[index] if index < count else self.outputs[index - count]

    def requirements(self) -> list[Requirement]:
        return [
            Requirement(self.row.since, f"it is used with {self.row.main.name}"),
            Requirement(self.layout.since, f"it has {len(self.outputs)} outputs"),
            *(
                Requirement(argument.since, f"it has the input {argument.name}")
                for argument in self.inputs
                if argument.since > V1_0
            ),
        ]


def _match(
    signature: OperationSignature,
    inputs: tuple[Operand, ...],
    outputs: tuple[Operand, ...],
) -> Pattern:
    """Find the row and layout that the operands follow, and check their ranks.

    Operand by operand, those remain that expect its type, so that an error can say
    what the ones before it still allowed.
    """
    candidates = _with_room(signature, len(inputs), len(outputs))
    for index, operand in enumerate(inputs + outputs):
        matching = [
            candidate
            for candidate in candidates
            if candidate.expected_type(index) in (None, operand.type)
        ]
        if not matching:
            raise _type_error(signature.type, index, operand.type, candidates)
        candidates = matching
    best = min(candidates, key=lambda candidate: candidate.since)
    _check_ranks(signature.type, "input", best.inputs, inputs)
    _check_ranks(signature.type, "output", best.outputs, outputs)
    needed = max(best.requirements(), key=lambda requirement: requirement.version)
    arguments = best.inputs, best.outputs
    return pattern_of(signature.type, best.row, arguments, needed, signature.checks)


def _with_room(
    signature: OperationSignature, inputs: int, outputs: int
) -> list[_Candidate]:
    candidates = []
    for layout in signature.layouts:
        taken, given = layout.take_inputs(inputs), layout.take_outputs(outputs)
        if taken is not None and given is not None:
            candidates += [_Candidate(r, layout, taken, given) for r in signature.rows]
    if not candidates:
        legal = dict.fromkeys(layout.describe_counts() for layout in signature.layouts)
        raise InvalidArgumentError(
            f"{signature.type.name} has {plural(inputs, 'input')} and "
            f"{plural(outputs, 'output')}, expected {', or '.join(legal)}"
        )
    return candidates


def _type_error(
    type_: AnyOperationType, index: int, actual: int, candidates: list[_Candidate]
) -> InvalidArgumentError:
    expected = {candidate.expected_type(index) for candidate in candidates}
    names = sorted(wanted.name for wanted in expected if wanted is not None)
    first = candidates[0]
    position = index - len(first.inputs)
    return argument_error(
        type_,
        "input" if position < 0 else "output",
        index if position < 0 else position,
        first.argument(index),
        f"is {_name(actual, OperandType)}, expected {' or '.join(names)}",
    )


def _check_ranks(
    type_: AnyOperationType,
    kind: str,
    declared: tuple[Argument, ...],
    operands: tuple[Operand, ...],
) -> None:
    """Check the rank of each operand, and that only optional ones are omitted."""
    for position, (argument, operand) in enumerate(
        zip(declared, operands, strict=True)
    ):
        if operand.lifetime == OperandLifeTime.NO_VALUE:
            if not argument.optional:
                raise argument_error(
                    type_, kind, position, argument, "must not be omitted"
                )
        elif argument.ranks and len(operand.dimensions) not in (0, *argument.ranks):
            expected = " or ".join(map(str, argument.ranks))
            raise argument_error(
                type_,
                kind,
                position,
                argument,
                f"has rank {len(operand.dimensions)}, expected {expected}",
            )


_MAX_SIZE_BYTES = 0xFFFFFFFF


def infer_shapes(operation: BoundOperation) -> tuple[Shape | None, ...]:
    """Return the shape of each output, None where only the computed data show it.

    :raises ValueNeededError: if it takes a value or shape that is not known yet; always
        for IF and WHILE, whose results are a subgraph's.
    :raises OperationFailedError: if shapes, values or quantisation do not fit.
    :raises GeneralFailureError: if nothing is known of the operation.
    """
    signature = signature_of(operation.type)
    if signature is None:
        raise GeneralFailureError(f"{operation.type.name} is not supported")
    _check_quantization(signature, operation)
    shapes = signature.shape(operation)
    for shape, operand in zip(shapes, operation.outputs, strict=True):
        size = math.prod(shape or ()) * operand.dtype.itemsize
        if size > _MAX_SIZE_BYTES:
            raise OperationFailedError(
                f"{operation.type.name}: an output of {size} bytes exceeds 32 bits"
            )
    return shapes


def _check_quantization(
    signature: OperationSignature, operation: BoundOperation
) -> None:
    layout = signature.layouts[0]
    pairs = chain(
        zip(layout.inputs, operation.inputs, strict=False),
        zip(layout.outputs, operation.outputs, strict=False),
    )
    for argument, operand in pairs:
        if argument.quantization is None or operand is None:
            continue
        if isinstance(operand.type, ExtensionOperandType):
            continue
        actual = operand.scale, operand.zero_point
        expected = argument.quantization.get(operand.type, actual)
        if actual != expected:
            raise OperationFailedError(
                f"{operation.type.name}: {argument.name} has scale {actual[0]} and "
                f"zero point {actual[1]}, expected {expected[0]} and {expected[1]}"
            )
