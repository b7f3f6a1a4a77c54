"""Runs a model in the simplest way: one operation after the other, nothing reused."""

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from asyncnn import hal, kernels
from asyncnn.hal.operands import DTYPES, SCALAR_TYPES
from asyncnn.hal.operations import infer_shapes
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation
from asyncnn.kernels.kernel import HeapScratch
from asyncnn.memory.pools import view

Evaluate = Callable[[BoundOperation], list[Array]]
"""Computes one operation all of whose inputs have values."""

Values = dict[int, Array]


def interpret(
    model: hal.Model, inputs: Sequence[Array], evaluate: Evaluate
) -> list[Array]:
    """Return the outputs of the main subgraph."""
    with np.errstate(all="ignore"):
        return _Interpreter(model, evaluate).run(model.main, inputs)


def loop(
    model: hal.Model, indexes: Sequence[int], state: Sequence[Array]
) -> list[Array]:
    """Return what a WHILE, whose subgraphs are these operands, makes of ``state``."""
    interpreter = _Interpreter(model, evaluate)
    with np.errstate(all="ignore"):
        return interpreter.loop(model.main, indexes, state)


def evaluate(operation: BoundOperation) -> list[Array]:
    """Return the outputs of one operation, all of whose inputs have values.

    :raises GeneralFailureError: if it has no kernel, or its operands have illegal
        values or shapes.
    """
    if kernels.is_data_dependent(operation.type):
        computed = kernels.compute(operation)
        assert isinstance(computed, list | tuple)  # no operation here is an engine's
        return list(computed)
    shaped = _with_output_shapes(operation)
    outputs = [np.empty(o.require_shape(), o.dtype) for o in shaped.outputs]
    inputs = [None if i is None else i.require_value() for i in shaped.inputs]
    kernels.prepare(shaped)(HeapScratch())(inputs, outputs)
    return outputs


def _with_output_shapes(operation: BoundOperation) -> BoundOperation:
    shapes = infer_shapes(operation)
    outputs = tuple(
        msgspec.structs.replace(output, shape=shape)
        for output, shape in zip(operation.outputs, shapes, strict=True)
    )
    return msgspec.structs.replace(operation, outputs=outputs)


def constant_value(model: hal.Model, operand: hal.Operand) -> Array | None:
    """Return the value of an operand, None if it is no constant."""
    match operand.lifetime:
        case hal.OperandLifeTime.CONSTANT_COPY:
            data = memoryview(model.operand_values)
        case hal.OperandLifeTime.CONSTANT_REFERENCE:
            data = view(model.pools[operand.location.pool_index])
        case _:
            return None
    type_ = hal.OperandType(operand.type)
    shape = () if type_ in SCALAR_TYPES else operand.dimensions
    dtype, offset = DTYPES[type_], operand.location.offset
    return np.frombuffer(data, dtype, math.prod(shape), offset).reshape(shape)


class _Interpreter:
    def __init__(self, model: hal.Model, evaluate: Evaluate) -> None:
        self._model = model
        self._evaluate = evaluate

    def run(self, subgraph: hal.Subgraph, inputs: Sequence[Array]) -> list[Array]:
        values: Values = dict(zip(subgraph.input_indexes, inputs, strict=True))
        for index, operand in enumerate(subgraph.operands):
            constant = constant_value(self._model, operand)
            if constant is not None:
                values[index] = constant
        for operation in subgraph.operations:
            match operation.type:
                case hal.OperationType.IF:
                    results = self._if(subgraph, operation, values)
                case hal.OperationType.WHILE:
                    condition, body, *carried = operation.inputs
                    state = [values[index] for index in carried]
                    results = self.loop(subgraph, (condition, body), state)
                    results = results[: len(operation.outputs)]
                case _:
                    results = self._evaluate(bind(subgraph, operation, values))
            values.update(zip(operation.outputs, results, strict=True))
        return [values[index] for index in subgraph.output_indexes]

    def _if(
        self, subgraph: hal.Subgraph, operation: hal.Operation, values: Values
    ) -> list[Array]:
        condition, then, other, *inputs = operation.inputs
        branch = then if values[condition].item() else other
        return self.run(
            self._referenced(subgraph, branch), [values[index] for index in inputs]
        )

    def loop(
        self, subgraph: hal.Subgraph, indexes: Sequence[int], state: Sequence[Array]
    ) -> list[Array]:
        condition, body = (self._referenced(subgraph, index) for index in indexes)
        state = list(state)
        while self.run(condition, state)[0].item():
            outputs = self.run(body, state)
            state[: len(outputs)] = outputs
        return state

    def _referenced(self, subgraph: hal.Subgraph, index: int) -> hal.Subgraph:
        return self._model.referenced[subgraph.operands[index].location.offset]


def bind(
    subgraph: hal.Subgraph, operation: hal.Operation, values: Values
) -> BoundOperation:
    """Return an operation with the values that its inputs have."""

    def bound(index: int, value: Array | None = None) -> BoundOperand:
        operand: hal.Operand = subgraph.operands[index]
        quant = operand.extra_params
        return BoundOperand(
            hal.OperandType(operand.type),
            None if value is None else value.shape,
            operand.scale,
            operand.zero_point,
            quant if isinstance(quant, hal.SymmPerChannelQuantParams) else None,
            value,
        )

    return BoundOperation(
        hal.OperationType(operation.type),
        tuple(
            bound(index, values[index]) if index in values else None
            for index in operation.inputs
        ),
        tuple(bound(index) for index in operation.outputs),
    )
