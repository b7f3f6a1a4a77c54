"""Which operators of a file are run together, and which of its bytes lie apart."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np
from msgspec.structs import replace

from asyncnn.devices.litert.cuts import SEGMENT_NS, cuts, is_short
from asyncnn.devices.litert.graph_file import may_lie_apart
from asyncnn.engine.costs import Speeds, estimated_of_graph_ns
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.tflite import flatbuffer
from asyncnn.tflite.tables import (
    Contents,
    Graph,
    Operator,
    ShortOperator,
    StoredBytes,
    Survey,
    extents,
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
    last = {index: at for at, each in enumerate(timed) for index in each.inputs}
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
