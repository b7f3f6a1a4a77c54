"""Runs a model in the simplest way: one operation after the other, nothing reused."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from asyncnn.hal.operands import DTYPES, SCALAR_TYPES
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation
from asyncnn.hal.types import (
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    Subgraph,
)

Evaluate = Callable[[BoundOperation], list[Array]]
"""Computes one operation all of whose inputs have values."""

Values = dict[int, Array]


def interpret(model: Model, inputs: Sequence[Array], evaluate: Evaluate) -> list[Array]:
    """Return the outputs of the main subgraph."""
    with np.errstate(all="ignore"):
        return _Interpreter(model, evaluate).run(model.main, inputs)


def constant_value(model: Model, operand: Operand) -> Array | None:
    """Return the value of an operand, None if it is no constant."""
    match operand.lifetime:
        case OperandLifeTime.CONSTANT_COPY:
            data = memoryview(model.operand_values)
        case OperandLifeTime.CONSTANT_REFERENCE:
            data = model.pools[operand.location.pool_index].buffer
        case _:
            return None
    shape = () if operand.type in SCALAR_TYPES else operand.dimensions
    dtype, offset = DTYPES[operand.type], operand.location.offset
    return np.frombuffer(data, dtype, math.prod(shape), offset).reshape(shape)


class _Interpreter:
    def __init__(self, model: Model, evaluate: Evaluate) -> None:
        self._model = model
        self._evaluate = evaluate

    def run(self, subgraph: Subgraph, inputs: Sequence[Array]) -> list[Array]:
        values: Values = dict(zip(subgraph.input_indexes, inputs, strict=True))
        for index, operand in enumerate(subgraph.operands):
            constant = constant_value(self._model, operand)
            if constant is not None:
                values[index] = constant
        for operation in subgraph.operations:
            match operation.type:
                case OperationType.IF:
                    results = self._if(subgraph, operation, values)
                case OperationType.WHILE:
                    results = self._while(subgraph, operation, values)
                case _:
                    results = self._evaluate(_bind(subgraph, operation, values))
            values.update(zip(operation.outputs, results, strict=True))
        return [values[index] for index in subgraph.output_indexes]

    def _if(
        self, subgraph: Subgraph, operation: Operation, values: Values
    ) -> list[Array]:
        condition, then, other, *inputs = operation.inputs
        branch = then if values[condition].item() else other
        return self.run(
            self._referenced(subgraph, branch), [values[index] for index in inputs]
        )

    def _while(
        self, subgraph: Subgraph, operation: Operation, values: Values
    ) -> list[Array]:
        condition, body = (
            self._referenced(subgraph, index) for index in operation.inputs[:2]
        )
        state = [values[index] for index in operation.inputs[2:]]
        while self.run(condition, state)[0].item():
            outputs = self.run(body, state)
            state[: len(outputs)] = outputs
        return state[: len(operation.outputs)]

    def _referenced(self, subgraph: Subgraph, index: int) -> Subgraph:
        return self._model.referenced[subgraph.operands[index].location.offset]


def _bind(subgraph: Subgraph, operation: Operation, values: Values) -> BoundOperation:
    def bind(index: int, value: Array | None = None) -> BoundOperand:
        operand: Operand = subgraph.operands[index]
        return BoundOperand(
            OperandType(operand.type),
            None if value is None else value.shape,
            operand.scale,
            operand.zero_point,
            operand.extra_params,
            value,
        )

    return BoundOperation(
        OperationType(operation.type),
        tuple(
            bind(index, values[index]) if index in values else None
            for index in operation.inputs
        ),
        tuple(bind(index) for index in operation.outputs),
    )
