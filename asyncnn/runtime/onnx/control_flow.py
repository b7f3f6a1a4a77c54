"""If, Loop and Scan, without control flow in the HAL.

A condition that is known picks its branch. Both branches of one that is not are
computed, and their results selected. Loops of a known count are unrolled.
"""

from typing import Any

import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.runtime.onnx.emitter import Value
from asyncnn.runtime.onnx.node import Converter, Node
from asyncnn.runtime.onnx.reshaping import concatenate, reverse, slice_


def _if(node: Node) -> list[Value]:
    condition, draft = node.input(0), node.draft
    names = ("then_branch", "else_branch")
    graphs = [node.attribute(name) for name in names]
    if condition.data is not None:
        if condition.data.size != 1:
            raise InvalidArgumentError("a condition of several elements")
        return node.run(graphs[0 if condition.data.reshape(()) else 1])
    results = [node.run(graph) for graph in graphs]
    found = []
    for if_true, if_false in zip(*results, strict=True):
        if if_true.shape != if_false.shape or if_true.dtype != if_false.dtype:
            raise node.refuse(
                "a condition that is computed, with branches of different shapes or "
                f"types: {list(if_true.shape)} and {list(if_false.shape)}"
            )
        flag = draft.reshape(condition, ())
        found.append(draft.select(flag, if_true, if_false))
    return found


def _loop(node: Node) -> list[Value]:
    draft, body = node.draft, node.attribute("body")
    states = [node.input(index) for index in range(2, len(node.proto.input))]
    limit = int(node.number(0)) if node.has(0) else None
    goes_on = bool(node.number(1)) if node.has(1) else True
    collected: list[list[Value]] = [
        [] for _ in range(len(body.output) - 1 - len(states))
    ]
    step = 0
    charge = 1 + len(body.node)
    if limit is not None and goes_on and _only_counts(body):
        # All at once: a refusal of very many steps should not take that of most.
        draft.allowance.take_steps(limit * charge)
        charge = 0
    while goes_on and (limit is None or step < limit):
        draft.allowance.take_steps(charge)
        counter = draft.constant(np.array(step, np.int64))
        results = node.run(body, [counter, draft.constant(np.array(True)), *states])
        condition = results[0].data
        if condition is None:
            raise node.refuse("a loop whose end is computed")
        goes_on = bool(condition.reshape(()))
        states = results[1 : 1 + len(states)]
        for list_, value in zip(collected, results[1 + len(states) :], strict=True):
            list_.append(value)
        step += 1
    return [*states, *(_stacked(node, values) for values in collected)]


def _only_counts(body: Any) -> bool:
    """Tell whether the body of a loop hands on the condition that it is given."""
    given, name = body.input[1].name, body.output[0].name
    for node in body.node:
        if name in node.output:
            return bool(node.op_type == "Identity" and list(node.input) == [given])
    return bool(name == given)


def _stacked(node: Node, values: list[Value], axis: int = 0) -> Value:
    if not values:
        raise node.refuse("a loop of no steps")
    axis = axis % (values[0].rank + 1)
    rows = [
        node.draft.reshape(v, (*v.shape[:axis], 1, *v.shape[axis:])) for v in values
    ]
    return concatenate(node.draft, rows, axis)


def _scan(node: Node) -> list[Value]:
    draft, body = node.draft, node.attribute("body")
    if node.opset < 9:
        raise node.refuse("a scan over batches")
    count = node.attribute("num_scan_inputs", 1)
    inputs = node.inputs()
    states, scanned = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
    outputs = len(body.output) - len(states)
    axes = node.attribute("scan_input_axes", [0] * count)
    backwards = node.attribute("scan_input_directions", [0] * count)
    columns = []
    for value, axis, flips in zip(scanned, axes, backwards, strict=True):
        place = node.axis(axis, value.rank)
        columns.append((reverse(draft, value, place) if flips else value, place))
    lengths = {value.shape[place] for value, place in columns}
    if len(lengths) != 1:
        raise InvalidArgumentError(f"scans over {sorted(lengths)} elements")
    collected: list[list[Value]] = [[] for _ in range(outputs)]
    for step in range(lengths.pop()):
        draft.allowance.take_steps(1 + len(body.node))
        given = []
        for value, place in columns:
            begin = [step if a == place else 0 for a in range(value.rank)]
            size = [1 if a == place else n for a, n in enumerate(value.shape)]
            row = slice_(draft, value, begin, size)
            del size[place]
            given.append(draft.reshape(row, tuple(size)))
        results = node.run(body, [*states, *given])
        states = results[: len(states)]
        for list_, value in zip(collected, results[len(states) :], strict=True):
            list_.append(value)
    out_axes = node.attribute("scan_output_axes", [0] * outputs)
    flips = node.attribute("scan_output_directions", [0] * outputs)
    found = []
    for values, axis, flip in zip(collected, out_axes, flips, strict=True):
        found.append(_stacked(node, values[::-1] if flip else values, axis))
    return [*states, *found]


CONVERTERS: dict[str, Converter] = {"If": _if, "Loop": _loop, "Scan": _scan}
