"""Imports TFLite files: from mapped bytes to a named model."""

import os
from collections.abc import Sequence

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import Memory
from asyncnn.hal.validate import validate_model
from asyncnn.memory.pools import view
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel, located, map_model_file
from asyncnn.runtime.tflite import (
    control_flow,
    convolution,
    elementwise,
    recurrent,
    reshaping,
)
from asyncnn.runtime.tflite.allowance import Allowance
from asyncnn.runtime.tflite.flow import Flow
from asyncnn.runtime.tflite.node import Converter
from asyncnn.runtime.tflite.schema import (
    Contents,
    Graph,
    Tensor,
    decoding,
    read_contents,
)
from asyncnn.runtime.tflite.scope import Importing, Scope
from asyncnn.runtime.tflite.tensors import describe
from asyncnn.runtime.tflite.variables import FirstValues, States, own

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


def load_tflite(
    path: str | os.PathLike[str], *, signature: str | None = None
) -> NamedModel:
    """Import the TFLite file at ``path``, which stays mapped: weights are not copied.

    :param signature: name of that whose subgraph is the model; None for the first
        subgraph.
    :raises InvalidArgumentError: if the file is damaged, not a TFLite file, or has no
        such signature.
    :raises UnsupportedOperatorError: if an operator has no HAL form.
    :raises GeneralFailureError: if the file cannot be read.
    """
    memory = map_model_file(path)
    with located(path):
        return import_tflite(memory, signature=signature)


def import_tflite(memory: Memory, *, signature: str | None = None) -> NamedModel:
    """Import the TFLite file whose bytes are those of ``memory``.

    :param signature: as of `load_tflite`.
    :raises InvalidArgumentError: if they are damaged, not a TFLite file, or have no
        such signature.
    :raises UnsupportedOperatorError: if an operator has no HAL form.
    """
    with decoding():
        named = _import(read_contents(view(memory)), memory, signature)
    validate_model(named.model)
    return named


def _import(contents: Contents, memory: Memory, signature: str | None) -> NamedModel:
    graph = _chosen(contents, signature)
    allowance = Allowance()
    flow = Flow(contents.graphs, SHAPE_INPUTS, allowance)
    flow.check(graph)
    builder = ModelBuilder()
    builder.add_pool(memory)
    input_names = _names(graph, graph.inputs)
    output_names = _names(graph, graph.outputs)
    states = States(
        builder,
        FirstValues(contents.graphs, allowance),
        frozenset(flow.accesses(graph, (None,) * len(graph.inputs)).writes),
        {*input_names, *output_names},
    )
    inputs = [
        _input(builder, name, graph.tensors[index])
        for name, index in zip(input_names, graph.inputs, strict=True)
    ]
    importing = Importing(CONVERTERS, control_flow.CONVERTERS, flow, allowance)
    end = Scope(importing, graph, builder, states, inputs).run()
    for position, name in enumerate(output_names):
        builder.output(own(builder, end.read(position)), name)
    states.finish()
    return builder.build()


def _chosen(contents: Contents, signature: str | None) -> Graph:
    if signature is None:
        return contents.graphs[0]
    for table in contents.signatures:
        if table.name == signature:
            return contents.graphs[table.graph]
    known = ", ".join(repr(table.name) for table in contents.signatures[:20])
    raise InvalidArgumentError(
        f"the file has no signature {signature!r}", hint=f"it has: {known or 'none'}"
    )


def _input(builder: ModelBuilder, name: str, tensor: Tensor) -> int:
    operand = describe(tensor)
    return builder.input(
        name,
        operand.type,
        operand.dimensions,
        scale=operand.scale,
        zero_point=operand.zero_point,
    )


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
