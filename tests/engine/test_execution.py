import threading
import time

import numpy as np
import pytest

from asyncnn.engine import PlanExecution, Program
from asyncnn.engine.plan_execution import run_straight
from asyncnn.hal.errors import (
    GeneralFailureError,
    MissedDeadlineTransientError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import ErrorStatus
from asyncnn.offload import switching_at_least_every
from tests.engine.scripted import PauseAfter
from tests.networks import addition, chain

X = np.arange(16, dtype=np.float32)


def launch(program: Program, *, deadline_ns: int | None = None) -> PlanExecution:
    assert program.declared_shapes is not None
    plan = program.plan(program.declared_shapes)
    return PlanExecution(program, plan, [X], [None], deadline_ns=deadline_ns)


@pytest.mark.parametrize("boundaries", [1, 2, 7])
def test_a_paused_execution_resumes_where_it_stopped(boundaries: int) -> None:
    execution = launch(Program(chain(20, 16).model))
    pauses = 0
    while not execution.advance(PauseAfter(boundaries)):
        pauses += 1
        assert pauses <= 20
    assert pauses == -(-20 // boundaries) - 1
    np.testing.assert_array_equal(execution.outputs[0], X + 20)


def test_executions_that_alternate_do_not_disturb_each_other() -> None:
    program = Program(chain(20, 16).model)
    executions = [launch(program) for _ in range(3)]
    running = list(executions)
    while running:
        running = [e for e in running if not e.advance(PauseAfter(3))]
    for execution in executions:
        np.testing.assert_array_equal(execution.outputs[0], X + 20)


def test_an_aborted_execution_ends_with_the_status_it_was_given() -> None:
    program = Program(chain(20, 16).model)
    execution = launch(program)
    assert not execution.advance(PauseAfter(3))
    execution.abort(ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)
    with pytest.raises(ResourceExhaustedTransientError):
        execution.advance()
    assert program.trim() > 0  # the workspace was given back


def test_a_deadline_that_passes_meanwhile_is_missed() -> None:
    execution = launch(
        Program(chain(20, 16).model), deadline_ns=time.monotonic_ns() + 100_000_000
    )
    assert not execution.advance(PauseAfter(3))
    time.sleep(0.101)
    with pytest.raises(MissedDeadlineTransientError):
        execution.advance()


def test_a_kernel_that_breaks_is_a_failure_that_names_the_operation() -> None:
    program = Program(chain(2, 16).model)
    assert program.declared_shapes is not None
    plan = program.plan(program.declared_shapes)
    wrong = np.zeros(3, np.float32)
    execution = PlanExecution(program, plan, [wrong], [None])
    with pytest.raises(GeneralFailureError, match="ADD failed: ValueError"):
        execution.advance()


@pytest.mark.parametrize("is_straight", [False, True])
def test_overflow_is_a_result_whatever_the_caller_wants_numpy_to_do_about_it(
    is_straight: bool,
) -> None:
    program = Program(addition(2).model)
    plan = program.plan(((2,), (2,)))
    x = np.array([3e38, np.inf], np.float32)
    inputs: list[Array | None] = [x, np.array([3e38, -np.inf], np.float32)]
    with np.errstate(all="raise"):
        if is_straight:
            outputs = run_straight(program, plan, inputs, [None])
        else:
            execution = PlanExecution(program, plan, inputs, [None])
            assert execution.advance()
            outputs = execution.outputs
        assert set(np.geterr().values()) == {"raise"}
    np.testing.assert_array_equal(outputs[0], [np.inf, np.nan])


@pytest.mark.parametrize("free", ["trim", "pieces"])
def test_a_program_is_freed_while_executions_take_and_give_back(free: str) -> None:
    program = Program(addition(4).model)
    assert program.declared_shapes is not None
    plan = program.plan(program.declared_shapes)
    is_over = threading.Event()

    taken = [program.acquire(plan)] * 5000  # so many that it takes a while

    def execute() -> None:
        while not is_over.is_set():
            for workspace in taken:
                program.release(workspace)
            while program.idle_workspace(plan) is not None:
                pass

    executing = threading.Thread(target=execute)
    with switching_at_least_every(1e-6):
        executing.start()
        try:
            for _ in range(50):
                getattr(program, free)()
        finally:
            is_over.set()
            executing.join()
