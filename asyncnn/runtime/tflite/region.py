"""TFLite files whose graph is handed to LiteRT as it is: one operation, a region.

A device with LiteRT runs them, others a translation, if there is one. Inputs and
outputs have the axes of the file.
"""

import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
from msgspec.structs import replace

from asyncnn.engine.array_memory import address_of
from asyncnn.engine.costs import estimated_of_graph_ns
from asyncnn.extensions import Extension
from asyncnn.extensions.regions import LITERT, RegionPort, region_model, type_of
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operands import AnyOperandType
from asyncnn.hal.types import Dimensions, HalVersion, Memory, OperandType
from asyncnn.hal.validate import validating
from asyncnn.hal.validate.model import remember
from asyncnn.input_files import decoding
from asyncnn.memory.pages import is_final
from asyncnn.memory.pools import from_buffer, view
from asyncnn.memory.shared import shareable
from asyncnn.pacing import Steps
from asyncnn.runtime.axes import MAX_RANK
from asyncnn.runtime.model import InputShapes, NamedModel, shapes_by_name
from asyncnn.runtime.tflite.borders import (
    checked_shape,
    chosen_graph,
    open_lengths,
    signatures_of,
    unique_names,
)
from asyncnn.runtime.tflite.metadata import read_metadata
from asyncnn.runtime.tflite.tensors import describe
from asyncnn.runtime.unsupported import UnsupportedOperatorError
from asyncnn.tflite import flatbuffer, runnable
from asyncnn.tflite.contents import keep_checked, reading_contents
from asyncnn.tflite.scan import reading_checked
from asyncnn.tflite.tables import ALL_DTYPES, Contents, Graph, Tensor

_MOST_NS = 4_500_000
"""Estimated time of a graph that a pause may have begin anew; see `cuts.SEGMENT_NS`."""

_HAL_TYPES = frozenset({"FLOAT32", "FLOAT16", "INT32", "INT8", "UINT8", "BOOL"})


def loading_tflite(
    memory: Memory,
    signature: str | None,
    input_shapes: InputShapes,
    extensions: Iterable[Extension | str],
    strict: bool,
) -> Steps[NamedModel]:
    """Load a file in steps, as a region if nothing is lost by it, else translated.

    One that cannot be translated, maybe as it says wrong shapes, is a region all the
    same, unless ``strict``.

    :raises InvalidArgumentError: if the file is damaged, or has no such signature.
    :raises UnsupportedOperatorError: if LiteRT does not run it either.
    """
    with decoding("TFLite"):
        data = view(memory)
        contents = yield from reading_checked(
            data, is_final=not strict and is_final(np.frombuffer(data, np.uint8))
        )
        graph = chosen_graph(contents, signature)
        region = partial(region_of_graph, contents, graph, memory, input_shapes)
        is_wanted = not strict and (
            _loses_nothing(contents, graph, input_shapes)
            or _is_wide(graph)
            or _is_shaped_by_values(contents, graph)
        )
        if is_wanted:
            # What is wrong with it, if anything, its translation says in more words.
            unwanted = suppress(InvalidArgumentError, UnsupportedOperatorError)
            with unwanted, decoding("TFLite"):
                return (yield from region())
    from asyncnn.runtime.tflite.importer import importing_contents

    try:
        return (
            yield from importing_contents(
                contents, graph, memory, input_shapes, extensions
            )
        )
    except (InvalidArgumentError, UnsupportedOperatorError) as error:
        if strict:
            raise
        refused = error
    try:
        with decoding("TFLite"):
            return (yield from region())
    except InvalidArgumentError:
        raise refused from None
    except UnsupportedOperatorError as error:
        if not isinstance(refused, UnsupportedOperatorError):
            raise refused from None
        raise UnsupportedOperatorError(
            f"{refused.message}; {error.message}",
            hint=refused.hint,
            operators=refused.operators,
        ) from error


def _loses_nothing(contents: Contents, graph: Graph, input_shapes: InputShapes) -> bool:
    """Return whether a region is to its users what the translation is.

    Its ends are tensors of the HAL, of lengths that are known without a run, and no
    numbers are rounded that the translation keeps. Nor is it so long that what an
    urgent run takes the lane from has much to compute again, as far as one turn of each
    loop says: translations are divided into segments, and so are graphs that C finds
    sound.
    """
    if graph.index or input_shapes or _is_open(contents):
        return False
    graphs = contents.graphs
    # What C finds sound has builtin operators alone, and is run in parts.
    if graph.survey is None and (
        any(e.name in runnable.OWN_CUSTOM for g in graphs for e in g.operators)
        or sum(sum(estimated_of_graph_ns(each)) for each in graphs) > _MOST_NS
    ):
        return False  # an extension may have them, or a pause loses too much
    if any(map(is_hybrid, graphs)):
        return False
    ends = [graph.tensors[index] for index in {*graph.inputs, *graph.outputs}]
    return all(
        each.type in _HAL_TYPES and len(each.shape) <= MAX_RANK and all(each.shape)
        for each in ends
    )


def _is_open(contents: Contents) -> bool:
    """Return whether a run alone shows the lengths of results, as none are recorded."""
    if not runnable.may_surprise(contents):
        return False
    graph = contents.graphs[0]
    return not (
        runnable.calls(contents)
        and runnable.keeps_lengths(contents)
        and not any(open_lengths(graph.tensors[index]) for index in graph.outputs)
    )


_WIDENING = frozenset(
    (
        *("ADD", "ADD_N", "BATCH_MATMUL", "CAST", "CUMSUM", "MUL", "NEG", "POW"),
        *("REDUCE_PROD", "SUB", "SUM"),
    )
)
"""Operators of int64 whose results may be beyond the 32 bits that the HAL has of it."""


