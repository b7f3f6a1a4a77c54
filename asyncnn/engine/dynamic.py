"""Steps whose shapes depend on data, prepared at each execution."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from msgspec.structs import replace

from asyncnn.engine.delegation import Step
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operands import AnyOperationType, check_declared
from asyncnn.hal.operations import infer_shapes
from asyncnn.hal.operations.bound import (
    Array,
    BoundOperand,
    BoundOperation,
    Shape,
    ValueNeededError,
)
from asyncnn.hal.types import Operand
from asyncnn.kernels import registry as kernels
from asyncnn.kernels.kernel import HeapScratch, Inputs, InterruptibleRun, Outputs

Slots: TypeAlias = list[Array | None]
"""Arrays by operand index, None where an operand is omitted or not computed yet."""


Elsewhere: TypeAlias = Callable[[InterruptibleRun, Inputs, Outputs], bool]
"""Has another engine run; False if it was interrupted for a pause."""


def _to_the_end(run: InterruptibleRun, inputs: Inputs, outputs: Outputs) -> bool:
    run(inputs, outputs)
    return True


def run_dynamic_step(
    step: Step,
    slots: Slots,
    operands: tuple[Operand, ...],
    elsewhere: Elsewhere = _to_the_end,
) -> bool:
    """Infer shapes, prepare and run ``step``; set its outputs in ``slots``.

    False if it was interrupted for a pause, and is to be run anew.

    :raises GeneralFailureError: if the values do not fit the operation.
    """
    operation = _with_values(step, slots)
    computed: Sequence[Array] | InterruptibleRun
    if kernels.is_data_dependent(operation.type):
        computed = kernels.compute(operation)
    else:
        computed = _prepare_and_run(operation, step, slots)
    results: Sequence[Array] = []
    if not isinstance(computed, InterruptibleRun):
        results = computed
    elif not elsewhere(computed, [], results):
        return False
    for index, result in zip(step.outputs, results, strict=True):
        store(slots, index, result, operands[index], operation.type)
    return True


def has_learnt_shapes(operation: BoundOperation) -> bool:
    """Tell whether an operation that had no plan for its shapes can have one by now."""
    may_learn = kernels.may_learn_shapes(operation.type)
    return may_learn and None not in infer_shapes(operation)


def store(
    slots: Slots, index: int, result: Array, operand: Operand, type_: AnyOperationType
) -> None:
    """Put a result into the array that waits for it; else let it take the place.

    :raises GeneralFailureError: if its shape is not the one that the model declares.
    """
    given = slots[index]
    if given is result:
        return
    check_declared(operand, result.shape, type_)
    if given is not None and given.shape == result.shape:
        given[...] = result
    else:
        slots[index] = result


def _prepare_and_run(
    operation: BoundOperation, step: Step, slots: Slots
) -> Sequence[Array] | InterruptibleRun:
    try:
        shapes = infer_shapes(operation)
        if None in shapes and kernels.may_learn_shapes(operation.type):
            return kernels.compute(operation)
        outputs = [
            _array_for(slots[index], shape, operand)
            for index, shape, operand in zip(
                step.outputs, shapes, operation.outputs, strict=True
            )
        ]
        bound = replace(
            operation,
            outputs=tuple(
                replace(operand, shape=output.shape)
                for operand, output in zip(operation.outputs, outputs, strict=True)
            ),
        )
        run = kernels.prepare(bound)(HeapScratch())
    except ValueNeededError:
        name = operation.type.name
        raise GeneralFailureError(f"{name} cannot infer its output shapes") from None
    run([slots[index] for index in step.inputs], outputs)
    return outputs


def _with_values(step: Step, slots: Slots) -> BoundOperation:
    """Return the operation of ``step`` with the shape and value of every input."""
    inputs = tuple(
        _with_value(operand, slots[index])
        for operand, index in zip(step.operation.inputs, step.inputs, strict=True)
    )
    return replace(step.operation, inputs=inputs, packed={}, noted={})


def _with_value(
    operand: BoundOperand | None, value: Array | None
) -> BoundOperand | None:
    if operand is None or value is None:
        return None
    return replace(operand, shape=value.shape, value=value)


def _array_for(
    given: Array | None, shape: Shape | None, operand: BoundOperand
) -> Array:
    """Return the array that waits for the output if it fits, else a new one."""
    if shape is None:
        raise ValueNeededError
    if given is not None and given.shape == shape:
        return given
    return np.empty(shape, operand.dtype)
