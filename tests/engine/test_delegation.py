"""What a delegate computes in a plan, and what interrupts its runs."""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
import pytest

from asyncnn.engine import PlanExecution, Program
from asyncnn.engine.delegation import DelegatedKernel, KernelRecord, Segment, Step
from asyncnn.engine.plan_execution import MOST_INTERRUPTED, run_straight
from asyncnn.hal.errors import GeneralFailureError, error_for
from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.hal.types import ErrorStatus, Operand, OperationType
from asyncnn.kernels import registry
from asyncnn.kernels.kernel import (
    HeapScratch,
    Inputs,
    InterruptibleRun,
    Outputs,
    Scratch,
)
from asyncnn.qos import Pause
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel
from tests.networks import F32

ADD, MUL, RELU = OperationType.ADD, OperationType.MUL, OperationType.RELU


class Kernels:
    """A delegate that computes with the kernels, ``work`` before each segment.

    ``work`` tells whether it came to its end; it looks at ``stop`` for interrupts.
    """

    def __init__(
        self,
        claimed: Collection[OperationType],
        *,
        cuts: Sequence[int] = (),
        refuses: bool = False,
        work: Callable[[threading.Event], bool] = lambda stop: True,
    ) -> None:
        self.segments: list[Segment] = []
        self.records: list[KernelRecord | None] = []
        self._claimed = claimed
        self._cuts = cuts
        self._refuses = refuses
        self._work = work

    def version_for(self, *, relaxed: bool) -> str:
        return "kernels 1"

    def claims(self, operation: BoundOperation) -> int | None:
        return 1 if operation.type in self._claimed else None

    def cuts(self, steps: Sequence[Step]) -> Iterable[int]:
        return [at for at in self._cuts if at < len(steps)]

    def prepare(
        self, segment: Segment, identity: bytes, record: KernelRecord | None = None
    ) -> "Computing | None":
        self.segments.append(segment)
        self.records.append(record)
        if self._refuses:
            return None
        stop = threading.Event()

        def attempt(inputs: Inputs, outputs: Outputs) -> bool:
            if not self._work(stop):
                return False
            slots = dict(zip(segment.inputs, inputs, strict=True))
            given = dict(zip(segment.outputs, outputs, strict=True))
            for step in segment.steps:
                operation = step.operation
                results = [
                    given.get(index, np.empty(each.shape or (), each.dtype))
                    for index, each in zip(step.outputs, operation.outputs, strict=True)
                ]
                arguments = [
                    slots.get(index, None if each is None else each.value)
                    for index, each in zip(step.inputs, operation.inputs, strict=True)
                ]
                registry.prepare(operation)(HeapScratch())(arguments, results)
                slots.update(zip(step.outputs, results, strict=True))
            return True

        run = InterruptibleRun(attempt, stop.set, stop.clear)
        return Computing(run, len(segment.steps))


class Computing(DelegatedKernel):
    def __init__(self, run: InterruptibleRun, steps: int = 0) -> None:
        self._run = run
        self._steps = steps

    def __call__(self, scratch: Scratch) -> InterruptibleRun:
        return self._run

    def record(self) -> KernelRecord:
        return KernelRecord(str(self._steps).encode())


def network(*types: OperationType) -> NamedModel:
    """Return a chain in which each operation adds, or multiplies by, its number."""
    builder = ModelBuilder()
    value = builder.input("x", F32, (4,))
    for number, type_ in enumerate(types, 1):
        operands = [value]
        if type_ is not RELU:
            constant = builder.constant(np.full(4, number, np.float32))
            operands += [constant, builder.scalar(0)]
        value = builder.operation(type_, operands, Operand(F32, (4,)))
    builder.output(value, "y")
    return builder.build()


def steps_of(program: Program) -> tuple[Step, ...]:
    assert program.declared_shapes is not None
    return program.plan(program.declared_shapes).steps


def execution_of(
    program: Program, x: Array, deadline_ns: int | None = None
) -> PlanExecution:
    plan = program.plan((x.shape,))
    return PlanExecution(program, plan, [x], [None], deadline_ns=deadline_ns)


X = np.array([-3, -1, 0, 2], np.float32)


def test_operations_in_a_row_become_one_step() -> None:
    model = network(ADD, MUL, ADD, RELU, MUL, ADD).model
    program = Program(model, delegate=Kernels([ADD, MUL]))
    steps = steps_of(program)
    assert [len(step.parts) for step in steps] == [3, 0, 2]
    assert [step.name for step in steps] == ["ADD to ADD (3)", "RELU", "MUL to ADD (2)"]
    expected = execution_of(Program(model), X)
    expected.advance()
    computed = execution_of(program, X)
    assert computed.advance()
    np.testing.assert_array_equal(computed.outputs[0], expected.outputs[0])
    (straight,) = run_straight(program, program.plan((X.shape,)), [X], [None])
    np.testing.assert_array_equal(straight, expected.outputs[0])


