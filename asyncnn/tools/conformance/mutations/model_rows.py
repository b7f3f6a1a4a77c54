"""Mutations of models: of operands, operations, cycles, preferences and priorities."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeAlias

from msgspec.structs import replace

from asyncnn import hal
from asyncnn.hal.operands import SCALAR_TYPES
from asyncnn.tools.conformance.mutations.legal import (
    why_input_goes,
    why_integer_fits,
    why_operand_goes,
    why_type_fits,
)
from asyncnn.tools.conformance.mutations.mutant import (
    Mutant,
    Mutants,
    MutationRow,
    can_be_constant,
    recounted,
    removed,
    replaced,
    with_item,
    with_lifetime,
    with_main,
    with_new_operand,
    with_operand,
    with_operation,
    without_operand,
)

Fields: TypeAlias = dict[str, Any]

_TEMPORARY = hal.OperandLifeTime.TEMPORARY_VARIABLE
_INPUT = hal.OperandLifeTime.SUBGRAPH_INPUT
_OUTPUT = hal.OperandLifeTime.SUBGRAPH_OUTPUT
_COPY = hal.OperandLifeTime.CONSTANT_COPY
_REFERENCE = hal.OperandLifeTime.CONSTANT_REFERENCE
_WRITTEN = (_TEMPORARY, _OUTPUT)
_GIVEN = (_COPY, _REFERENCE, _INPUT)
_SAME_WRITER: dict[int, hal.OperandLifeTime] = {
    _COPY: _INPUT,
    _REFERENCE: _INPUT,
    _OUTPUT: _TEMPORARY,
    _TEMPORARY: _OUTPUT,
}

_F32, _I32 = hal.OperandType.TENSOR_FLOAT32, hal.OperandType.TENSOR_INT32
_Q8PC = hal.OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
_RANKLESS = (*SCALAR_TYPES, hal.OperandType.SUBGRAPH)
_OEM = (hal.OperandType.OEM, hal.OperandType.TENSOR_OEM_BYTE)
_TYPES = [type_ for type_ in hal.OperandType if type_ not in _OEM]
_OF_QUANTISED = {
    hal.OperandType.TENSOR_QUANT8_ASYMM: (-1, 256),
    hal.OperandType.TENSOR_QUANT8_ASYMM_SIGNED: (-129, 128),
    hal.OperandType.TENSOR_QUANT8_SYMM: (-129, -1, 1, 128),
    hal.OperandType.TENSOR_QUANT16_ASYMM: (-1, 65536),
    hal.OperandType.TENSOR_QUANT16_SYMM: (-32769, -1, 1, 32768),
}
_BAD_ZERO_POINTS = dict.fromkeys(_TYPES, (1,)) | _OF_QUANTISED
_FIRST_MISSING_TYPE = {
    hal.HalVersion.V1_0: hal.OperandType.BOOL,
    hal.HalVersion.V1_1: hal.OperandType.BOOL,
    hal.HalVersion.V1_2: hal.OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
}
_OEM_OPERATION = hal.OperationType.OEM_OPERATION
_AFTER_LAST_OPERATION = max({*hal.OperationType} - {_OEM_OPERATION}) + 1

_Change: TypeAlias = Callable[[Any, hal.Model, hal.HalVersion], Iterable[Fields]]
"""Makes of an operand, or an operation, fields that are wrong there."""


def _each(kind: str, change: _Change) -> Callable[[hal.Model, hal.HalVersion], Mutants]:
    """Mutate fields of each of the ``operands`` or ``operations``."""

    def mutate(model: hal.Model, version: hal.HalVersion) -> Mutants:
        for index, item in enumerate(getattr(model.main, kind)):
            for fields in change(item, model, version):
                words = ", ".join(f"{name} {value}" for name, value in fields.items())
                changed = with_item(model, kind, index, **fields)
                yield Mutant(f"{kind[:-1]} {index}: {words}", changed)

    return mutate


def _wrong_types(operand: Any, model: Any, version: hal.HalVersion) -> Iterable[Fields]:
    types = 0xFFFF_FFFF, _FIRST_MISSING_TYPE.get(version, max(_TYPES) + 1), 9999, 10002
    return [{"type": int(type_)} for type_ in types]


def _wrong_ranks(operand: Any, model: Any, version: hal.HalVersion) -> Iterable[Fields]:
    if operand.type in _RANKLESS:
        return [{"dimensions": (0,)}]
    return [{"dimensions": ()}] if version < hal.HalVersion.V1_2 else []


def _wrong_scales(operand: hal.Operand, *_: Any) -> Iterable[Fields]:
    scale = 0.0 if operand.type in _OF_QUANTISED else 1.0
    return [{"scale": -1.0 if operand.type == _I32 else scale}]


def _wrong_zero_points(operand: hal.Operand, *_: Any) -> Iterable[Fields]:
    wrong = _BAD_ZERO_POINTS[hal.OperandType(operand.type)]
    return [{"zero_point": each} for each in wrong]


def _wrong_counts(operand: hal.Operand, *_: Any) -> Iterable[Fields]:
    count = operand.number_of_consumers
    wrong = (count - 1, count + 1) if count else (1,)
    return [{"number_of_consumers": each} for each in wrong]


def _wrong_operations(*_: Any) -> Iterable[Fields]:
    return [{"type": each} for each in (_AFTER_LAST_OPERATION, 9999, 10001, -1)]


def _beyond(kind: str) -> _Change:
    def change(operation: hal.Operation, model: hal.Model, _: Any) -> Iterable[Fields]:
        indexes, beyond = getattr(operation, kind), len(model.main.operands)
        return [{kind: replaced(indexes, at, beyond)} for at in range(len(indexes))]

    return change


def _fewer_outputs(operation: hal.Operation, *_: Any) -> Iterable[Fields]:
    outputs = operation.outputs
    return [{"outputs": removed(outputs, at)} for at in range(len(outputs))]


def _lifetimes(model: hal.Model, version: hal.HalVersion, *, listed: bool) -> Mutants:
    """Give operands lifetimes of another writer or, if not ``listed``, of the same."""
    for index, operand in enumerate(model.main.operands):
        is_small, lifetimes = can_be_constant(operand), []
        if listed and operand.lifetime in _WRITTEN:
            lifetimes = [_INPUT, _COPY] if is_small else [_INPUT]
        elif listed and operand.lifetime in _GIVEN:
            lifetimes = [*_WRITTEN]
        elif not listed and operand.lifetime == _INPUT and is_small:
            lifetimes = [_COPY]
        elif not listed and operand.lifetime in _SAME_WRITER:
            lifetimes = [_SAME_WRITER[operand.lifetime]]
        for lifetime in lifetimes:
            changed = with_lifetime(model, index, lifetime, listed=listed)
            yield Mutant(f"operand {index} becomes {lifetime.name}", changed)


def _other_types(model: hal.Model, version: hal.HalVersion) -> Mutants:
    """Give operands other types, consistent in themselves."""
    for index, operand in enumerate(model.main.operands):
        dimensions = operand.dimensions or (1,)
        plain: Fields = {"dimensions": dimensions, "scale": 0.0, "zero_point": 0}
        for type_ in _TYPES:
            if type_ == operand.type:
                continue
            fields = {**plain, "type": type_, "extra_params": None}
            if type_ in SCALAR_TYPES:
                fields["dimensions"] = ()
            elif type_ == _I32:
                fields["scale"] = operand.scale
            elif type_ in _OF_QUANTISED:
                fields["scale"] = operand.scale or 1.0
                fields["zero_point"] = operand.zero_point
            elif type_ == _Q8PC:
                scales = (1.0,) * dimensions[0]
                fields["extra_params"] = hal.SymmPerChannelQuantParams(scales, 0)
            yield Mutant(
                f"operand {index} becomes {type_.name}",
                with_operand(model, index, **fields),
                may_pass=why_type_fits(model, index, type_),
            )


def _without_operands(model: hal.Model, version: hal.HalVersion) -> Mutants:
    for index in range(len(model.main.operands)):
        changed, why = without_operand(model, index), why_operand_goes(model, index)
        yield Mutant(f"operand {index} is removed", changed, may_pass=why)


def _out_of_order(model: hal.Model, version: hal.HalVersion, *, first: bool) -> Mutants:
    """Move what reads to the beginning, or else what is read to the end."""
    operands = model.main.operands
    for index, operation in enumerate(model.main.operations):
        rest = removed(model.main.operations, index)
        if first:
            is_bound = any(operands[i].lifetime in _WRITTEN for i in operation.inputs)
            order = (operation, *rest)
        else:
            is_bound = any(operands[i].number_of_consumers for i in operation.outputs)
            order = (*rest, operation)
        if is_bound:
            words = f"operation {index} goes {'first' if first else 'last'}"
            yield Mutant(words, with_main(model, operations=order))


def _written_twice(model: hal.Model, version: hal.HalVersion) -> Mutants:
    """Append copies of operations that share only one output with them."""
    for index, operation in enumerate(model.main.operations):
        for position, shared in enumerate(operation.outputs):
            larger, outputs = model, []
            for output in operation.outputs:
                if output != shared:
                    larger, output = with_new_operand(larger, _temporary(model, output))
                outputs.append(output)
            second = replace(operation, outputs=tuple(outputs))
            operations = (*model.main.operations, second)
            changed = recounted(with_main(larger, operations=operations))
            yield Mutant(f"output {position} of {index} is written again", changed)


def _written_elsewhere(model: hal.Model, version: hal.HalVersion) -> Mutants:
    for index, operation in enumerate(model.main.operations):
        for position, output in enumerate(operation.outputs):
            if model.main.operands[output].number_of_consumers:
                larger, new = with_new_operand(model, _temporary(model, output))
                outputs = replaced(operation.outputs, position, new)
                changed = with_operation(larger, index, outputs=outputs)
                yield Mutant(f"output {position} of {index} goes elsewhere", changed)


def _temporary(model: hal.Model, like: int) -> hal.Operand:
    operand = model.main.operands[like]
    return replace(operand, lifetime=_TEMPORARY, number_of_consumers=0)


def _without_operations(model: hal.Model, version: hal.HalVersion) -> Mutants:
    for index in range(len(model.main.operations)):
        rest = removed(model.main.operations, index)
        changed = recounted(with_main(model, operations=rest))
        yield Mutant(f"operation {index} is removed", changed)


def _fewer_inputs(model: hal.Model, version: hal.HalVersion) -> Mutants:
    for index, operation in enumerate(model.main.operations):
        for position in range(len(operation.inputs)):
            inputs = removed(operation.inputs, position)
            yield Mutant(
                f"input {position} of {index} is removed",
                recounted(with_operation(model, index, inputs=inputs)),
                may_pass=why_input_goes(operation, position),
            )


def _one_more(kind: str, model: hal.Model, version: hal.HalVersion) -> Mutants:
    """Have operations read or write another INT32, which is of the model's border."""
    lifetime, border = (
        hal.OperandLifeTime[f"SUBGRAPH_{kind}"],
        f"{kind.lower()}_indexes",
    )
    larger, new = with_new_operand(
        model, hal.Operand(hal.OperandType.INT32, lifetime=lifetime)
    )
    larger = with_main(larger, **{border: (*getattr(model.main, border), new)})
    for index, operation in enumerate(model.main.operations):
        field = f"{kind.lower()}s"
        changes = {field: (*getattr(operation, field), new)}
        yield Mutant(
            f"operation {index} has one more {kind.lower()}",
            recounted(with_operation(larger, index, **changes)),
            may_pass=why_integer_fits(operation) if kind == "INPUT" else "",
        )


