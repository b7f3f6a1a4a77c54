"""Mutations of operations, of cycles among them, and of preferences and priorities."""

from functools import partial

from msgspec.structs import replace

from asyncnn import hal
from asyncnn.tools.conformance.mutations.legal import why_input_goes, why_integer_fits
from asyncnn.tools.conformance.mutations.mutant import (
    Mutant,
    Mutants,
    Row,
    removed,
    replaced,
    with_consumers,
    with_main,
    with_new_border,
    with_new_temporary,
    with_operation,
)

_WRITTEN = (hal.OperandLifeTime.TEMPORARY_VARIABLE, hal.OperandLifeTime.SUBGRAPH_OUTPUT)
_AFTER_LAST_TYPE = (
    max(t for t in hal.OperationType if t != hal.OperationType.OEM_OPERATION) + 1
)


_F32 = hal.OperandType.TENSOR_FLOAT32
_INPUT = hal.OperandLifeTime.SUBGRAPH_INPUT


def _readers_first(model: hal.Model, version: hal.HalVersion) -> Mutants:
    main = model.main
    for index, operation in enumerate(main.operations):
        if any(main.operands[i].lifetime in _WRITTEN for i in operation.inputs):
            order = (operation, *removed(main.operations, index))
            changed = with_main(model, operations=order)
            yield Mutant(f"operation {index} goes first", changed)


def _writers_last(model: hal.Model, version: hal.HalVersion) -> Mutants:
    main = model.main
    for index, operation in enumerate(main.operations):
        if any(main.operands[i].number_of_consumers for i in operation.outputs):
            order = (*removed(main.operations, index), operation)
            changed = with_main(model, operations=order)
            yield Mutant(f"operation {index} goes last", changed)


def _second_writers(model: hal.Model, version: hal.HalVersion) -> Mutants:
    for index, operation in enumerate(model.main.operations):
        for position in range(len(operation.outputs)):
            changed = _with_second_writer(model, index, position)
            yield Mutant(f"output {position} of {index} is written again", changed)


def _unknown_types(model: hal.Model, version: hal.HalVersion) -> Mutants:
    for index in range(len(model.main.operations)):
        for type_ in (_AFTER_LAST_TYPE, 9999, 10001, -1):
            changed = with_operation(model, index, type=type_)
            yield Mutant(f"operation {index} of type {type_}", changed)


def _beyond(kind: str, model: hal.Model, version: hal.HalVersion) -> Mutants:
    beyond = len(model.main.operands)
    for index, operation in enumerate(model.main.operations):
        indexes = getattr(operation, kind)
        for position in range(len(indexes)):
            changes = {kind: replaced(indexes, position, beyond)}
            changed = with_operation(model, index, **changes)
            yield Mutant(f"{kind[:-1]} {position} of {index} is {beyond}", changed)


def _redirected_outputs(model: hal.Model, version: hal.HalVersion) -> Mutants:
    for index, operation in enumerate(model.main.operations):
        for position, output in enumerate(operation.outputs):
            if model.main.operands[output].number_of_consumers:
                larger, new = with_new_temporary(model, output)
                outputs = replaced(operation.outputs, position, new)
                changed = with_operation(larger, index, outputs=outputs)
                yield Mutant(f"output {position} of {index} goes elsewhere", changed)


def _removed_operations(model: hal.Model, version: hal.HalVersion) -> Mutants:
    for index, operation in enumerate(model.main.operations):
        rest = removed(model.main.operations, index)
        changed = with_main(model, operations=rest)
        for operand in operation.inputs:
            changed = with_consumers(changed, operand, -1)
        yield Mutant(f"operation {index} is removed", changed)


def _removed_inputs(model: hal.Model, version: hal.HalVersion) -> Mutants:
    for index, operation in enumerate(model.main.operations):
        for position, operand in enumerate(operation.inputs):
            inputs = removed(operation.inputs, position)
            changed = with_operation(model, index, inputs=inputs)
            yield Mutant(
                f"input {position} of {index} is removed",
                with_consumers(changed, operand, -1),
                may_pass=why_input_goes(operation, position),
            )


def _removed_outputs(model: hal.Model, version: hal.HalVersion) -> Mutants:
    for index, operation in enumerate(model.main.operations):
        for position in range(len(operation.outputs)):
            outputs = removed(operation.outputs, position)
            changed = with_operation(model, index, outputs=outputs)
            yield Mutant(f"output {position} of {index} is removed", changed)


