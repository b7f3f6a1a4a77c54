"""Long operations stop on the way, and go on where they stopped."""

import time
from functools import partial

import numpy as np
import pytest

from asyncnn.engine import PlanExecution, Program
from asyncnn.hal.errors import (
    MissedDeadlineTransientError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.types import (
    ErrorStatus,
    FusedActivationFunc,
    Operand,
    OperandType,
    OperationType,
)
from asyncnn.qos import Pause
from asyncnn.runtime.builder import ModelBuilder
from tests.engine.scripted import PauseAfter

ROWS, WIDTH = 4096, 64


def dense(type_: OperandType) -> Program:
    """One fully connected operation, of several tiles."""
    dtype = np.float16 if type_ is OperandType.TENSOR_FLOAT16 else np.float32
    builder = ModelBuilder()
    rng = np.random.default_rng(3)
    x = builder.input("x", type_, (ROWS, WIDTH))
    weights = builder.constant(rng.normal(size=(WIDTH, WIDTH)).astype(dtype))
    bias = builder.constant(np.zeros(WIDTH, dtype))
    none = builder.scalar(FusedActivationFunc.NONE)
    y = builder.operation(
        OperationType.FULLY_CONNECTED,
        [x, weights, bias, none],
        Operand(type_, (ROWS, WIDTH)),
    )
    builder.output(y, "y")
    return Program(builder.build().model)


def convolution() -> Program:
    """One convolution in the order of axes [N, C, H, W], of several tiles."""
    builder = ModelBuilder()
    rng = np.random.default_rng(3)
    type_ = OperandType.TENSOR_FLOAT32
    x = builder.input("x", type_, (1, 16, 64, 64))
    weights = rng.normal(size=(32, 3, 3, 16)).astype(np.float32)
    same, one, none, nchw = (builder.scalar(value) for value in (1, 1, 0, True))
    arguments = [x, builder.constant(weights)]
    arguments += [builder.constant(np.zeros(32, np.float32)), same, one, one, none]
    y = builder.operation(
        OperationType.CONV_2D, [*arguments, nchw], Operand(type_, (1, 32, 64, 64))
    )
    builder.output(y, "y")
    return Program(builder.build().model)


PROGRAMS = {
    "float32": partial(dense, OperandType.TENSOR_FLOAT32),
    "float16": partial(dense, OperandType.TENSOR_FLOAT16),
    "nchw": convolution,
}


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> Program:
    return PROGRAMS[request.param]()


def launch(program: Program, deadline_ns: int | None = None) -> PlanExecution:
    assert program.declared_shapes is not None
    plan = program.plan(program.declared_shapes)
    (port,) = plan.inputs
    x = np.random.default_rng(4).normal(size=port.shape).astype(port.dtype)
    return PlanExecution(program, plan, [x], [None], deadline_ns=deadline_ns)


def test_one_operation_stops_between_its_tiles(program: Program) -> None:
    whole = launch(program)
    assert whole.advance()
    stopping, other = launch(program), launch(program)
    stops = 0
    while not stopping.advance(PauseAfter(2)):
        stops += 1
        if stops == 1:
            assert other.advance()
    assert stops >= 1
    for execution in (stopping, other):
        np.testing.assert_array_equal(execution.outputs[0], whole.outputs[0])


def test_asking_at_every_boundary_comes_to_the_end(program: Program) -> None:
    execution = launch(program)
    for _ in range(1000):
        if execution.advance(PauseAfter(0)):
            return
    pytest.fail("no end after 1000 tiles")


def test_a_deadline_is_seen_between_tiles(program: Program) -> None:
    class Passing(Pause):
        looks = 0

        @property
        def requested(self) -> bool:  # type: ignore[override]
            self.looks += 1
            while self.looks == 3 and time.monotonic_ns() <= deadline_ns:
                time.sleep(0.001)
            return False

    deadline_ns = time.monotonic_ns() + 50_000_000
    execution, pause = launch(program, deadline_ns), Passing()
    with pytest.raises(MissedDeadlineTransientError):
        execution.advance(pause)
    assert pause.looks <= 3


def test_an_abort_is_seen_between_tiles(program: Program) -> None:
    class Aborting(Pause):
        looks = 0

        @property
        def requested(self) -> bool:  # type: ignore[override]
            self.looks += 1
            if self.looks == 3:
                execution.abort(ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)
            return False

    execution, pause = launch(program), Aborting()
    with pytest.raises(ResourceExhaustedTransientError):
        execution.advance(pause)
    assert pause.looks == 3


def test_an_operation_is_aborted_between_its_tiles(program: Program) -> None:
    execution = launch(program)
    assert not execution.advance(PauseAfter(1))
    execution.abort(ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)
    with pytest.raises(ResourceExhaustedTransientError):
        execution.advance()
    assert program.trim() > 0
