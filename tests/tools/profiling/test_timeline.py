"""A run taken apart, by spans and steps whose times are made up."""

import pytest

from asyncnn.engine import Program
from asyncnn.engine.plan import Plan
from asyncnn.hal.types import Model
from asyncnn.tools.profiling.timeline import (
    MEANINGS,
    Cost,
    EndedStep,
    RunStage,
    Timeline,
    TracedExecution,
    executions_of,
)
from asyncnn.tracing import Layer, Phase, Span
from tests.engine.test_control_flow import if_model, while_model
from tests.networks import chain

FREE = Cost(0, 0)


def plan_of(model: Model, number: int = -1) -> Plan:
    program = Program(model)
    subgraph = program.subgraph(number)
    operands = subgraph.operands
    return program.plan(
        tuple(operands[index].dimensions for index in subgraph.input_indexes), number
    )


def span(name: str, begun: int, ended: int, group: int = 1) -> Span:
    return Span(name, Layer.CPU, Phase.EXECUTION, begun, ended, 1, group)


def named(stages: dict[RunStage, float]) -> dict[RunStage, float]:
    return {stage: time for stage, time in stages.items() if time}


@pytest.fixture
def plan() -> Plan:
    return plan_of(chain(3, 4).model)


def test_all_of_a_run_belongs_to_a_step_or_a_stage(plan: Plan) -> None:
    first, second, third = plan.steps
    entries = [
        EndedStep(plan, first, 130, 200),
        EndedStep(plan, second, 210, 300),
        EndedStep(plan, third, 305, 400),
    ]
    spans = [
        span("execution", 110, 450),
        span("queue", 110, 120),
        span("execute", 120, 410),
        span("reply", 430, 445),
        span("run", 100, 470, 2),
    ]
    executions = executions_of(spans, entries)
    line = Timeline.of(100, 470, executions, FREE)
    assert line.total_ns == 370
    assert sorted(line.own_ns.values()) == [70, 90, 95]
    assert set(line.counts.values()) == {1}
    assert named(line.stages) == {
        RunStage.REQUEST: 10,
        RunStage.QUEUE: 10,
        RunStage.BINDING: 20,
        RunStage.BETWEEN: 15,
        RunStage.HANDING_BACK: 20,
        RunStage.REPLYING: 40,
    }
    assert sum(line.own_ns.values()) + sum(line.stages.values()) == line.total_ns
    assert line.computed_ns == [290]


def test_what_observing_takes_is_taken_off(plan: Plan) -> None:
    entries = [
        EndedStep(plan, step, start, start + 50)
        for step, start in zip(plan.steps, (100, 160, 220), strict=True)
    ]
    execution = TracedExecution(0, [(90, 300)], 310, entries)
    line = Timeline.of(0, 400, [execution], Cost(5, 2))
    assert set(line.own_ns.values()) == {45}
    assert line.stages[RunStage.BETWEEN] == 20 - 3 * 2
    assert line.observing_ns == 3 * 7
    whole = sum(line.own_ns.values()) + sum(line.stages.values()) + line.observing_ns
    assert whole == 400


def test_a_preempted_execution_waits_again(plan: Plan) -> None:
    first, second, _ = plan.steps
    entries = [EndedStep(plan, first, 10, 20), EndedStep(plan, second, 80, 90)]
    spans = [
        span("execution", 0, 130),
        span("execute", 70, 100),
        span("execute", 5, 25),
        span("reply", 105, 120),
    ]
    line = Timeline.of(0, 130, executions_of(spans, entries), FREE)
    assert named(line.stages) == {
        RunStage.QUEUE: 5 + 45,
        RunStage.BINDING: 10 + 20,
        RunStage.HANDING_BACK: 5,
        RunStage.REPLYING: 25,
    }
    assert line.computed_ns == [50]


def test_the_time_of_control_flow_is_without_what_it_runs() -> None:
    model = if_model((3,))
    outer, inner = plan_of(model), plan_of(model, 0)
    entries = [
        EndedStep(inner, inner.steps[0], 30, 70),
        EndedStep(outer, outer.steps[0], 20, 80),
    ]
    line = Timeline.of(
        0, 100, [TracedExecution(0, [(10, 90)], 90, entries)], Cost(1, 3)
    )
    assert sorted(line.own_ns.values()) == [60 - 40 - 1 - 3, 40 - 1]
    assert line.observing_ns == 8
    whole = sum(line.own_ns.values()) + sum(line.stages.values()) + line.observing_ns
    assert whole == 100


def test_rounds_of_a_loop_are_counted() -> None:
    model = while_model((3,))
    outer, body = plan_of(model), plan_of(model, 1)
    rounds = [
        EndedStep(body, step, start, start + 5)
        for start in (20, 40, 60)
        for step in body.steps[:1]
    ]
    entries = [*rounds, EndedStep(outer, outer.steps[0], 10, 90)]
    line = Timeline.of(0, 100, [TracedExecution(0, [(0, 100)], 100, entries)], FREE)
    assert sorted(line.counts.values()) == [1, 3]
    assert sorted(line.own_ns.values()) == [15, 80 - 15]


def test_partitions_follow_each_other_within_the_reply_before(plan: Plan) -> None:
    step = plan.steps[0]
    entries = [EndedStep(plan, step, 20, 30), EndedStep(plan, step, 60, 70)]
    spans = [
        span("execution", 10, 100, 1),
        span("execute", 15, 35, 1),
        span("reply", 40, 95, 1),
        span("execution", 50, 90, 2),
        span("execute", 55, 75, 2),
        span("reply", 76, 85, 2),
    ]
    line = Timeline.of(0, 110, executions_of(spans, entries), FREE)
    assert line.stages[RunStage.MOVING] == 50 - 35
    assert line.stages[RunStage.HANDING_BACK] == 1
    assert line.stages[RunStage.REPLYING] == 110 - 76
    assert len(line.own_ns) == 2  # one step in two executions
    assert sum(line.own_ns.values()) + sum(line.stages.values()) == 110


def test_a_run_that_shows_nothing_is_elsewhere() -> None:
    spans = [span("run", 0, 50), span("execution", 0, 50, 2)]  # refused
    line = Timeline.of(0, 50, executions_of(spans, []), FREE)
    assert named(line.stages) == {RunStage.ELSEWHERE: 50}


def test_every_stage_says_what_it_means() -> None:
    assert MEANINGS.keys() == set(RunStage)
    assert TracedExecution(0, [(0, 1)], 1, []).plan is None