def _added_inputs(model: hal.Model, version: hal.HalVersion) -> Mutants:
    extra = hal.Operand(hal.OperandType.INT32, number_of_consumers=1)
    larger, new = with_new_border(model, extra, "input")
    for index, operation in enumerate(model.main.operations):
        yield Mutant(
            f"operation {index} has one more input",
            with_operation(larger, index, inputs=(*operation.inputs, new)),
            may_pass=why_integer_fits(operation),
        )


def _added_outputs(model: hal.Model, version: hal.HalVersion) -> Mutants:
    larger, new = with_new_border(model, hal.Operand(hal.OperandType.INT32), "output")
    for index, operation in enumerate(model.main.operations):
        changed = with_operation(larger, index, outputs=(*operation.outputs, new))
        yield Mutant(f"operation {index} has one more output", changed)


def _unknown_preferences(model: hal.Model, version: hal.HalVersion) -> Mutants:
    if version >= hal.HalVersion.V1_1:
        for bad in (min(hal.ExecutionPreference) - 1, max(hal.ExecutionPreference) + 1):
            yield Mutant(f"preference {bad}", model, preference=bad)


def _unknown_priorities(model: hal.Model, version: hal.HalVersion) -> Mutants:
    if version >= hal.HalVersion.V1_3:
        for bad in (min(hal.Priority) - 1, max(hal.Priority) + 1):
            yield Mutant(f"priority {bad}", model, priority=bad)


OPERATION_ROWS = (
    Row("VM1", "an operation comes before what it reads", _readers_first),
    Row("VM2", "an operation comes after what reads it", _writers_last),
    Row("VM10", "an operand is written twice", _second_writers),
    Row("VM12", "an operation has a type that is none", _unknown_types),
    Row("VM13", "an operation reads no operand", partial(_beyond, "inputs")),
    Row("VM14", "an operation writes no operand", partial(_beyond, "outputs")),
    Row("VM15", "an operand is read, but never written", _redirected_outputs),
    Row("VM17", "an operation is removed", _removed_operations),
    Row("VM18", "an operation lacks an input", _removed_inputs),
    Row("VM19", "an operation lacks an output", _removed_outputs),
    Row("VM20", "an operation has one more input", _added_inputs),
    Row("VM21", "an operation has one more output", _added_outputs),
    Row("VM22", "the preference is none", _unknown_preferences, False),
    Row("VM23", "the priority is none", _unknown_priorities, False),
)


def cyclic_mutant() -> Mutant:
    """Return a model of three ADDs, two of which read what the other one writes."""
    no_activation = hal.Operand(
        hal.OperandType.INT32,
        number_of_consumers=3,
        lifetime=hal.OperandLifeTime.CONSTANT_COPY,
        location=hal.DataLocation(length=4),
    )
    main = hal.Subgraph(
        operands=(
            hal.Operand(_F32, (1,), 2, lifetime=_INPUT),
            hal.Operand(_F32, (1,), 1, lifetime=_INPUT),
            hal.Operand(_F32, (1,), 2),
            hal.Operand(_F32, (1,), 1),
            hal.Operand(_F32, (1,), 0, lifetime=hal.OperandLifeTime.SUBGRAPH_OUTPUT),
            no_activation,
        ),
        operations=(
            hal.Operation(hal.OperationType.ADD, (0, 2, 5), (3,)),
            hal.Operation(hal.OperationType.ADD, (1, 3, 5), (2,)),
            hal.Operation(hal.OperationType.ADD, (2, 0, 5), (4,)),
        ),
        input_indexes=(0, 1),
        output_indexes=(4,),
    )
    return Mutant("three ADDs in a circle", hal.Model(main, operand_values=bytes(4)))


def _with_second_writer(model: hal.Model, index: int, position: int) -> hal.Model:
    """Append a copy of an operation that shares only output ``position`` with it."""
    operation = model.main.operations[index]
    outputs = list(operation.outputs)
    for other, output in enumerate(operation.outputs):
        if other != position:
            model, outputs[other] = with_new_temporary(model, output)
    for operand in operation.inputs:
        model = with_consumers(model, operand, 1)
    second = replace(operation, outputs=tuple(outputs))
    return with_main(model, operations=(*model.main.operations, second))
