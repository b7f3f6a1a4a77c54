"""Plans of kernels in C are jobs, with boundaries between their steps."""

import time
from typing import Any

import numpy as np
import pytest

from asyncnn.devices.litert.delegate import LiteRtDelegate
from asyncnn.devices.litert.engine import load_engine
from asyncnn.engine import Program
from asyncnn.engine.job import Job
from asyncnn.engine.plan_execution import PlanExecution, run_bound
from asyncnn.engine.workspace import Workspace
from asyncnn.hal.errors import (
    AsyncnnError,
    MissedDeadlineTransientError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.types import ErrorStatus, Operand, OperandType, OperationType
from asyncnn.kernels.compiled import built
from asyncnn.qos import Pause
from asyncnn.runtime.builder import ModelBuilder
from tests.kernels.operations import I32, Q8S, Argument
from tests.kernels.recurrent.float_cells import Parts, Sizes
from tests.kernels.recurrent.integer.quantized_cells import (
    DATA,
    Q16S,
    STATE_SCALE,
    QuantizedCell,
    random_cell,
    random_codes,
)

pytestmark = pytest.mark.skipif(
    Job is None or built is None, reason="no jobs or kernels were compiled"
)

STEPS = 5
CALLS = STEPS + 2  # a SPLIT before them, a CONCATENATION behind
CELL = random_cell(Parts(projection=True), Sizes(6, 9, 4))


def described(type_: OperandType, shape: tuple[int, ...], scale: float, zero: int = 0):
    return Operand(type_, shape, scale=scale, zero_point=zero)


def recurrence(cell: QuantizedCell, *, transposed: bool = False) -> Any:
    """Return the model of ``x: [1, steps * inputs]`` and the two states."""
    builder = ModelBuilder()
    inputs, units, outputs = cell.sizes
    scale, zero_point = cell.output
    shapes = (1, STEPS * inputs), (1, outputs), (1, units)
    x = builder.input("x", Q8S, shapes[0], scale=DATA[0], zero_point=DATA[1])
    state = builder.input("h", Q8S, shapes[1], scale=scale, zero_point=zero_point)
    memory = builder.input("c", Q16S, shapes[2], scale=STATE_SCALE)
    fixed: dict[int, int] = {}
    for index in range(32):
        given = cell.constants.get(index)
        if isinstance(given, Argument):
            operand = given.operand
            fixed[index] = builder.constant(
                given.array, OperandType(operand.type), scale=float(operand.scale)
            )
        elif given is not None:
            fixed[index] = builder.scalar(given)
        else:
            type_ = I32 if 12 <= index < 16 or index == 17 else Q16S
            type_ = OperandType.TENSOR_QUANT8_SYMM if index in (1, 5, 16) else type_
            fixed[index] = builder.omitted(type_, scale=0.0 if type_ == I32 else 1.0)
    part = described(Q8S, (1, inputs), *DATA)
    parts = builder.operation(
        OperationType.SPLIT,
        [x, builder.scalar(1), builder.scalar(STEPS)],
        [part] * STEPS,
    )
    results = []
    like = (
        described(Q8S, shapes[1], scale, zero_point),
        described(Q16S, shapes[2], STATE_SCALE),
    )
    for each in parts:
        given_all = [*fixed.values()]
        given_all[0], given_all[18], given_all[19] = each, state, memory
        state, memory, result = builder.operation(
            OperationType.QUANTIZED_LSTM, given_all, [like[0], like[1], like[0]]
        )
        results.append(result)
    joined = builder.operation(
        OperationType.CONCATENATION,
        [*results, builder.scalar(0)],
        described(Q8S, (STEPS, outputs), scale, zero_point),
    )
    if transposed:
        joined = builder.operation(
            OperationType.TRANSPOSE,
            [joined, builder.constant(np.array([1, 0], np.int32))],
            described(Q8S, (outputs, STEPS), scale, zero_point),
        )
    builder.output(joined, "y")
    return builder.build().model


class Run:
    """A program of the recurrence, and arrays for a run of it."""

    def __init__(self, cell: QuantizedCell = CELL, delegate: Any = None) -> None:
        transposed = delegate is not None
        model = recurrence(cell, transposed=transposed)
        self.program = Program(model, delegate=delegate)
        inputs = model.main.input_indexes
        shapes = [model.main.operands[index].dimensions for index in inputs]
        self.plan = self.program.plan(tuple(shapes))
        x = random_codes(1, STEPS * cell.sizes.inputs)
        output, memory = random_codes(1, cell.sizes.outputs, seed=1), np.zeros_like
        states = output, memory(np.empty((1, cell.sizes.units), np.int16))
        shape = self.plan.outputs[0].shape
        assert shape is not None
        self.y = np.full(shape, 77, np.int8)
        self.arrays = [x, *states, self.y]
        self.expected = np.concatenate(
            [
                (states := cell.step(part, *states[:2]))[2]
                for part in np.split(x, STEPS, axis=1)
            ]
        )
        if transposed:
            self.expected = self.expected.T

    @property
    def is_job(self) -> bool:
        workspace = self.program.acquire(self.plan)
        self.program.release(workspace)
        return workspace.job is not None

    def execution(self, deadline_ns: int | None = None) -> PlanExecution:
        return PlanExecution(
            self.program,
            self.plan,
            self.arrays[:-1],
            self.arrays[-1:],
            deadline_ns=deadline_ns,
        )

    def check(self) -> None:
        np.testing.assert_array_equal(self.y, self.expected)
        self.y.fill(77)


def test_a_plan_of_kernels_alone_is_a_job() -> None:
    run = Run()
    assert run.is_job
    assert not run.plan.uses_blas
    for _ in range(2):
        run_bound(run.program, run.plan, run.arrays)
        run.check()
        assert run.execution().advance(Pause())
        run.check()


def test_a_plan_of_kernels_and_short_segments_is_a_job() -> None:
    run = Run(delegate=LiteRtDelegate(load_engine()))
    (segment,) = [step for step in run.plan.steps if step.parts]
    assert segment.parts[-1].operation.type == OperationType.TRANSPOSE
    assert run.is_job
    run_bound(run.program, run.plan, run.arrays)
    run.check()


def test_a_workspace_of_few_kernels_is_made_at_once() -> None:
    run = Run()
    assert list(Workspace.making(run.plan)) == []


def test_on_several_threads_it_computes_the_same() -> None:
    run = Run()
    pause = Pause()
    pause.threads = 2
    assert run.execution().advance(pause)
    run.check()


def test_it_pauses_between_all_steps() -> None:
    run = Run()
    assert run.is_job
    execution, pause = run.execution(), Pause()
    pause.request()
    for _ in range(CALLS - 1):
        assert not execution.advance(pause)
        assert (run.y == 77).all()
    assert execution.advance(pause)
    run.check()


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("end", ["abort", "deadline"])
def test_an_end_is_seen_between_steps(end: str, after: int) -> None:
    run = Run()
    assert run.is_job
    deadline_ns = 1 if not after else time.monotonic_ns() + 10**8
    execution = run.execution(*[deadline_ns] * (end == "deadline"))
    pause = Pause()
    pause.request()
    for _ in range(after):
        assert not execution.advance(pause)
    error: type[AsyncnnError] = MissedDeadlineTransientError
    if end == "abort":
        error = ResourceExhaustedTransientError
        execution.abort(ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)
    while end == "deadline" and time.monotonic_ns() < deadline_ns:
        time.sleep(0.001)
    with pytest.raises(error):
        execution.advance(Pause())
    assert (run.y == 77).all()


def test_arrays_that_do_not_fit_are_refused() -> None:
    run = Run()
    assert run.is_job
    run.arrays[1] = run.arrays[1][:, :3].copy()
    with pytest.raises(Exception, match="the kernel has 4 of int8"):
        run_bound(run.program, run.plan, run.arrays)
    assert (run.y == 77).all()
