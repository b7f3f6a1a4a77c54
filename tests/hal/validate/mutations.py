"""The public suite's mutations of valid models: each result must be refused.

The names VM1 to VM21 number the rows. Every function takes a valid model and the
version of its structure, and yields a label with each mutated model. Skipped are the
mutants that may be legal, which `legal` knows.
"""

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

from msgspec.structs import replace

from asyncnn.hal.operands import DTYPES, SCALAR_TYPES
from asyncnn.hal.types import (
    DataLocation,
    HalVersion,
    Model,
    Operand,
    OperandType,
    SymmPerChannelQuantParams,
)
from asyncnn.hal.types import OperationType as Op
from tests.hal.validate.legal import (
    may_gain_integer,
    may_have_type,
    may_lose_input,
    may_lose_operand,
)
from tests.hal.validate.samples import (
    COPY,
    INPUT,
    OUTPUT,
    REFERENCE,
    TEMPORARY,
    with_main,
    with_operand,
    with_operation,
)

Mutants: TypeAlias = Iterator[tuple[str, Model]]
Mutation: TypeAlias = Callable[[Model, HalVersion], Mutants]

WRITTEN = (TEMPORARY, OUTPUT)
GIVEN = (COPY, REFERENCE, INPUT)
LARGEST_CONSTANT = 32 * 1024
"""As in the suite, nothing larger becomes a constant."""

I32 = OperandType.TENSOR_INT32
Q8 = OperandType.TENSOR_QUANT8_ASYMM
Q8S = OperandType.TENSOR_QUANT8_ASYMM_SIGNED
Q8SYM = OperandType.TENSOR_QUANT8_SYMM
Q8PC = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
Q16A = OperandType.TENSOR_QUANT16_ASYMM
Q16S = OperandType.TENSOR_QUANT16_SYMM
QUANTISED = (Q8, Q8S, Q8SYM, Q16A, Q16S)
OEM = (OperandType.OEM, OperandType.TENSOR_OEM_BYTE)
NO_OEM = [t for t in OperandType if t not in OEM]
UNQUANTISED = [t for t in NO_OEM if t not in (*QUANTISED, I32)]
BAD_ZERO_POINTS = {
    **dict.fromkeys((*UNQUANTISED, I32), (1,)),
    Q8: (-1, 256),
    Q8S: (-129, 128),
    Q8SYM: (-129, -1, 1, 128),
    Q16A: (-1, 65536),
    Q16S: (-32769, -1, 1, 32768),
}


def mutants(model: Model, version: HalVersion) -> Mutants:
    """Yield every mutant of ``model`` with a label that starts with its row."""
    for mutation in MUTATIONS:
        for label, mutant in mutation(model, version):
            yield f"{mutation.__name__.upper()} {label}", mutant


def vm1(model: Model, version: HalVersion) -> Mutants:
    operations = model.main.operations
    for index, operation in enumerate(operations):
        if any(model.main.operands[i].lifetime in WRITTEN for i in operation.inputs):
            rest = operations[:index] + operations[index + 1 :]
            yield f"reader {index}", with_main(model, operations=(operation, *rest))


def vm2(model: Model, version: HalVersion) -> Mutants:
    operations = model.main.operations
    for index, operation in enumerate(operations):
        if any(model.main.operands[i].number_of_consumers for i in operation.outputs):
            rest = operations[:index] + operations[index + 1 :]
            yield f"writer {index}", with_main(model, operations=(*rest, operation))


def vm3(model: Model, version: HalVersion) -> Mutants:
    types = sorted(t for t in OperandType if t < OperandType.OEM)
    after = {HalVersion.V1_0: 6, HalVersion.V1_1: 6, HalVersion.V1_2: 14}
    beyond = after.get(version, types[-1] + 1)
    for index in range(len(model.main.operands)):
        for type_ in (0xFFFFFFFF, beyond, 9999, 10002):
            yield f"type {type_} of {index}", with_operand(model, index, type=type_)


def vm4(model: Model, version: HalVersion) -> Mutants:
    for index, operand in enumerate(model.main.operands):
        if operand.type in (*SCALAR_TYPES, OperandType.SUBGRAPH):
            yield f"rank of {index}", with_operand(model, index, dimensions=(0,))
        elif version < HalVersion.V1_2:
            yield f"rank of {index}", with_operand(model, index, dimensions=())


def vm5(model: Model, version: HalVersion) -> Mutants:
    for index, operand in enumerate(model.main.operands):
        scale = 0.0 if operand.type in QUANTISED else 1.0
        if operand.type == I32:
            scale = -1.0
        yield f"scale of {index}", with_operand(model, index, scale=scale)


def vm6(model: Model, version: HalVersion) -> Mutants:
    for index, operand in enumerate(model.main.operands):
        for bad in BAD_ZERO_POINTS[OperandType(operand.type)]:
            mutant = with_operand(model, index, zero_point=bad)
            yield f"zero point {bad} of {index}", mutant


