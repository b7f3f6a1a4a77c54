"""Which operators of a TFLite file are run together, and which one after the other."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from asyncnn.devices.litert.cuts import SEGMENT_NS, cuts, is_short
from asyncnn.engine.costs import Speeds, estimated_of_graph_ns
from asyncnn.tflite.tables import Contents, Graph, Operator, ShortOperator


class TimedOperator(NamedTuple):
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
    operators = survey.short_operators(contents.data)
    timed = timed_operators(graph, operators, costs)
    varying = [{*each.outputs} if each.inputs else set[int]() for each in timed]
    edges = cuts(timed, SEGMENT_NS)
    if not edges or not set[int]().union(*varying) >= {*graph.outputs}:
        return []
    makers = {i: each for each in operators for i in each.outputs}
    last = {index: at for at, each in enumerate(timed) for index in each.inputs}
    unread = tuple(index for index in graph.inputs if index not in last)
    last.update(dict.fromkeys(graph.outputs, len(timed)))
    parts = []
    for first, end in pairwise([0, *edges, len(timed)]):
        made = set[int]().union(*varying[first:end])
        inputs = dict.fromkeys(i for each in timed[first:end] for i in each.inputs)
        outputs = tuple(sorted(i for i in made if last.get(i, 0) >= end))
        own = {at for at in range(first, end) if varying[at]}
        read = [index for at in own for index in operators[at].inputs]
        while read:
            maker = makers.get(read.pop())
            if maker and maker.number not in own and not varying[maker.number]:
                own.add(maker.number)
                read += maker.inputs
        if outputs:
            rows = sorted(own)
            part = replace(
                graph,
                inputs=(*(i for i in inputs if i not in made), *unread),
                outputs=outputs,
                survey=survey._replace(operators=survey.operators[rows], numbers=rows),
            )
            parts.append(replace(contents, graphs=(part,)))
            unread = ()
    return parts


def timed_operators(
    graph: Graph, operators: Sequence[ShortOperator | Operator], costs: Sequence[int]
) -> list[TimedOperator]:
    """Return operators of a graph that take ``costs``, in their order."""
    if graph.survey is not None:
        constant = {*np.flatnonzero(graph.survey.tensors["is_constant"]).tolist()}
    else:
        constant = {each.index for each in graph.tensors if each.stored is not None}
    timed: list[TimedOperator] = []
    for each, cost_ns in zip(operators, costs, strict=True):
        number = each.index if isinstance(each, Operator) else each.number
        varying = tuple([i for i in each.inputs if i >= 0 and i not in constant])
        made = each.outputs if varying else ()
        timed.append(
            TimedOperator(cost_ns if varying else 0, varying, made, number, each.inputs)
        )
        if not varying:
            constant.update(each.outputs)
    return timed
