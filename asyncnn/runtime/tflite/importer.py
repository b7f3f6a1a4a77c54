"""Imports TFLite files: from bytes to a named model."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext

from msgspec.structs import replace

from asyncnn.extensions import CustomOperators, Extension
from asyncnn.hal.types import Memory
from asyncnn.hal.validate import validating
from asyncnn.input_files import decoding
from asyncnn.interpreter_hooks import LARGE_OPERATIONS, building_large
from asyncnn.memory.pools import view
from asyncnn.pacing import Steps, completed
from asyncnn.runtime.allowance import Allowance
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.building import own
from asyncnn.runtime.model import (
    InputShapes,
    NamedModel,
    names_by_index,
    shapes_by_name,
)
from asyncnn.runtime.model_description import Outline, TensorOutline
from asyncnn.runtime.tflite import (
    branches,
    custom_operators,
    elementwise,
    functions,
    indexing,
    moving_operators,
    recurrent,
    spectrum,
    weighted,
)
from asyncnn.runtime.tflite.borders import (
    checked_shape,
    chosen_graph,
    open_lengths,
    signatures_of,
    unique_names,
)
from asyncnn.runtime.tflite.metadata import read_metadata
from asyncnn.runtime.tflite.node import Converter
from asyncnn.runtime.tflite.scope import Importing, Scope, place_of
from asyncnn.runtime.tflite.subgraphs import Flow
from asyncnn.runtime.tflite.tensors import describe
from asyncnn.runtime.tflite.variables import FirstValues, States
from asyncnn.runtime.unsupported import Refusals, UnsupportedOperatorError
from asyncnn.tflite.contents import reading_contents
from asyncnn.tflite.tables import DTYPES, Contents, Graph, Tensor

CONVERTERS: dict[str, Converter] = {
    **weighted.CONVERTERS,
    **elementwise.CONVERTERS,
    **functions.CONVERTERS,
    **moving_operators.CONVERTERS,
    **indexing.CONVERTERS,
    **spectrum.CONVERTERS,
    **recurrent.CONVERTERS,
    **custom_operators.CONVERTERS,
}
"""Converters by the operator's name in the TFLite schema."""

CONVERTERS |= {name: CONVERTERS[like] for name, like in functions.ALIASES.items()}

SHAPE_INPUTS: dict[str, frozenset[int]] = (
    moving_operators.SHAPE_INPUTS | indexing.SHAPE_INPUTS | weighted.SHAPE_INPUTS
)
"""Inputs that only repeat what the output's shape says; they are never read."""


def importing_tflite(
    memory: Memory,
    signature: str | None = None,
    input_shapes: InputShapes = None,
    extensions: Iterable[Extension | str] = (),
) -> Steps[NamedModel]:
    """Import the TFLite file in ``memory`` in steps, between which it may be left.

    :param signature: as of `asyncnn.load`, like ``input_shapes`` and ``extensions``.
    :raises InvalidArgumentError: if it is damaged, no TFLite file, or has no such
        signature.
    :raises UnsupportedOperatorError: if an operator has no HAL form.
    """
    with decoding("TFLite"):
        contents = yield from reading_contents(view(memory))
        graph = chosen_graph(contents, signature)
    return (
        yield from importing_contents(contents, graph, memory, input_shapes, extensions)
    )


def importing_contents(
    contents: Contents,
    graph: Graph,
    memory: Memory,
    input_shapes: InputShapes,
    extensions: Iterable[Extension | str],
) -> Steps[NamedModel]:
    """Import a graph of what was read of ``memory``, in steps."""
    whole = [
        replace(each, tensors=[tensor.unpacked() for tensor in each.tensors])
        for each in contents.graphs
    ]
    graph, contents = whole[graph.index], replace(contents, graphs=tuple(whole))
    with decoding("TFLite"):
        customs = CustomOperators(extensions)
        is_large = len(graph.operators) > LARGE_OPERATIONS
        with building_large() if is_large else nullcontext():
            named = yield from _importing(
                contents, graph, memory, input_shapes, customs
            )
    yield from validating(named.model)
    return named


def outline_of_tflite(memory: Memory) -> Outline:
    """Return what a file says of its first graph, even if that isn't imported.

    :raises InvalidArgumentError: if the bytes are damaged.
    """
    with decoding("TFLite"):
        contents = completed(reading_contents(view(memory)))
        graph = contents.graphs[0]
        return Outline(
            tuple(_outlines(graph, graph.inputs)),
            tuple(_outlines(graph, graph.outputs)),
            read_metadata(contents.metadata, graph, view(memory)),
        )


def _outlines(graph: Graph, indexes: Sequence[int]) -> Iterator[TensorOutline]:
    for name, index in zip(unique_names(graph, indexes), indexes, strict=True):
        tensor = graph.tensors[index]
        dtype = DTYPES.get(tensor.type)
        kind = tensor.type.lower() if dtype is None else dtype.name
        yield TensorOutline(name, kind, open_lengths(tensor) or tensor.shape)


def _importing(
    contents: Contents,
    graph: Graph,
    memory: Memory,
    input_shapes: InputShapes,
    customs: CustomOperators,
) -> Steps[NamedModel]:
    allowance = Allowance()
    flow = Flow(contents.graphs, SHAPE_INPUTS, allowance)
    flow.check(graph)
    builder = ModelBuilder()
    builder.add_pool(memory)
    input_names = unique_names(graph, graph.inputs)
    output_names = unique_names(graph, graph.outputs)
    states = States(
        builder,
        FirstValues(contents.graphs, allowance),
        frozenset(flow.accesses(graph, (None,) * len(graph.inputs)).writes),
        {*input_names, *output_names},
    )
    shapes = shapes_by_name(input_names, input_shapes)
    _check_inputs(graph)
    inputs = [
        _input(builder, name, graph.tensors[index], shapes.get(name))
        for name, index in zip(input_names, graph.inputs, strict=True)
    ]
    opened = {
        name: lengths
        for name, index in zip(input_names, graph.inputs, strict=True)
        if name not in shapes and (lengths := open_lengths(graph.tensors[index]))
    }
    refusals = Refusals()
    importing = Importing(
        CONVERTERS, branches.CONVERTERS, flow, allowance, customs, refusals
    )
    scope = Scope(importing, graph, builder, states, inputs)
    end = yield from scope.running()
    refusals.raise_any()
    for position, name in enumerate(output_names):
        builder.output(own(builder, end.read(position)), name)
    states.finish()
    return replace(
        builder.build(),
        signatures=signatures_of(contents, graph, input_names, output_names),
        metadata=read_metadata(contents.metadata, graph, view(memory)),
        open_shapes=opened,
        operand_names=names_by_index(scope.names()),
    )


def _check_inputs(graph: Graph) -> None:
    """Name the operators that read inputs which the HAL cannot have.

    :raises UnsupportedOperatorError: if there are any.
    """
    refusals = Refusals()
    for number in graph.inputs:
        if not graph.tensors[number].unsupported:
            continue
        try:
            describe(graph.tensors[number])
        except UnsupportedOperatorError as error:
            for operator in graph.operators:
                if number in operator.inputs:
                    place = place_of(graph, operator)
                    refusals.add(operator.name, operator.index, place, error)
    refusals.raise_any()


def _input(
    builder: ModelBuilder, name: str, tensor: Tensor, shape: Sequence[int] | None
) -> int:
    operand = describe(replace(tensor, shape=checked_shape(name, tensor, shape)))
    return builder.input(
        name,
        operand.type,
        operand.dimensions,
        scale=operand.scale,
        zero_point=operand.zero_point,
    )