def _is_wide(graph: Graph) -> bool:
    """Return whether results of int64 may be beyond what a translation has of them.

    Results of graphs that it runs are not asked for: most count the turns of a loop.
    """
    return any(
        graph.tensors[index].type == "INT64"
        for each in graph.operators
        if each.name in _WIDENING
        # Casts of integers are no longer than those.
        and (each.name != "CAST" or "FLOAT" in graph.tensors[each.inputs[0]].type)
        for index in each.outputs[:1]
    )


_LENGTHS = {
    **dict.fromkeys(("FILL", "TRANSPOSE_CONV"), 0),
    **dict.fromkeys(("BROADCAST_TO", "RESHAPE", "RESIZE_BILINEAR"), 1),
    **dict.fromkeys(("MIRROR_PAD", "PAD", "PADV2", "RESIZE_NEAREST_NEIGHBOR"), 1),
    "SLICE": 2,
    "TILE": 1,
}
"""Inputs that say which lengths results of operators have."""


def _is_shaped_by_values(contents: Contents, graph: Graph) -> bool:
    """Return whether inputs' values decide lengths, which a translation fixes.

    Most are computed of the lengths of inputs, by SHAPE.
    """
    if not graph.index and not runnable.may_surprise(contents):
        return False
    varying = {*graph.inputs}
    for each in graph.operators:
        place = _LENGTHS.get(each.name, -1)
        if 0 <= place < len(each.inputs) and each.inputs[place] in varying:
            return True
        if each.name not in ("SHAPE", "RANK") and not varying.isdisjoint(each.inputs):
            varying.update(each.outputs)
    return False


def is_hybrid(graph: Graph) -> bool:
    """Return whether LiteRT quantises floats as it runs, to multiply integers."""
    if graph.survey is not None:
        return bool(graph.survey.is_hybrid)
    read = [
        [graph.tensors[i].type for i in e.inputs if i >= 0] for e in graph.operators
    ]
    return any("FLOAT32" in each and {"INT8", "UINT8"} & {*each} for each in read)


def region_of_graph(
    contents: Contents, graph: Graph, memory: Memory, input_shapes: InputShapes
) -> Steps[NamedModel]:
    """Return the model of a whole file, which LiteRT runs, in steps.

    Outputs have the shapes that the file says, and open ones if inputs have not.

    :raises InvalidArgumentError: if the file is damaged.
    :raises UnsupportedOperatorError: if LiteRT does not run it by itself.
    """
    chosen = contents, graph
    if graph.index:
        memory = _led_by(graph, memory)
        contents = yield from reading_contents(view(memory))
        graph = contents.graphs[0]
    refusal = runnable.refusal(contents)
    if refusal:
        raise UnsupportedOperatorError(f"LiteRT does not run it: {refusal}")
    runnable.check(contents)
    address = address_of(np.frombuffer(view(memory), np.uint8))
    keep_checked(memory, address, contents)
    input_names = unique_names(graph, graph.inputs)
    output_names = unique_names(graph, graph.outputs)
    shapes = shapes_by_name(input_names, input_shapes)
    given = {
        name: graph.tensors[index]
        for name, index in zip(input_names, graph.inputs, strict=True)
    }
    inputs = [
        _port(tensor, checked_shape(name, tensor, shapes.get(name)))
        for name, tensor in given.items()
    ]
    made = [graph.tensors[index] for index in graph.outputs]
    is_usual = all(
        shapes.get(name, tensor.shape) == tensor.shape for name, tensor in given.items()
    )
    is_known = is_usual and all(0 not in each.shape for each in made)
    is_known = is_known and not (runnable.calls(contents) and _is_open(contents))
    outputs = [_port(each, each.shape if is_known else None) for each in made]
    model = region_model(LITERT, memory, inputs, outputs)
    named = NamedModel.of(model, input_names, output_names)
    opened = {
        name: lengths
        for name, tensor in given.items()
        if name not in shapes and (lengths := open_lengths(tensor))
    }
    named = replace(
        named,
        signatures=signatures_of(*chosen, input_names, output_names),
        metadata=read_metadata(contents.metadata, graph, view(memory)),
        open_shapes=opened,
    )
    if graph.survey is not None and not shapes:
        # What C has seen of the file is all that the rules ask of its ends.
        remember(named.model, HalVersion.AIDL_V4, are_structs=True)
    yield from validating(named.model)
    return named


def _led_by(graph: Graph, memory: Memory) -> Memory:
    """Return a copy of a file that was read, whose first graph is another one."""
    data = memoryview(bytearray(view(memory)))
    graphs = flatbuffer.places(data, flatbuffer.uint32(data, 0)[0], 3)[2]
    first = flatbuffer.target(data, graphs) + 4
    ahead = flatbuffer.target(data, first + 4 * graph.index) - first
    struct.pack_into("<I", data, first, ahead)
    return shareable(from_buffer(data.toreadonly()))


def _port(tensor: Tensor, shape: Sequence[int] | None) -> RegionPort:
    """Describe an input or output; None for a shape that is open."""
    type_: AnyOperandType
    dtype, scale, zero_point = ALL_DTYPES[tensor.type], 0.0, 0
    dimensions: Dimensions = () if shape is None else tuple(shape) or (1,)
    if dtype in (np.int8, np.uint8, np.int16):
        operand = describe(replace(tensor, shape=(1,)))
        type_ = OperandType(operand.type)
        scale, zero_point = operand.scale, operand.zero_point
    else:
        type_ = type_of(LITERT, dtype)
    return type_, dimensions, scale, zero_point
