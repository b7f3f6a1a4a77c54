"""Programs restore the plans of equal programs from records of them."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from msgspec.structs import replace

from asyncnn.engine import PlanExecution, PlanRecord, Program
from asyncnn.engine.program import MAIN, Records
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.types import (
    FusedActivationFunc,
    Model,
    Operand,
    OperandType,
    OperationType,
)
from asyncnn.runtime.builder import ModelBuilder
from tests.devices.cache.models import INPUTS, dense, image
from tests.engine.test_control_flow import if_model


class Recorded:
    """The records of a model, and how often each was asked for."""

    def __init__(self, model: Model) -> None:
        self.records = Program(model).records()
        self.asked: list[int] = []

    def ways(self) -> Records:
        return {number: partial(self._record, number) for number in self.records}

    def _record(self, number: int) -> PlanRecord:
        self.asked.append(number)
        return self.records[number]


def outputs(program: Program, batch: int = 1) -> np.ndarray:
    x = image(False, batch)
    plan = program.plan((x.shape,))
    out = np.empty(plan.outputs[0].shape, np.float32)
    PlanExecution(program, plan, [x], [out]).advance()
    return out


def test_plans_are_restored_once_and_when_they_are_needed_first() -> None:
    model = dense(False).model
    recorded = Recorded(model)
    program = Program(model, recorded.ways())
    assert recorded.asked == []
    np.testing.assert_array_equal(outputs(program), outputs(Program(model)))
    assert recorded.asked == [MAIN]


def test_whether_a_plan_is_straight_is_known_once_it_is_needed() -> None:
    model = dense(False).model
    recorded = Recorded(model)
    program = Program(model, recorded.ways())
    assert not program.is_straight
    assert recorded.asked == []
    program.plan(((1, INPUTS),))
    assert program.is_straight


def test_subgraphs_are_restored_each_for_itself() -> None:
    model = if_model((3,))
    recorded = Recorded(model)
    program = Program(model, recorded.ways())
    program.plan(((3,),), 1)
    assert recorded.asked == [1]
    assert program.records().keys() == recorded.records.keys()
    assert sorted(recorded.asked) == sorted(recorded.records)


def test_threads_that_need_a_plan_at_once_share_one() -> None:
    model = dense(False).model
    recorded = Recorded(model)
    program = Program(model, recorded.ways())
    barrier = threading.Barrier(4)

    def plan() -> object:
        barrier.wait()
        return program.plan(((1, INPUTS),))

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(plan) for _ in range(4)]
    assert len({id(future.result()) for future in futures}) == 1
    assert recorded.asked == [MAIN]


def test_a_plan_that_cannot_be_restored_fails_each_time() -> None:
    model = dense(False).model

    def fail() -> PlanRecord:
        raise GeneralFailureError("not today")

    program = Program(model, {MAIN: fail})
    for _ in range(2):
        with pytest.raises(GeneralFailureError, match="not today"):
            program.plan(((1, INPUTS),))


def test_shapes_of_no_record_are_planned_for() -> None:
    model = dense(False, batch=0).model
    recorded = Recorded(model)
    assert recorded.records == {}
    program = Program(model, recorded.ways())
    assert not program.is_straight
    np.testing.assert_array_equal(outputs(program, 2), outputs(Program(model), 2))


@pytest.mark.parametrize("type_", [OperationType.ADD, OperationType.MUL])
def test_tables_of_codes_are_restored_and_not_computed(type_: OperationType) -> None:
    model = of_codes(type_)
    record = Program(model).records()[MAIN]
    (step,) = record.steps
    (table,) = step.packed["lookup"]
    sevens = replace(step, packed={"lookup": (np.full_like(table, 7),)})
    program = Program(model, {MAIN: lambda: replace(record, steps=(sevens,))})
    x = np.arange(4, dtype=np.uint8)
    out = np.empty(4, np.uint8)
    PlanExecution(program, program.plan(((4,), (4,))), [x, x], [out]).advance()
    assert (out == 7).all()


def of_codes(type_: OperationType) -> Model:
    """An operation on two inputs of codes."""
    builder = ModelBuilder()
    codes = OperandType.TENSOR_QUANT8_ASYMM
    x, y = (builder.input(name, codes, (4,), scale=0.5) for name in "xy")
    given = [x, y, builder.scalar(FusedActivationFunc.NONE)]
    z = builder.operation(type_, given, Operand(codes, (4,), scale=1.0))
    builder.output(z, "z")
    return builder.build().model


def test_operations_that_are_alike_have_one_kernel() -> None:
    builder = ModelBuilder()
    none, row = builder.scalar(0), Operand(OperandType.TENSOR_FLOAT32, (1, 64))
    factors = [builder.constant(np.full(64, k, np.float32)) for k in (2, 3)]
    value = builder.input("x", row.type, row.dimensions)
    for factor in (0, 1, 0, 0):
        operands = [value, factors[factor], none]
        value = builder.operation(OperationType.MUL, operands, row)
    builder.output(value, "y")
    model = builder.build().model
    x = np.ones((1, 64), np.float32)
    for program in (Program(model), Program(model, Recorded(model).ways())):
        plan = program.plan((x.shape,))
        first, other, *rest = (step.kernel for step in plan.steps)
        assert rest == [first, first]
        assert other is not first
        execution = PlanExecution(program, plan, [x], [None])
        execution.advance()
        np.testing.assert_array_equal(execution.outputs[0], 24 * x)
