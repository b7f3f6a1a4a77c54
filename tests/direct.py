"""Evaluates a case in the simplest way: one operation after the other, all known.

Nothing is planned, shared or reused: every value is bound as if it were constant, and
every kernel is prepared for one run. What the engine computes must equal this.
"""

import math

import numpy as np

from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operands import DTYPES, SCALAR_TYPES
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation
from asyncnn.hal.types import (
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    SymmPerChannelQuantParams,
)
from asyncnn.tools.conformance.random_graphs.checking import evaluate
from asyncnn.tools.conformance.vectors import Case


def run_direct(case: Case) -> list[Array]:
    """Return the outputs of a case whose model has no IF and no WHILE.

    :raises GeneralFailureError: if an operation has no kernel, or its operands have
        illegal values or shapes.
    """
    main = case.model.main
    values: dict[int, Array] = {
        index: value
        for index, value in zip(main.input_indexes, case.inputs, strict=True)
        if value is not None
    }
    for index, operand in enumerate(main.operands):
        constant = _constant(case.model, operand)
        if constant is not None:
            values[index] = constant
    for operation in main.operations:
        bound = _bind(case.model, operation, values)
        with np.errstate(all="ignore"):
            results = evaluate(bound)
        values.update(zip(operation.outputs, results, strict=True))
    return [values[index] for index in main.output_indexes]


def _bind(
    model: Model, operation: Operation, values: dict[int, Array]
) -> BoundOperation:
    type_ = OperationType(operation.type)
    if type_ in (OperationType.IF, OperationType.WHILE):
        raise GeneralFailureError(f"direct evaluation has no {type_.name}")
    operands = model.main.operands
    return BoundOperation(
        type=type_,
        inputs=tuple(
            _bind_operand(operands[index], values[index]) if index in values else None
            for index in operation.inputs
        ),
        outputs=tuple(_bind_operand(operands[index]) for index in operation.outputs),
        relaxed=model.relax_computation_float32_to_float16,
    )


def _bind_operand(operand: Operand, value: Array | None = None) -> BoundOperand:
    quant = operand.extra_params
    return BoundOperand(
        type=OperandType(operand.type),
        shape=None if value is None else value.shape,
        scale=operand.scale,
        zero_point=operand.zero_point,
        channel_quant=quant if isinstance(quant, SymmPerChannelQuantParams) else None,
        value=value,
    )


def _constant(model: Model, operand: Operand) -> Array | None:
    match operand.lifetime:
        case OperandLifeTime.CONSTANT_COPY:
            data = memoryview(model.operand_values)
        case OperandLifeTime.CONSTANT_REFERENCE:
            pool = model.pools[operand.location.pool_index]
            data = memoryview(b"") if pool.buffer is None else pool.buffer
        case _:
            return None
    shape = () if operand.type in SCALAR_TYPES else operand.dimensions
    array = np.frombuffer(
        data, DTYPES[operand.type], math.prod(shape), operand.location.offset
    )
    return array.reshape(shape)