def vm7(model: Model, version: HalVersion) -> Mutants:
    for index, operand in enumerate(model.main.operands):
        if operand.lifetime in WRITTEN:
            yield f"{index} becomes an input", _relive(model, index, INPUT)
            if _can_be_constant(operand):
                yield f"{index} becomes a constant", _relive(model, index, COPY)
        elif operand.lifetime in GIVEN:
            yield f"{index} becomes temporary", _relive(model, index, TEMPORARY)
            yield f"{index} becomes an output", _relive(model, index, OUTPUT)


def vm8(model: Model, version: HalVersion) -> Mutants:
    other = {COPY: INPUT, REFERENCE: INPUT, OUTPUT: TEMPORARY, TEMPORARY: OUTPUT}
    for index, operand in enumerate(model.main.operands):
        lifetime = other.get(operand.lifetime)
        if operand.lifetime == INPUT and _can_be_constant(operand):
            lifetime = COPY
        if lifetime is not None:
            yield f"{index} unlisted as {lifetime}", _move(model, index, lifetime)


def vm9(model: Model, version: HalVersion) -> Mutants:
    if version > HalVersion.V1_3:
        return
    for index, operand in enumerate(model.main.operands):
        count = operand.number_of_consumers
        for wrong in (count - 1, count + 1) if count else (1,):
            mutant = with_operand(model, index, number_of_consumers=wrong)
            yield f"{wrong} consumers of {index}", mutant


def vm10(model: Model, version: HalVersion) -> Mutants:
    for index, operation in enumerate(model.main.operations):
        for position in range(len(operation.outputs)):
            yield f"output {position} of {index}", _write_twice(model, index, position)


def vm11(model: Model, version: HalVersion) -> Mutants:
    for index, operand in enumerate(model.main.operands):
        for type_ in NO_OEM:
            if type_ != operand.type and not may_have_type(model, index, type_):
                changed = _retyped(operand, type_)
                operands = list(model.main.operands)
                operands[index] = changed
                label = f"type {type_.name} of {index}"
                yield label, with_main(model, operands=tuple(operands))


def vm12(model: Model, version: HalVersion) -> Mutants:
    beyond = max(t for t in Op if t != Op.OEM_OPERATION) + 1
    for index in range(len(model.main.operations)):
        for type_ in (beyond, 9999, 10001, -1):
            yield f"type {type_} of {index}", with_operation(model, index, type=type_)


def vm13(model: Model, version: HalVersion) -> Mutants:
    beyond = len(model.main.operands)
    for index, operation in enumerate(model.main.operations):
        for position in range(len(operation.inputs)):
            inputs = _replaced(operation.inputs, position, beyond)
            mutant = with_operation(model, index, inputs=inputs)
            yield f"input {position} of {index}", mutant


def vm14(model: Model, version: HalVersion) -> Mutants:
    beyond = len(model.main.operands)
    for index, operation in enumerate(model.main.operations):
        for position in range(len(operation.outputs)):
            outputs = _replaced(operation.outputs, position, beyond)
            mutant = with_operation(model, index, outputs=outputs)
            yield f"output {position} of {index}", mutant


def vm15(model: Model, version: HalVersion) -> Mutants:
    for index, operation in enumerate(model.main.operations):
        for position, output in enumerate(operation.outputs):
            if model.main.operands[output].number_of_consumers:
                copied, fresh = _with_fresh_temporary(model, output)
                outputs = _replaced(operation.outputs, position, fresh)
                mutant = with_operation(copied, index, outputs=outputs)
                yield f"output {position} of {index}", mutant


def vm16(model: Model, version: HalVersion) -> Mutants:
    for index, operand in enumerate(model.main.operands):
        if operand.number_of_consumers and not may_lose_operand(model, index):
            yield f"operand {index}", _without_operand(model, index)


def vm17(model: Model, version: HalVersion) -> Mutants:
    for index, operation in enumerate(model.main.operations):
        smaller = model
        for operand in operation.inputs:
            smaller = _with_consumers(smaller, operand, -1)
        operations = model.main.operations
        rest = operations[:index] + operations[index + 1 :]
        yield f"operation {index}", with_main(smaller, operations=rest)


def vm18(model: Model, version: HalVersion) -> Mutants:
    for index, operation in enumerate(model.main.operations):
        for position, operand in enumerate(operation.inputs):
            if not may_lose_input(operation, position):
                inputs = _removed(operation.inputs, position)
                smaller = _with_consumers(model, operand, -1)
                mutant = with_operation(smaller, index, inputs=inputs)
                yield f"input {position} of {index}", mutant


def vm19(model: Model, version: HalVersion) -> Mutants:
    for index, operation in enumerate(model.main.operations):
        for position in range(len(operation.outputs)):
            outputs = _removed(operation.outputs, position)
            mutant = with_operation(model, index, outputs=outputs)
            yield f"output {position} of {index}", mutant


