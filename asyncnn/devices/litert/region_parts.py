"""Parts of heads: what is run together, described anew, or lies apart of a file."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace

from asyncnn.devices.litert.cuts import SEGMENT_NS, cuts, is_short, last_reads
from asyncnn.devices.litert.flat_file import REFERENCE, FlatFile, Place, layout_of
from asyncnn.devices.litert.graph_file import may_lie_apart
from asyncnn.engine.costs import Speeds, estimated_of_graph_ns
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.tflite import flatbuffer
from asyncnn.tflite.runnable import quantized_axis
from asyncnn.tflite.tables import (
    Contents,
    Graph,
    Operator,
    ShortOperator,
    ShortTensor,
    StoredBytes,
    Survey,
    Tensor,
    extents,
)

_TENSOR_FIELDS = 5
_OPERATOR = layout_of(((0, "I"), (1, REFERENCE), (2, REFERENCE)))
_WITH_OPTIONS = layout_of(
    ((0, "I"), (1, REFERENCE), (2, REFERENCE), (3, "B"), (4, REFERENCE))
)

COPIED_BYTES = 1 << 20
"""Files of so many bytes are copied as a whole, weights and all."""


class TimedOperator(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An operator without constants, its number, and all that it reads."""

    cost_ns: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    number: int
    reads: tuple[int, ...]


class NewOperator(NamedTuple):
    """An operator of a head: its code, what it reads and makes, and its options.

    These are a table of a ``kind``, none if 0.
    """

    code: int
    read: Sequence[int]
    made: Sequence[int]
    kind: int = 0
    options: Place = 0


Step: TypeAlias = Place | NewOperator


def placed(file: FlatFile, steps: Sequence[Step]) -> list[Place]:
    """Return where operators are described, new ones all at once in a file."""
    new = [each for each in steps if isinstance(each, NewOperator)]
    ends = file.integers([each for own in new for each in (own.read, own.made)])
    columns: dict[int, Any] = dict(
        enumerate([[own[k] for own in new] for k in range(5)])
    )
    columns[1], columns[2] = ends[::2], ends[1::2]
    layouts = [_WITH_OPTIONS if own.options else _OPERATOR for own in new]
    places = iter(file.tables(layouts, columns))
    return [next(places) if isinstance(e, NewOperator) else e for e in steps]


def region_parts(contents: Contents, speeds: Speeds) -> list[Contents]:
    """Return a sound file in parts of its graph, in order; none if that stays one.

    Each has the operators of constants alone whose results it reads.
    """
    graph = contents.graphs[0]
    survey = graph.survey
    if survey is None or survey.may_surprise:
        return []
    costs = estimated_of_graph_ns(graph, speeds)
    if is_short(costs, SEGMENT_NS):
        return []
    operators = survey.operators
    timed = timed_operators(operators, costs)
    edges = cuts(timed, SEGMENT_NS)
    varying = {index for each in timed for index in each.outputs}
    if not edges or not varying >= {*graph.outputs}:
        return []
    makers = {i: each for each in operators for i in each.outputs}
    last = last_reads(timed)
    unread = tuple(index for index in graph.inputs if index not in last)
    last.update(dict.fromkeys(graph.outputs, len(timed)))
    parts = []
    for first, end in pairwise([0, *edges, len(timed)]):
        made = {index for each in timed[first:end] for index in each.outputs}
        inputs = dict.fromkeys(i for each in timed[first:end] for i in each.inputs)
        outputs = tuple(sorted(i for i in made if last.get(i, 0) >= end))
        own = {each.number for each in operators[first:end] if each.inputs}
        read = [index for at in own for index in operators[at].reads]
        while read:
            maker = makers.get(read.pop())
            if maker and maker.number not in own and not maker.inputs:
                own.add(maker.number)
                read += maker.reads
        if outputs:
            chosen = [operators[number] for number in sorted(own)]
            part = replace(
                graph,
                inputs=(*(i for i in inputs if i not in made), *unread),
                outputs=outputs,
                survey=replace(survey, operators=chosen, is_part=True),
            )
            parts.append(replace(contents, graphs=(part,)))
            unread = ()
    return parts


def holes_of(survey: Survey, whole: Array) -> dict[int, tuple[int, int]]:
    """Return which bytes of buffers lie apart from a sound file, by their numbers.

    Each is a place and a size.
    """
    if whole.size <= COPIED_BYTES:
        return {}
    return {
        number: (start, size)
        for number, (_, start, size, width) in enumerate(survey.buffers)
        if width and not start % width and may_lie_apart(whole[start : start + size])
    }


def check_holes(
    contents: Contents, holes: Sequence[tuple[int, int]], kept: Sequence[StoredBytes]
) -> None:
    """Check that no hole, which LiteRT finds empty, has any of what was checked.

    Buffers that are ``kept`` are where they were.

    :raises InvalidArgumentError: if one has.
    """
    if not holes or contents.graphs[0].survey is not None:
        return
    starts, sizes = np.array(sorted(holes)).T
    ends = np.maximum.accumulate(starts + sizes)
    described = [*extents(contents)]
    for own in kept:
        described += flatbuffer.extents(contents.data, own.table)
        described.append((own.start - 4, own.start + own.size))
    begin, end = np.array(described).T
    before = np.searchsorted(starts, end) - 1
    if ((before >= 0) & (ends[before] > begin)).any():
        raise InvalidArgumentError("weights lie where the file describes its graph")


def short_of(data: memoryview, tensor: Tensor) -> ShortTensor:
    """Return where that lies of a tensor in the file which describes it anew."""
    places = flatbuffer.places(data, tensor.table, _TENSOR_FIELDS)
    lengths, kind, _, _, quantization = places
    scales, points, count = 0, 0, len(tensor.scales)
    if count:
        table = flatbuffer.target(data, quantization)
        _, _, scales, points = flatbuffer.places(data, table, 4)
        scales = flatbuffer.target(data, scales)
        points = flatbuffer.target(data, points) if tensor.zero_points else 0
    return ShortTensor(
        *(tensor.table, tensor.buffer, data[kind] if kind else 0),
        flatbuffer.target(data, lengths) if lengths else 0,
        *(count, scales, points, quantized_axis(tensor)),
    )


def timed_operators(
    operators: Sequence[ShortOperator], costs: Sequence[int]
) -> list[TimedOperator]:
    """Return operators of a sound graph that take ``costs``, in their order."""
    return [
        TimedOperator(cost_ns, each.inputs, each.outputs, each.number, each.reads)
        if each.inputs
        else TimedOperator(0, (), (), each.number, each.reads)
        for each, cost_ns in zip(operators, costs, strict=True)
    ]


def timed_of_records(
    graph: Graph, operators: Sequence[Operator], costs: Sequence[int]
) -> list[TimedOperator]:
    """Return the same of operators of any graph."""
    constant = {each.index for each in graph.tensors if each.stored is not None}
    timed: list[TimedOperator] = []
    for each, cost_ns in zip(operators, costs, strict=True):
        varying = tuple([i for i in each.inputs if i >= 0 and i not in constant])
        made = each.outputs if varying else ()
        timed.append(
            TimedOperator(
                cost_ns if varying else 0, varying, made, each.index, each.inputs
            )
        )
        if not varying:
            constant.update(each.outputs)
    return timed
