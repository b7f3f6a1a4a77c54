"""Steps that are prepared when their turn comes, with every input known."""

import msgspec
import numpy as np

from asyncnn import kernels
from asyncnn.engine.plan import Step, check_declared
from asyncnn.errors import GeneralFailureError
from asyncnn.hal.operations import infer_shapes
from asyncnn.hal.operations.bound import (
    Array,
    BoundOperand,
    BoundOperation,
    Shape,
    ValueNeededError,
)
from asyncnn.hal.types import Operand
from asyncnn.kernels.kernel import HeapScratch

Slots = list[Array | None]


def bind_values(step: Step, slots: Slots) -> BoundOperation:
    """Return the operation of ``step`` with the value of every input."""
    return msgspec.structs.replace(
        step.operation,
        inputs=tuple(
            _with_value(operand, slots[index])
            for operand, index in zip(step.operation.inputs, step.inputs, strict=True)
        ),
    )


def run_late(step: Step, slots: Slots, operands: tuple[Operand, ...]) -> None:
    """Infer shapes, prepare and run ``step``; set its outputs in ``slots``.

    :raises GeneralFailureError: if the values do not fit the operation.
    """
    operation = bind_values(step, slots)
    if kernels.is_data_dependent(operation.type):
        results = kernels.compute(operation)
        for index, result in zip(step.outputs, results, strict=True):
            _store(slots, index, result, operands[index], operation)
        return
    shapes = _known(infer_shapes(operation), operation)
    outputs = [
        _array_for(slots[index], shape, operand)
        for index, shape, operand in zip(
            step.outputs, shapes, operation.outputs, strict=True
        )
    ]
    bound = msgspec.structs.replace(
        operation,
        outputs=tuple(
            msgspec.structs.replace(operand, shape=shape)
            for operand, shape in zip(operation.outputs, shapes, strict=True)
        ),
    )
    for index, output in zip(step.outputs, outputs, strict=True):
        check_declared(operands[index], output.shape, operation.type)
    try:
        run = kernels.prepare(bound)(HeapScratch())
    except ValueNeededError:
        raise GeneralFailureError(f"{bound.type.name} misses a value") from None
    run([slots[index] for index in step.inputs], outputs)
    for index, output in zip(step.outputs, outputs, strict=True):
        slots[index] = output


def _with_value(
    operand: BoundOperand | None, value: Array | None
) -> BoundOperand | None:
    if operand is None or value is None:
        return None
    return msgspec.structs.replace(operand, shape=value.shape, value=value)


def _known(shapes: tuple[Shape | None, ...], operation: BoundOperation) -> list[Shape]:
    if None in shapes:
        raise GeneralFailureError(f"{operation.type.name}: unknown output shape")
    return [shape for shape in shapes if shape is not None]


def _array_for(given: Array | None, shape: Shape, operand: BoundOperand) -> Array:
    """Return the array in place if it fits, else a new one."""
    if given is not None and given.shape == shape:
        return given
    return np.empty(shape, operand.dtype)


def _store(
    slots: Slots, index: int, result: Array, operand: Operand, op: BoundOperation
) -> None:
    """Put a computed output in its place, or let it take the place."""
    check_declared(operand, result.shape, op.type)
    given = slots[index]
    if given is not None and given.shape == result.shape:
        given[...] = result
    else:
        slots[index] = result