def vm20(model: Model, version: HalVersion) -> Mutants:
    fresh = len(model.main.operands)
    extra = Operand(OperandType.INT32, number_of_consumers=1, lifetime=INPUT)
    larger = with_main(
        model,
        operands=(*model.main.operands, extra),
        input_indexes=(*model.main.input_indexes, fresh),
    )
    for index, operation in enumerate(model.main.operations):
        if not may_gain_integer(operation):
            inputs = (*operation.inputs, fresh)
            yield f"input of {index}", with_operation(larger, index, inputs=inputs)


def vm21(model: Model, version: HalVersion) -> Mutants:
    fresh = len(model.main.operands)
    extra = Operand(OperandType.INT32, lifetime=OUTPUT)
    larger = with_main(
        model,
        operands=(*model.main.operands, extra),
        output_indexes=(*model.main.output_indexes, fresh),
    )
    for index, operation in enumerate(model.main.operations):
        outputs = (*operation.outputs, fresh)
        yield f"output of {index}", with_operation(larger, index, outputs=outputs)


MUTATIONS: tuple[Mutation, ...] = (
    *(vm1, vm2, vm3, vm4, vm5, vm6, vm7, vm8, vm9, vm10, vm11),
    *(vm12, vm13, vm14, vm15, vm16, vm17, vm18, vm19, vm20, vm21),
)


def _size_bytes(operand: Operand) -> int:
    if operand.type not in DTYPES:
        return 0
    is_scalar = operand.type in SCALAR_TYPES
    count = math.prod(operand.dimensions) if is_scalar or operand.dimensions else 0
    return DTYPES[operand.type].itemsize * count


def _can_be_constant(operand: Operand) -> bool:
    return 0 < _size_bytes(operand) <= LARGEST_CONSTANT


def _move(model: Model, index: int, lifetime: int) -> Model:
    """Change a lifetime, and the location to suit, but not the lists of the border."""
    size = _size_bytes(model.main.operands[index]) if lifetime == COPY else 0
    moved = with_operand(
        model, index, lifetime=lifetime, location=DataLocation(length=size)
    )
    values = model.operand_values.ljust(size, b"\0")
    return replace(moved, operand_values=values)


def _relive(model: Model, index: int, lifetime: int) -> Model:
    """Change a lifetime, the location and the lists of the border."""
    inputs = [i for i in model.main.input_indexes if i != index]
    outputs = [i for i in model.main.output_indexes if i != index]
    if lifetime in (INPUT, OUTPUT):
        (inputs if lifetime == INPUT else outputs).append(index)
    return with_main(
        _move(model, index, lifetime),
        input_indexes=tuple(inputs),
        output_indexes=tuple(outputs),
    )


def _write_twice(model: Model, index: int, position: int) -> Model:
    """Append a copy of an operation that shares only output ``position`` with it."""
    operation = model.main.operations[index]
    outputs = list(operation.outputs)
    for other, output in enumerate(operation.outputs):
        if other != position:
            model, outputs[other] = _with_fresh_temporary(model, output)
    for operand in operation.inputs:
        model = _with_consumers(model, operand, 1)
    second = replace(operation, outputs=tuple(outputs))
    return with_main(model, operations=(*model.main.operations, second))


def _retyped(operand: Operand, type_: OperandType) -> Operand:
    dimensions = operand.dimensions or (1,)
    changed = replace(operand, type=type_, extra_params=None)
    if type_ in SCALAR_TYPES:
        return replace(changed, dimensions=(), scale=0.0, zero_point=0)
    if type_ == I32:
        return replace(changed, dimensions=dimensions, zero_point=0)
    if type_ in QUANTISED:
        scale = operand.scale or 1.0
        return replace(changed, dimensions=dimensions, scale=scale)
    if type_ == Q8PC:
        extra = SymmPerChannelQuantParams((1.0,) * dimensions[0], 0)
        changed = replace(changed, extra_params=extra)
    return replace(changed, dimensions=dimensions, scale=0.0, zero_point=0)


def _with_fresh_temporary(model: Model, like: int) -> tuple[Model, int]:
    operand = replace(
        model.main.operands[like], lifetime=TEMPORARY, number_of_consumers=0
    )
    operands = (*model.main.operands, operand)
    return with_main(model, operands=operands), len(operands) - 1


def _with_consumers(model: Model, index: int, more: int) -> Model:
    count = model.main.operands[index].number_of_consumers + more
    return with_operand(model, index, number_of_consumers=count)


def _without_operand(model: Model, index: int) -> Model:
    """Remove an operand and its mentions; as in the suite, larger indices stay."""
    main = model.main
    return with_main(
        model,
        operands=_removed(main.operands, index),
        operations=tuple(
            replace(
                operation,
                inputs=tuple(i for i in operation.inputs if i != index),
                outputs=tuple(i for i in operation.outputs if i != index),
            )
            for operation in main.operations
        ),
        input_indexes=tuple(i for i in main.input_indexes if i != index),
        output_indexes=tuple(i for i in main.output_indexes if i != index),
    )


def _replaced(items: tuple[int, ...], position: int, item: int) -> tuple[int, ...]:
    return (*items[:position], item, *items[position + 1 :])


def _removed(items: tuple, position: int) -> tuple:
    return items[:position] + items[position + 1 :]
