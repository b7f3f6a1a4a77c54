"""Random graphs: each operation against its kernel, and all of them as one segment."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec.structs import replace

from asyncnn.devices.litert.claims import RULES, claims
from asyncnn.engine.plan import Plan, Step
from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.hal.types import OperandType
from asyncnn.tools.conformance.random_graphs.checking import evaluate, require_close
from asyncnn.tools.conformance.random_graphs.families import DRAWN, RandomGraph, graphs
from tests.devices.litert.running import run_operation, run_segment, segment_of
from tests.random_graphs import naive
from tests.random_graphs.running import program_of
from tests.random_graphs.trying import on_graphs

CLAIMED = DRAWN & RULES.keys()
F16 = OperandType.TENSOR_FLOAT16


@on_graphs(strategy=graphs(CLAIMED, 3))
def test_each_operation_is_computed_as_by_its_kernel(graph: RandomGraph) -> None:
    plan = plan_of(graph)
    for step, full, arrays, expected in followed(plan, graph):
        if step.kernel is None or not claims(step.operation) or not finite(full):
            continue
        slack = [each.slack for each in naive.evaluate(full)]
        results = run_operation(step.operation, arrays)
        require_close(full, results, expected, slack)


@on_graphs(strategy=graphs(CLAIMED))
def test_barriers_change_no_bit(graph: RandomGraph) -> None:
    plan = plan_of(graph)
    steps = longest_claimed(plan)
    if not steps:
        return
    values = values_of(plan, graph)
    written = [index for step in steps for index in step.outputs]
    segment = segment_of(steps, written)
    whole = run_segment(segment, values)
    parts = run_segment(segment, values, range(1, len(steps)))
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(one, other)


@on_graphs(strategy=graphs(CLAIMED))
def test_a_segment_computes_what_its_operations_do_one_by_one(
    graph: RandomGraph,
) -> None:
    plan = plan_of(graph)
    steps = longest_claimed(plan)
    if not steps or any(has_float16(step.operation) for step in steps):
        return  # float16 is not rounded between operations
    values = values_of(plan, graph)
    segment = segment_of(steps, [index for step in steps for index in step.outputs])
    whole = run_segment(segment, values)
    known = {index: values[index] for index in segment.inputs}
    for step in steps:
        arrays = [known.get(index) for index in step.inputs]
        results = run_operation(step.operation, arrays)
        known.update(zip(step.outputs, results, strict=True))
    for index, array in zip(segment.outputs, whole, strict=True):
        np.testing.assert_array_equal(array, known[index])


def plan_of(graph: RandomGraph) -> Plan:
    return program_of(graph).plan(tuple(array.shape for array in graph.inputs))


def longest_claimed(plan: Plan) -> list[Step]:
    """Return the longest run of steps that are all claimed."""
    best: list[Step] = []
    current: list[Step] = []
    for step in plan.steps:
        taken = step.kernel is not None and claims(step.operation)
        current = [*current, step] if taken else []
        best = max(best, current, key=len)
    return best


def has_float16(operation: BoundOperation) -> bool:
    operands = (*operation.inputs, *operation.outputs)
    return any(operand is not None and operand.type == F16 for operand in operands)


def finite(operation: BoundOperation) -> bool:
    return all(
        operand is None or bool(np.isfinite(operand.require_value()).all())
        for operand in operation.inputs
    )


def values_of(plan: Plan, graph: RandomGraph) -> dict[int, Array]:
    """Return the value of each operand, as the kernels compute it."""
    values: dict[int, Array] = {}
    for step, _, arrays, results in followed(plan, graph):
        values.update(
            (index, array)
            for index, array in zip(step.inputs, arrays, strict=True)
            if array is not None
        )
        values.update(zip(step.outputs, results, strict=True))
    return values


def followed(
    plan: Plan, graph: RandomGraph
) -> Iterator[tuple[Step, BoundOperation, list[Any], list[Array]]]:
    """Yield each step, its operation with all values, its inputs and its results."""
    values = dict(plan.constants)
    values.update(zip(plan.subgraph.input_indexes, graph.inputs, strict=True))
    for step in plan.steps:
        arrays = [
            None if operand is None else values[index]
            for operand, index in zip(step.operation.inputs, step.inputs, strict=True)
        ]
        inputs = tuple(
            None
            if operand is None
            else replace(operand, value=array, shape=array.shape)
            for operand, array in zip(step.operation.inputs, arrays, strict=True)
        )
        full = replace(step.operation, inputs=inputs)
        with np.errstate(all="ignore"):
            results = evaluate(full)
        outputs = tuple(
            replace(operand, shape=array.shape)
            for operand, array in zip(full.outputs, results, strict=True)
        )
        values.update(zip(step.outputs, results, strict=True))
        yield step, replace(full, outputs=outputs), arrays, results
