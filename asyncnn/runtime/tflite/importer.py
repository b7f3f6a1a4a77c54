"""Imports TFLite files: from mapped bytes to a named model."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import Memory, OperandLifeTime, OperationType
from asyncnn.hal.validate import validate_model
from asyncnn.memory.pools import view
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel, located, map_model_file
from asyncnn.runtime.tflite import convolution, elementwise, recurrent, reshaping
from asyncnn.runtime.tflite.node import Allowance, Converter, Node
from asyncnn.runtime.tflite.schema import (
    Graph,
    Operator,
    UnsupportedOperatorError,
    decoding,
    read_graph,
)
from asyncnn.runtime.tflite.tensors import describe

CONVERTERS: dict[str, Converter] = {
    **convolution.CONVERTERS,
    **elementwise.CONVERTERS,
    **reshaping.CONVERTERS,
    **recurrent.CONVERTERS,
}
"""Converters by the operator's name in the TFLite schema."""

SHAPE_INPUTS: dict[str, frozenset[int]] = (
    reshaping.SHAPE_INPUTS | convolution.SHAPE_INPUTS
)
"""Inputs that only repeat what the output's shape says; they are never read."""


def load_tflite(path: str | os.PathLike[str]) -> NamedModel:
    """Import the TFLite file at ``path``, which stays mapped: weights are not copied.

    :raises InvalidArgumentError: if the file is damaged or not a TFLite file.
    :raises UnsupportedOperatorError: if an operator has no HAL form.
    :raises GeneralFailureError: if the file cannot be read.
    """
    memory = map_model_file(path)
    with located(path):
        return import_tflite(memory)


def import_tflite(memory: Memory) -> NamedModel:
    """Import the TFLite file whose bytes are those of ``memory``.

    :raises InvalidArgumentError: if they are damaged or not a TFLite file.
    :raises UnsupportedOperatorError: if an operator has no HAL form.
    """
    with decoding():
        named = _import(read_graph(view(memory)), memory)
    validate_model(named.model)
    return named


def _import(graph: Graph, memory: Memory) -> NamedModel:
    _check_states(graph)
    builder = ModelBuilder()
    builder.add_pool(memory)
    operands: dict[int, int] = {}
    allowance = Allowance()
    for index, name in zip(graph.inputs, _names(graph, graph.inputs), strict=True):
        tensor = graph.tensors[index]
        operand = describe(tensor)
        operands[index] = builder.input(
            name,
            operand.type,
            operand.dimensions,
            scale=operand.scale,
            zero_point=operand.zero_point,
        )
    for operator in _needed(graph):
        with located(_place(graph, operator)):
            _convert(Node(graph, operator, builder, operands, allowance))
    for index, name in zip(graph.outputs, _names(graph, graph.outputs), strict=True):
        if index not in operands:
            raise InvalidArgumentError(f"output {name[:80]!r} is never computed")
        builder.output(_own(builder, operands[index]), name)
    return builder.build()


def _own(builder: ModelBuilder, index: int) -> int:
    """Return an operand that can be an output: a copy of one with another role."""
    operand = builder.operand(index)
    if operand.lifetime == OperandLifeTime.TEMPORARY_VARIABLE:
        return index
    shape = builder.constant(np.array(operand.dimensions, np.int32))
    return builder.operation(OperationType.RESHAPE, [index, shape], operand)


def _check_states(graph: Graph) -> None:
    """Refuse state that operators share: each layer gets zeros of its own."""
    readers = Counter(
        index
        for operator in graph.operators
        for index in operator.inputs
        if index >= 0 and graph.tensors[index].is_variable
    )
    for index, count in readers.items():
        if count > 1:
            raise UnsupportedOperatorError(
                f"{graph.tensors[index].label} is the state of {count} layers"
            )


def _convert(node: Node) -> None:
    try:
        converter = CONVERTERS[node.operator.name]
    except KeyError:
        raise UnsupportedOperatorError("this operator cannot be imported") from None
    converter(node)


def _needed(graph: Graph) -> Iterator[Operator]:
    """Yield the operators that the outputs depend on, in execution order.

    What only computes the shape of a reshape is not among them: the shapes are known.
    """
    needed = set(graph.outputs)
    chosen = []
    for operator in reversed(graph.operators):
        if needed.isdisjoint(operator.outputs):
            continue
        chosen.append(operator)
        shape_inputs = SHAPE_INPUTS.get(operator.name, frozenset())
        needed.update(
            tensor
            for position, tensor in enumerate(operator.inputs)
            if position not in shape_inputs
        )
    return reversed(chosen)


def _place(graph: Graph, operator: Operator) -> str:
    place = f"operator {operator.index} ({operator.name})"
    outputs = [graph.tensors[index].label for index in operator.outputs[:1]]
    return f"{place}, which computes {outputs[0]}" if outputs else place


def _names(graph: Graph, indexes: Sequence[int]) -> list[str]:
    """Return unique names for the tensors at a border of the graph."""
    if -1 in indexes or len(set(indexes)) != len(indexes):
        raise InvalidArgumentError(
            "the inputs or outputs of the graph are left out or repeated: "
            f"{list(indexes[:20])}"
        )
    names: dict[str, None] = {}
    for index in indexes:
        name = graph.tensors[index].name or f"tensor_{index}"
        while name in names:
            name += f"_{index}"
        names[name] = None
    return list(names)
