"""The engine against its kernels one by one: planning must not change a bit.

Both sides run the same kernels on the same shapes, so there is nothing that rounding
could excuse: BLAS blocks its products by shape, not by address.
"""

from collections.abc import Sequence

from hypothesis import strategies as st
from msgspec.structs import replace

from asyncnn.engine import PlanExecution
from asyncnn.engine.plan import CONTROL_FLOW
from asyncnn.hal.types import Model, OperandLifeTime
from asyncnn.tools.conformance.random_graphs.families import RandomGraph
from tests.engine.scripted import PauseAfter
from tests.random_graphs.running import (
    assert_same,
    check_engine,
    directly,
    launch,
    program_of,
)
from tests.random_graphs.trying import on_graphs


@on_graphs()
def test_the_engine_computes_what_the_kernels_do_one_by_one(graph: RandomGraph) -> None:
    check_engine(graph)


@on_graphs(0.5)
def test_a_workspace_that_has_served_other_inputs_is_as_good_as_new(
    graph: RandomGraph,
) -> None:
    program = program_of(graph)
    for inputs in (graph.inputs, graph.other_inputs, graph.inputs):
        execution = launch(program, inputs)
        assert execution.advance()
        assert_same(execution.outputs, directly(graph, inputs))


@on_graphs(0.5, boundaries=st.lists(st.integers(1, 4), max_size=8))
def test_executions_that_alternate_do_not_disturb_each_other(
    graph: RandomGraph, boundaries: list[int]
) -> None:
    sets = (graph.inputs, graph.other_inputs, graph.inputs)
    program = program_of(graph)
    executions = [launch(program, inputs) for inputs in sets]
    _alternate(executions, boundaries)
    for execution, inputs in zip(executions, sets, strict=True):
        assert_same(execution.outputs, directly(graph, inputs))


def _alternate(executions: Sequence[PlanExecution], boundaries: Sequence[int]) -> None:
    """Advance them in turn, by the next number of boundaries each; by 1 in the end."""
    running, turns = list(executions), iter(boundaries)
    while running:
        running = [
            execution
            for execution in running
            if not execution.advance(PauseAfter(next(turns, 1), threads=2))
        ]


@on_graphs(0.5)
def test_nothing_depends_on_what_the_model_declares_of_results(
    graph: RandomGraph,
) -> None:
    model = _without_declared_results(graph.named.model)
    silent = graph._replace(named=replace(graph.named, model=model))
    execution = launch(program_of(silent), graph.inputs)
    assert execution.advance()
    assert_same(execution.outputs, directly(graph, graph.inputs))


def _without_declared_results(model: Model) -> Model:
    """Leave the shapes of results open, but those that loops must know."""
    written = {OperandLifeTime.TEMPORARY_VARIABLE, OperandLifeTime.SUBGRAPH_OUTPUT}
    kept = {
        index
        for operation in model.main.operations
        if operation.type in CONTROL_FLOW
        for index in (*operation.inputs, *operation.outputs)
    }
    operands = tuple(
        replace(operand, dimensions=())
        if operand.lifetime in written and index not in kept
        else operand
        for index, operand in enumerate(model.main.operands)
    )
    return replace(model, main=replace(model.main, operands=operands))