def test_branches_are_moved_together() -> None:
    # Of two branches of MUL, RELU, MUL that ADD joins, one RELU waits for the other.
    builder = ModelBuilder()
    x = builder.input("x", F32, (4,))
    none, tensor = builder.scalar(0), Operand(F32, (4,))
    ends = []
    for factor in (2, 3):
        constant = builder.constant(np.full(4, factor, np.float32))
        first = builder.operation(MUL, [x, constant, none], tensor)
        relu = builder.operation(RELU, [first], tensor)
        ends.append(builder.operation(MUL, [relu, constant, none], tensor))
    builder.output(builder.operation(ADD, [*ends, none], tensor), "y")
    delegate = Kernels([ADD, MUL])
    program = Program(builder.build().model, delegate=delegate)
    assert [len(segment.steps) for segment in delegate.segments] == [2, 3]
    assert [step.name for step in steps_of(program)][1:3] == ["RELU", "RELU"]
    run = execution_of(program, X)
    run.advance()
    np.testing.assert_array_equal(run.outputs[0], np.maximum(X, 0) * (4 + 9))


def test_a_segment_has_the_borders_that_others_need() -> None:
    delegate = Kernels([ADD, MUL], cuts=[2])
    program = Program(network(ADD, MUL, ADD, MUL).model, delegate=delegate)
    first, second = delegate.segments
    assert first.outputs == second.inputs == first.steps[-1].outputs
    assert len(first.inputs) == len(second.outputs) == 1
    # What a segment keeps to itself takes no memory of the plan.
    assert set(program.plan((X.shape,)).arena.offsets) == set(first.outputs)


def test_what_the_delegate_leaves_runs_by_the_kernels() -> None:
    model = network(ADD, RELU, MUL).model
    program = Program(model, delegate=Kernels([ADD, MUL], refuses=True))
    assert [len(step.parts) for step in steps_of(program)] == [0, 0, 0]
    assert program.is_straight
    run = execution_of(program, X)
    run.advance()
    np.testing.assert_array_equal(run.outputs[0], np.maximum(X + 1, 0) * 3)


def test_constants_are_folded_before_the_delegate_is_asked() -> None:
    builder = ModelBuilder()
    x = builder.input("x", F32, (4,))
    two = builder.constant(np.full(4, 2, np.float32))
    none, tensor = builder.scalar(0), Operand(F32, (4,))
    four = builder.operation(ADD, [two, two, none], tensor)
    builder.output(builder.operation(MUL, [x, four, none], tensor), "y")
    delegate = Kernels([ADD, MUL])
    Program(builder.build().model, delegate=delegate)
    ((step,),) = [segment.steps for segment in delegate.segments]
    np.testing.assert_array_equal(step.operation.value(1), np.full(4, 4))


def test_a_recorded_plan_is_divided_in_the_same_way() -> None:
    model = network(ADD, MUL, RELU, ADD).model
    records = Program(model, delegate=Kernels([ADD, MUL])).records()
    delegate = Kernels([])
    ways = {number: lambda r=record: r for number, record in records.items()}
    program = Program(model, ways, delegate=delegate)
    assert [step.name for step in steps_of(program)] == [
        "ADD to MUL (2)",
        "RELU",
        "ADD",
    ]
    assert [record.decided for record in delegate.records if record] == [b"2", b"1"]
    run = execution_of(program, X)
    run.advance()
    np.testing.assert_array_equal(run.outputs[0], np.maximum((X + 1) * 2, 0) + 4)


def test_a_recorded_plan_needs_its_delegate() -> None:
    model = network(ADD, MUL).model
    records = Program(model, delegate=Kernels([ADD, MUL])).records()
    ways = {number: lambda r=record: r for number, record in records.items()}
    with pytest.raises(GeneralFailureError, match="another engine"):
        steps_of(Program(model, ways))


class Running:
    """An execution on a thread, whose delegate works until it is interrupted.

    It works so ``times`` times, and comes to its end without waiting after that.
    """

    def __init__(self, times: int, deadline_ns: int | None = None) -> None:
        self.begun = threading.Semaphore(0)
        self.interrupted = 0
        self._times = times
        delegate = Kernels([ADD], work=self._work)
        program = Program(network(ADD, ADD).model, delegate=delegate)
        self.execution = execution_of(program, X, deadline_ns)

    def _work(self, stop: threading.Event) -> bool:
        if self.interrupted >= self._times:
            return True
        self.begun.release()
        assert stop.wait(20)
        self.interrupted += 1
        return False


