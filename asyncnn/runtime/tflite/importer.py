"""Imports TFLite files: from mapped bytes to a named model."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from asyncnn.extensions import CustomOperators, Extension
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import Memory, OperandLifeTime, OperandType, OperationType
from asyncnn.hal.validate import validate_model
from asyncnn.memory.pools import view
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel, located, map_model_file
from asyncnn.runtime.refusals import Refusals, UnsupportedOperatorError
from asyncnn.runtime.tflite import (
    convolution,
    custom_operators,
    elementwise,
    functions,
    indexing,
    recurrent,
    reshaping,
)
from asyncnn.runtime.tflite.folding import fold
from asyncnn.runtime.tflite.node import Allowance, Converter, Node
from asyncnn.runtime.tflite.not_imported import NOT_IMPORTED
from asyncnn.runtime.tflite.schema import (
    Graph,
    Operator,
    decoding,
    read_graph,
)
from asyncnn.runtime.tflite.tensors import add_constant, describe

CONVERTERS: dict[str, Converter] = {
    **convolution.CONVERTERS,
    **elementwise.CONVERTERS,
    **functions.CONVERTERS,
    **reshaping.CONVERTERS,
    **indexing.CONVERTERS,
    **recurrent.CONVERTERS,
    **custom_operators.CONVERTERS,
}
"""Converters by the operator's name in the TFLite schema."""

CONVERTERS |= {name: CONVERTERS[like] for name, like in functions.ALIASES.items()}

SHAPE_INPUTS: dict[str, frozenset[int]] = (
    reshaping.SHAPE_INPUTS | convolution.SHAPE_INPUTS
)
"""Inputs that only repeat what the output's shape says; they are never read."""


def load_tflite(
    path: str | os.PathLike[str], extensions: Iterable[Extension | str] = ()
) -> NamedModel:
    """Import the TFLite file at ``path``, which stays mapped: weights are not copied.

    :param extensions: where custom operators are looked for, besides those installed.
    :raises InvalidArgumentError: if the file is damaged or not a TFLite file.
    :raises UnsupportedOperatorError: if an operator has no HAL form.
    :raises GeneralFailureError: if the file cannot be read.
    """
    memory = map_model_file(path)
    with located(path):
        return import_tflite(memory, extensions)


def import_tflite(
    memory: Memory, extensions: Iterable[Extension | str] = ()
) -> NamedModel:
    """Import the TFLite file whose bytes are those of ``memory``.

    :param extensions: where custom operators are looked for, besides those installed.
    :raises InvalidArgumentError: if they are damaged or not a TFLite file.
    :raises UnsupportedOperatorError: if an operator has no HAL form.
    """
    with decoding():
        graph = read_graph(view(memory))
        named = _import(graph, memory, CustomOperators(extensions))
    validate_model(named.model)
    return named


def _import(graph: Graph, memory: Memory, customs: CustomOperators) -> NamedModel:
    _check_states(graph)
    builder = ModelBuilder()
    builder.add_pool(memory)
    operands: dict[int, int] = {}
    allowance = Allowance()
    refusals = Refusals()
    graph = fold(graph, allowance)
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
        node = Node(graph, operator, builder, operands, allowance)
        place = _place(graph, operator)
        refused = len(refusals)
        with refusals.collecting(operator.name, operator.index, place):
            _convert(node, place, customs)
        if len(refusals) > refused:
            node.stand_in()
    refusals.raise_any()
    for index, name in zip(graph.outputs, _names(graph, graph.outputs), strict=True):
        if index not in operands and graph.tensors[index].data is None:
            raise InvalidArgumentError(f"output {name!r} is never computed")
        if index not in operands:
            tensor = graph.tensors[index]
            operands[index] = add_constant(builder, tensor, describe(tensor))
        builder.output(_own(builder, operands[index]), name)
    return builder.build()


def _own(builder: ModelBuilder, index: int) -> int:
    """Return an operand that can be an output: a copy of one with another role."""
    operand = builder.operand(index)
    if operand.lifetime == OperandLifeTime.TEMPORARY_VARIABLE:
        return index
    if operand.type == OperandType.TENSOR_BOOL8:
        return builder.operation(OperationType.LOGICAL_OR, [index, index], operand)
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


def _convert(node: Node, place: str, customs: CustomOperators) -> None:
    name = node.operator.name
    try:
        if name in CONVERTERS:
            CONVERTERS[name](node)
        elif name.startswith(custom_operators.PREFIX):
            custom_operators.convert_custom(node, customs)
        else:
            reason = NOT_IMPORTED.get(name, "this operator is not known")
            raise UnsupportedOperatorError(reason)
    except InvalidArgumentError as error:
        raise error.at(place) from error


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
