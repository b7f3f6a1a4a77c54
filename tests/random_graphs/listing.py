"""Models as text, for the reader of a failing test."""

from collections.abc import Iterator, Sequence

import numpy as np

from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    OperationType,
    Subgraph,
)
from tests.random_graphs.interpreter import constant_value

_LONGEST_VALUE = 12


def listing(model: Model, inputs: Sequence[Array]) -> str:
    """Return a line for every operand and operation of every subgraph."""
    given = dict(zip(model.main.input_indexes, inputs, strict=True))
    lines = ["main:", *_lines(model, model.main, given)]
    for number, subgraph in enumerate(model.referenced):
        lines += [f"subgraph {number}:", *_lines(model, subgraph, {})]
    return "\n" + "\n".join(lines)


def _lines(model: Model, subgraph: Subgraph, given: dict[int, Array]) -> Iterator[str]:
    operands = subgraph.operands
    for index in subgraph.input_indexes:
        shown = _value(given[index]) if index in given else ""
        yield f"  %{index} = input {_type(operands[index])}{shown}"
    for index, operand in enumerate(operands):
        constant = constant_value(model, operand)
        if constant is not None:
            yield f"  %{index} = {_type(operand)}{_value(constant)}"
    for operation in subgraph.operations:
        results = ", ".join(
            f"%{index} {_type(operands[index])}" for index in operation.outputs
        )
        arguments = ", ".join(_argument(index, operands) for index in operation.inputs)
        yield f"  {results} = {OperationType(operation.type).name}({arguments})"
    yield f"  return {', '.join(f'%{index}' for index in subgraph.output_indexes)}"


def _argument(index: int, operands: Sequence[Operand]) -> str:
    operand = operands[index]
    match operand.lifetime:
        case OperandLifeTime.NO_VALUE:
            return "omitted"
        case OperandLifeTime.SUBGRAPH:
            return f"subgraph {operand.location.offset}"
    return f"%{index}"


def _type(operand: Operand) -> str:
    name = OperandType(operand.type).name.removeprefix("TENSOR_").lower()
    scale = f" * {operand.scale:g} @ {operand.zero_point}" if operand.scale else ""
    return f"{name}{list(operand.dimensions)}{scale}"


def _value(value: Array) -> str:
    flat = value.reshape(-1)
    shown = np.array2string(flat[:_LONGEST_VALUE], separator=", ", max_line_width=200)
    rest = (
        "" if len(flat) <= _LONGEST_VALUE else f" and {len(flat) - _LONGEST_VALUE} more"
    )
    return f" = shape {list(value.shape)} {shown}{rest}"
