"""Workloads of IF and WHILE around an operation on 65536 numbers.

The figure of a branch or a loop comes on top of those of the operations that it runs.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from asyncnn.devices.measured_capabilities import ReferenceWorkload
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    DataLocation,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    Subgraph,
)
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel
from asyncnn.tools.capabilities.workload import Workload, add_inputs

_NUMBERS = Operand(OperandType.TENSOR_FLOAT32, (64, 1024))
_NUMBER = Operand(OperandType.TENSOR_FLOAT32, (1,))
_TRUTH = Operand(OperandType.TENSOR_BOOL8, (1,))

_CHOICES = 8
_FIRST_GUARD = 2.0**120
_LAST_GUARD = 1.00001
"""23 square roots lead from the first to below the last."""


def choices() -> Workload:
    """Return numbers whose signs eight IF after one another change or take away."""
    truths = tuple(np.array([number % 2 == 0]) for number in range(_CHOICES))
    first = 2 + _CHOICES
    main = _main(
        (*_references(2), *[_TRUTH] * _CHOICES, *[_NUMBERS] * (_CHOICES + 1)),
        [
            Operation(OperationType.IF, (2 + i, 0, 1, first + i), (first + i + 1,))
            for i in range(_CHOICES)
        ],
        inputs=range(2, first + 1),
        outputs=(first + _CHOICES,),
    )
    branches = tuple(
        _subgraph([_NUMBERS], [(operation, (0,), _NUMBERS)])
        for operation in (OperationType.NEG, OperationType.ABS)
    )
    return Workload(
        ReferenceWorkload.IF,
        _named(Model(main, branches)),
        (*truths, _some_numbers()),
        _chosen,
    )


def loop() -> Workload:
    """Return what a WHILE leaves that takes square roots as long as they are large."""
    main = _main(
        (*_references(2), _NUMBER, _NUMBERS, _NUMBER, _NUMBER, _NUMBERS),
        [Operation(OperationType.WHILE, (0, 1, 2, 3, 4), (5, 6))],
        inputs=(2, 3, 4),
        outputs=(5, 6),
    )
    state = [_NUMBER, _NUMBERS, _NUMBER]
    condition = _subgraph(state, [(OperationType.GREATER, (0, 2), _TRUTH)])
    body = _subgraph(
        state,
        [(OperationType.SQRT, (0,), _NUMBER), (OperationType.NEG, (1,), _NUMBERS)],
    )
    first, last = (
        np.array([guard], np.float32) for guard in (_FIRST_GUARD, _LAST_GUARD)
    )
    return Workload(
        ReferenceWorkload.WHILE,
        _named(Model(main, (condition, body))),
        (first, _some_numbers(), last),
        _repeated,
    )


def _chosen(*inputs: Array) -> tuple[Array]:
    *truths, numbers = inputs
    for truth in truths:
        numbers = -numbers if truth[0] else abs(numbers)
    return (numbers,)


def _repeated(guard: Array, numbers: Array, last: Array) -> tuple[Array, Array]:
    while guard[0] > last[0]:
        guard, numbers = np.sqrt(guard), -numbers
    return guard, numbers


def _some_numbers() -> Array:
    rng = np.random.default_rng(6)
    return rng.normal(0, 1, _NUMBERS.dimensions).astype(np.float32)


def _references(count: int) -> list[Operand]:
    return [
        Operand(
            OperandType.SUBGRAPH,
            lifetime=OperandLifeTime.SUBGRAPH,
            location=DataLocation(0, number, 0),
        )
        for number in range(count)
    ]


def _subgraph(
    inputs: Sequence[Operand],
    operations: Sequence[tuple[OperationType, Sequence[int], Operand]],
) -> Subgraph:
    """Build a graph each of whose operations gives one of its outputs."""
    builder = ModelBuilder()
    add_inputs(builder, *inputs)
    for number, (type_, reads, result) in enumerate(operations):
        output = builder.operation(type_, reads, result)
        builder.output(output, f"output_{number}")
    return builder.build().model.main


def _main(
    operands: Sequence[Operand],
    operations: Sequence[Operation],
    inputs: Sequence[int],
    outputs: Sequence[int],
) -> Subgraph:
    consumers = Counter(i for operation in operations for i in operation.inputs)
    lifetimes = dict.fromkeys(inputs, OperandLifeTime.SUBGRAPH_INPUT)
    lifetimes |= dict.fromkeys(outputs, OperandLifeTime.SUBGRAPH_OUTPUT)
    return Subgraph(
        tuple(
            replace(
                operand,
                number_of_consumers=consumers[index],
                lifetime=lifetimes.get(index, operand.lifetime),
            )
            for index, operand in enumerate(operands)
        ),
        tuple(operations),
        tuple(inputs),
        tuple(outputs),
    )


def _named(model: Model) -> NamedModel:
    main = model.main
    return NamedModel.of(
        model,
        [f"input_{number}" for number in range(len(main.input_indexes))],
        [f"output_{number}" for number in range(len(main.output_indexes))],
    )