def _unknown(
    field: str, known: Any, since: hal.HalVersion, model: hal.Model, version: Any
) -> Mutants:
    if version >= since:
        for bad in (min(known) - 1, max(known) + 1):
            yield replace(Mutant(f"{field} {bad}", model), **{field: bad})


_PREFERENCE = partial(
    _unknown, "preference", hal.ExecutionPreference, hal.HalVersion.V1_1
)
_PRIORITY = partial(_unknown, "priority", hal.Priority, hal.HalVersion.V1_3)
_FIRST, _LAST = (partial(_out_of_order, first=each) for each in (True, False))
_LISTED, _UNLISTED = (partial(_lifetimes, listed=each) for each in (True, False))

MODEL_ROWS = (
    MutationRow("VM1", "an operation comes before what it reads", _FIRST),
    MutationRow("VM2", "an operation comes after what reads it", _LAST),
    MutationRow(
        "VM3", "an operand has a type that is none", _each("operands", _wrong_types)
    ),
    MutationRow(
        "VM4", "a scalar has a rank, a tensor has none", _each("operands", _wrong_ranks)
    ),
    MutationRow(
        "VM5", "an operand has a wrong scale", _each("operands", _wrong_scales)
    ),
    MutationRow(
        "VM6",
        "an operand has a wrong zero point",
        _each("operands", _wrong_zero_points),
    ),
    MutationRow("VM7", "a lifetime gains or loses a writer", _LISTED),
    MutationRow("VM8", "a lifetime changes, but not the lists", _UNLISTED),
    MutationRow("VM9", "consumers are miscounted", _each("operands", _wrong_counts)),
    MutationRow("VM10", "an operand is written twice", _written_twice),
    MutationRow("VM11", "an operand has another type", _other_types),
    MutationRow(
        "VM12",
        "an operation has a type that is none",
        _each("operations", _wrong_operations),
    ),
    MutationRow(
        "VM13", "an operation reads no operand", _each("operations", _beyond("inputs"))
    ),
    MutationRow(
        "VM14",
        "an operation writes no operand",
        _each("operations", _beyond("outputs")),
    ),
    MutationRow("VM15", "an operand is read, but never written", _written_elsewhere),
    MutationRow("VM16", "an operand is removed", _without_operands),
    MutationRow("VM17", "an operation is removed", _without_operations),
    MutationRow("VM18", "an operation lacks an input", _fewer_inputs),
    MutationRow(
        "VM19", "an operation lacks an output", _each("operations", _fewer_outputs)
    ),
    MutationRow("VM20", "an operation has one more input", partial(_one_more, "INPUT")),
    MutationRow(
        "VM21", "an operation has one more output", partial(_one_more, "OUTPUT")
    ),
    MutationRow("VM22", "the preference is none", _PREFERENCE, False),
    MutationRow("VM23", "the priority is none", _PRIORITY, False),
)
"""Every mutation of models that is made from a vector, in order."""


def cyclic_mutant() -> Mutant:
    """Return a model of three ADDs, two of which read what the other one writes."""
    location = hal.DataLocation(length=4)
    main = hal.Subgraph(
        operands=(
            hal.Operand(_F32, (1,), 2, lifetime=_INPUT),
            hal.Operand(_F32, (1,), 1, lifetime=_INPUT),
            hal.Operand(_F32, (1,), 2),
            hal.Operand(_F32, (1,), 1),
            hal.Operand(_F32, (1,), 0, lifetime=_OUTPUT),
            hal.Operand(
                hal.OperandType.INT32, (), 3, lifetime=_COPY, location=location
            ),
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
