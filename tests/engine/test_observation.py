"""Each step of an observed execution tells of itself; others know nothing of it."""

import sys
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import asyncnn
from asyncnn.engine import PlanExecution, Program
from asyncnn.engine.delegation import Step
from asyncnn.engine.observation import (
    Observation,
    Observed,
    ObservedExecution,
    current_observation,
    observing,
)
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Operand, OperandType, OperationType
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel
from asyncnn.tracing import active, recording_to
from tests.engine.scripted import PauseAfter
from tests.engine.test_control_flow import X, if_model, scalar, while_model
from tests.engine.test_delegation import ADD, MUL, RELU, Kernels, network
from tests.engine.test_tiles import PROGRAMS
from tests.networks import F32, chain, picking

I32 = OperandType.TENSOR_INT32


class Seen:
    """What an observer was told, with copies of the outputs."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.outputs: list[list[Array | None]] = []
        self.times: list[tuple[int, int]] = []

    def __call__(self, observed: Observed) -> None:
        plan, step, inputs, outputs, *times_ns = observed
        assert len(inputs) == len(step.inputs)
        assert step in plan.steps
        self.steps.append(step)
        self.outputs.append([None if o is None else o.copy() for o in outputs])
        self.times.append(tuple(times_ns))

    @property
    def names(self) -> list[str]:
        return [step.name for step in self.steps]


def shaped_by_data_model() -> NamedModel:
    """``y = fill(shape, 2) + 1``: the shape comes with the request."""
    builder = ModelBuilder()
    shape = builder.input("shape", I32, (1,))
    filled = builder.operation(
        OperationType.FILL, [shape, builder.scalar(np.float32(2))], Operand(F32, (0,))
    )
    one, none = builder.constant(np.ones(1, np.float32)), builder.scalar(0)
    y = builder.operation(ADD, [filled, one, none], Operand(F32, (0,)))
    builder.output(y, "y")
    return builder.build()


def both(program: Program, *inputs: Array) -> tuple[list[Array], Seen]:
    """Run twice, once observed; the results are the same."""
    plan = program.plan(tuple(x.shape for x in inputs))
    none = [None] * len(plan.outputs)
    plain = PlanExecution(program, plan, inputs, none)
    assert plain.advance()
    seen = Seen()
    observed = ObservedExecution(program, plan, inputs, none, Observation(seen))
    pauses = 0
    while not observed.advance(PauseAfter(2)):
        pauses += 1
    for expected, actual in zip(plain.outputs, observed.outputs, strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert all(begun <= ended for begun, ended in seen.times)
    assert sorted(seen.times, key=lambda time: time[1]) == seen.times
    return observed.outputs, seen


def test_steps_tell_of_themselves_in_order_with_what_they_have_computed() -> None:
    x = np.arange(4, dtype=np.float32)
    _, seen = both(Program(chain(5, 4).model), x)
    assert seen.names == ["ADD"] * 5
    for number, (output,) in enumerate(seen.outputs, 1):
        np.testing.assert_array_equal(output, x + number)


@pytest.mark.parametrize("kind", PROGRAMS)
def test_operations_in_tiles_tell_once(kind: str) -> None:
    program = PROGRAMS[kind]()
    (port,) = program.plan(program.declared_shapes or ()).inputs
    _, seen = both(program, np.ones(port.shape or (), port.dtype))
    assert len(seen.steps) == 1


def test_segments_of_a_delegate_tell_as_one_step() -> None:
    model = network(ADD, MUL, RELU, MUL, ADD).model
    program = Program(model, delegate=Kernels([ADD, MUL]))
    _, seen = both(program, np.float32([-3, -1, 0, 2]))
    assert seen.names == ["ADD to MUL (2)", "RELU", "MUL to ADD (2)"]


def test_an_interrupted_segment_tells_of_the_run_that_ended() -> None:
    interrupts = iter([False, True, True])
    delegate = Kernels([ADD, MUL], work=lambda stop: next(interrupts))
    program = Program(network(ADD, MUL).model, delegate=delegate)
    plan, seen = program.plan(((4,),)), Seen()
    execution = ObservedExecution(
        program, plan, [np.ones(4, np.float32)], [None], Observation(seen)
    )
    assert execution.advance()
    assert seen.names == ["ADD to MUL (2)"]


@pytest.mark.parametrize("condition", [True, False])
def test_steps_of_a_branch_come_before_the_if_around_them(condition: bool) -> None:
    _, seen = both(Program(if_model((3,))), np.array([condition]), X)
    assert seen.names == ["ADD" if condition else "MUL", "IF"]
    (inner_begun, inner_ended), (begun, ended) = seen.times
    assert begun <= inner_begun
    assert inner_ended <= ended
    np.testing.assert_array_equal(seen.outputs[-1][0], X + X if condition else X * X)


def test_each_round_of_a_loop_tells() -> None:
    _, seen = both(Program(while_model((3,))), scalar(0), X, scalar(3))
    assert seen.names == ["LESS", "ADD", "ADD"] * 3 + ["LESS", "WHILE"]
    np.testing.assert_array_equal(seen.outputs[-1][1], X * 8)


def test_steps_of_open_shape_tell_what_they_gave() -> None:
    program = Program(shaped_by_data_model().model)
    (y,), seen = both(program, np.array([6], np.int32))
    assert y.tolist() == [3] * 6
    assert seen.names == ["FILL", "ADD"]
    assert seen.outputs[0][0] is not None
    assert seen.outputs[0][0].tolist() == [2] * 6


async def test_executions_of_a_device_are_observed_in_the_block_alone() -> None:
    x = np.zeros(4, np.float32)
    for below_us in (0, 1e9):  # on a lane, and on the loop
        settings = asyncnn.DeviceSettings(inline_below_us=below_us)
        async with asyncnn.open_device("reference", settings=settings) as device:
            prepared = await device.prepare(chain(5, 4))
            await prepared.run([x])
            seen = Seen()
            with observing(seen):
                assert active.recorder is not None
                for _ in range(2):
                    outputs = await prepared.run([x])
                    assert outputs["z"].tolist() == [5] * 4
                with pytest.raises(RuntimeError, match="already"), observing(seen):
                    pass
            assert current_observation() is active.recorder is None
            await prepared.run([x])
        assert seen.names == ["ADD"] * 10


async def test_what_fails_tells_nothing_and_fails_as_ever() -> None:
    async with asyncnn.open_device("reference") as device:
        prepared = await device.prepare(picking(3))
        seen = Seen()
        with observing(seen), pytest.raises(AsyncnnError, match="GATHER"):
            await prepared.run([np.ones(3, np.float32), np.full(3, 9, np.int32)])
    assert seen.steps == []


@pytest.mark.parametrize("is_recorded", [False, True])
async def test_nothing_of_it_is_called_unless_something_records(
    is_recorded: bool,
) -> None:
    called: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            called.add(Path(frame.f_code.co_filename).stem)

    settings = asyncnn.DeviceSettings(inline_below_us=1e9)
    async with asyncnn.open_device("reference", settings=settings) as device:
        prepared = await device.prepare(chain(20, 4))
        x = np.zeros(4, np.float32)
        for _ in range(3):
            await prepared.run([x])
        with recording_to(lambda spans: None) if is_recorded else nullcontext():
            sys.setprofile(note)
            try:
                await prepared.run([x])
            finally:
                sys.setprofile(None)
    recording = {"active", "observation", "traced_work"}
    assert called & recording == (recording if is_recorded else set())