def in_thread(function: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=function)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("within_s", "status"),
    [
        (None, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT),
        (0.1, ErrorStatus.MISSED_DEADLINE_TRANSIENT),
    ],
    ids=["by an abort", "by a deadline that passed"],
)
def test_the_delegate_is_interrupted(
    within_s: float | None, status: ErrorStatus
) -> None:
    deadlines = [time.monotonic_ns() + round(within_s * 1e9)] if within_s else []
    running = Running(1, *deadlines)

    def end() -> None:
        running.begun.acquire()
        time.sleep(within_s + 0.001 if within_s else 0)
        running.execution.abort(status)

    thread = in_thread(end)
    with pytest.raises(type(error_for(status))):
        running.execution.advance()
    thread.join()


def test_a_pause_interrupts_the_delegate_and_the_run_begins_anew_later() -> None:
    running = Running(1)
    pause = Pause()

    def request() -> None:
        running.begun.acquire()
        pause.request()

    thread = in_thread(request)
    assert not running.execution.advance(pause)
    thread.join()
    assert pause.interrupt is None
    assert running.execution.advance(Pause())
    np.testing.assert_array_equal(running.execution.outputs[0], X + 3)


def test_a_pause_that_is_requested_before_the_delegate_runs_stops_it_too() -> None:
    """The first call of `advance` makes progress: it is in vain once at most."""
    pause = Pause()
    pause.request()
    calls: list[bool] = []

    def work(stop: threading.Event) -> bool:
        calls.append(stop.is_set())
        return True

    program = Program(network(ADD).model, delegate=Kernels([ADD], work=work))
    assert execution_of(program, X).advance(pause)
    assert calls == [False]


def test_a_pause_that_is_requested_as_the_delegate_gets_ready_stops_it() -> None:
    pause = Pause()
    calls: list[bool] = []

    class Slow(Kernels):
        """Is asked to pause while it makes a run ready."""

        def prepare(
            self, segment: Segment, identity: bytes, record: KernelRecord | None = None
        ) -> "Computing | None":
            computing = super().prepare(segment, identity, record)
            assert computing is not None
            run = computing(HeapScratch())

            def clear() -> None:
                pause.request()
                run.clear()

            return Computing(InterruptibleRun(run.attempt, run.interrupt, clear))

    def work(stop: threading.Event) -> bool:
        calls.append(stop.is_set())
        return True

    program = Program(network(ADD).model, delegate=Slow([ADD], work=work))
    execution = execution_of(program, X)
    assert not execution.advance(pause)
    assert not calls
    assert execution.advance(Pause())
    assert calls == [False]


def test_a_run_is_interrupted_for_pauses_a_few_times_only() -> None:
    running = Running(MOST_INTERRUPTED)
    for _ in range(MOST_INTERRUPTED):
        pause = Pause()

        def request(pause: Pause = pause) -> None:
            running.begun.acquire()
            pause.request()

        thread = in_thread(request)
        assert not running.execution.advance(pause)
        thread.join()
    last = Pause()
    last.request()
    assert running.execution.advance(last)
    assert running.interrupted == MOST_INTERRUPTED


def test_a_delegate_that_ends_every_run_early_fails() -> None:
    delegate = Kernels([ADD], work=lambda stop: False)
    program = Program(network(ADD).model, delegate=delegate)
    with pytest.raises(GeneralFailureError, match="ADD failed"):
        execution_of(program, X).advance(Pause())
    with pytest.raises(GeneralFailureError, match="ADD failed"):
        run_straight(program, program.plan((X.shape,)), [X], [None])


def test_an_interrupt_that_nobody_asked_for_changes_nothing() -> None:
    failures = iter([False, False])
    program = Program(
        network(ADD).model,
        delegate=Kernels([ADD], work=lambda stop: next(failures, True)),
    )
    run = execution_of(program, X)
    assert run.advance(Pause())
    np.testing.assert_array_equal(run.outputs[0], X + 1)


def test_a_run_that_cannot_be_made_ready_for_threads_has_one_the_next_time() -> None:
    spread: list[int] = []
    failures = iter([OSError("no memory for a graph of two threads")])

    def clear() -> None:
        for failure in failures:
            raise failure

    run = InterruptibleRun(lambda given, made: True, clear, clear, spread.append)

    class Spread(Kernels):
        def prepare(
            self, segment: Segment, identity: bytes, record: KernelRecord | None = None
        ) -> "Computing | None":
            return Computing(run)

    program = Program(network(ADD).model, delegate=Spread([ADD]))
    pause = Pause()
    pause.threads = 2
    with pytest.raises(GeneralFailureError, match="no memory"):
        execution_of(program, X).advance(pause)
    assert execution_of(program, X).advance(Pause())
    assert spread == [2, 1]
