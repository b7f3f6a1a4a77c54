"""Takes cases apart into operands with their values, and puts such together again."""

from collections import Counter
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from asyncnn.engine.plan import CONSTANT_LIFETIMES, constant_array
from asyncnn.hal.operations import check_operation
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    DataLocation,
    HalVersion,
    Model,
    Operand,
    OperandLifeTime,
    Operation,
    Subgraph,
)
from asyncnn.tools.conformance.vectors import Case, ExpectedOutput

_ALIGNMENT = 4


class Stored(msgspec.Struct, frozen=True, eq=False):
    """An operand with the value of a constant or input, or that expected of an output.

    The value of a temporary and of an omitted input is None. ``ignored`` outputs are
    not compared.
    """

    operand: Operand
    value: Array | None = None
    ignored: bool = False


def is_single(case: Case) -> bool:
    """Return whether a case runs one operation and nothing else."""
    return len(case.model.main.operations) == 1 and not case.model.referenced


def take_apart(case: Case) -> list[Stored]:
    """Return each operand of the main subgraph with its value."""
    main = case.model.main
    inputs = dict(zip(main.input_indexes, case.inputs, strict=True))
    outputs = dict(zip(main.output_indexes, case.outputs, strict=True))
    stored = []
    for index, operand in enumerate(main.operands):
        if index in outputs:
            expected = outputs[index]
            stored.append(Stored(operand, expected.value, expected.ignored))
        elif operand.lifetime in CONSTANT_LIFETIMES:
            stored.append(Stored(operand, constant_array(case.model, operand)))
        else:
            stored.append(Stored(operand, inputs.get(index)))
    return stored


def rewritten(
    template: Case,
    suffix: str,
    stored: Sequence[Stored],
    operations: Sequence[Operation],
) -> Case:
    """Return ``template`` with other operands and operations, under a longer name.

    :raises InvalidArgumentError: if an operation of the result is not legal.
    """
    name = f"{template.name}_{suffix}"
    return put_together(template.folder, template.spec, name, stored, operations)


def put_together(
    folder: str,
    spec: str,
    name: str,
    stored: Sequence[Stored],
    operations: Sequence[Operation],
) -> Case:
    """Return the case of a model whose inputs and outputs are in operand order.

    :raises InvalidArgumentError: if an operation is not legal in any version.
    """
    constants = bytearray()
    consumers = Counter(index for op in operations for index in op.inputs)
    operands = tuple(
        _place(constants, each, consumers[index]) for index, each in enumerate(stored)
    )
    inputs = _with_lifetime(operands, OperandLifeTime.SUBGRAPH_INPUT)
    outputs = _with_lifetime(operands, OperandLifeTime.SUBGRAPH_OUTPUT)
    return Case(
        spec=spec,
        folder=folder,
        name=name,
        min_hal=max(check_operation(op, operands, _NEWEST) for op in operations),
        declared_hal=None,
        expect_failure=False,
        relaxed=False,
        model=Model(
            Subgraph(operands, tuple(operations), inputs, outputs),
            operand_values=bytes(constants),
        ),
        inputs=tuple(stored[index].value for index in inputs),
        outputs=tuple(_expected(stored[index]) for index in outputs),
    )


_NEWEST = max(HalVersion)


def _place(constants: bytearray, stored: Stored, consumers: int) -> Operand:
    operand = replace(stored.operand, number_of_consumers=consumers)
    if stored.value is None or operand.lifetime not in CONSTANT_LIFETIMES:
        return operand
    constants.extend(bytes(-len(constants) % _ALIGNMENT))
    location = DataLocation(offset=len(constants), length=stored.value.nbytes)
    constants.extend(stored.value.tobytes())
    return replace(operand, lifetime=OperandLifeTime.CONSTANT_COPY, location=location)


def _with_lifetime(
    operands: Sequence[Operand], lifetime: OperandLifeTime
) -> tuple[int, ...]:
    return tuple(
        i for i, operand in enumerate(operands) if operand.lifetime == lifetime
    )


def _expected(stored: Stored) -> ExpectedOutput:
    assert stored.value is not None
    return ExpectedOutput(stored.value, stored.ignored)
