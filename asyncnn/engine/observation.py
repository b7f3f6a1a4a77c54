"""Executions whose every step is observed: what it computes, and how long it takes.

A `Workspace` binds the steps of a plan to calls. An `ObservedExecution` runs other
calls in their place, each of which reports itself behind the one it stands for. So
executions that nobody observes have no part of this, not even a question.

`observing` has executions of this process observed, as `asyncnn.devices` does while a
recording is on.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from time import perf_counter_ns
from typing import Any, ClassVar, TypeAlias

from asyncnn.engine.control_flow import ControlFlow, run_dynamic_step
from asyncnn.engine.delegation import Step
from asyncnn.engine.plan import CONTROL_FLOW, Plan
from asyncnn.engine.plan_execution import PlanExecution
from asyncnn.engine.program import Program
from asyncnn.engine.workspace import BoundPlan, Call, Workspace
from asyncnn.hal.operations.bound import Array
from asyncnn.kernels.kernel import Inputs, InterruptibleRun, Outputs, Run, TiledRun
from asyncnn.pacing import Pause
from asyncnn.tracing import active, recording_to

Observed: TypeAlias = tuple[
    Plan, Step, Sequence[Array | None], Sequence[Array | None], int, int
]
"""A step that has ended, its inputs and outputs, and when it began and ended.

An array is None where an operand is omitted. Times are by `time.perf_counter_ns`;
from the first to the last tile of an operation in tiles, pauses between them included.
"""

Observe: TypeAlias = Callable[[Observed], None]
"""Looks at what has ended, on the thread that ran it.

Arrays hold what they do until it returns; others may take their memory then. Steps of a
subgraph come before the IF or WHILE that runs it.
"""


class Observation:
    """Who observes steps, and the calls that report them by workspace."""

    def __init__(self, observe: Observe) -> None:
        self.observe = observe
        self._runs: dict[int, tuple[Workspace, list[Run | None]]] = {}

    def runs(self, bound: BoundPlan) -> list[Run | None]:
        """Return runs in the place of a bound plan's own calls; they last.

        A workspace serves many bound plans: each round of a loop, each execution.
        """
        workspace, plan = bound.workspace, bound.plan
        known = self._runs.get(id(workspace))
        if known is None:
            observe = self.observe
            runs = [
                None if call is None else observed_run(call[0], plan, step, observe)
                for step, call in zip(plan.steps, bound.calls, strict=True)
            ]
            known = self._runs[id(workspace)] = workspace, runs
        return known[1]


_observation: Observation | None = None


def current_observation() -> Observation | None:
    """Return the observation of the `observing` block we are in, if any."""
    return _observation


@contextmanager
def observing(observe: Observe | Observation) -> Iterator[None]:
    """Have executions that begin in this block, in this process, observed.

    Several blocks may share an `Observation`. Executions are recorded, too, as a
    recording is what makes them look for observers.

    :raises RuntimeError: if there is an observer already.
    """
    global _observation
    if _observation is not None:
        raise RuntimeError("executions of this process are observed already")
    is_recorded = active.recorder is not None
    with nullcontext() if is_recorded else recording_to(lambda spans: None):
        _observation = (
            observe if isinstance(observe, Observation) else Observation(observe)
        )
        try:
            yield
        finally:
            _observation = None


class ObservedExecution(PlanExecution):
    """A `PlanExecution` that reports each of its steps to ``observation``."""

    runs_jobs: ClassVar[bool] = False

    def __init__(
        self,
        program: Program,
        plan: Plan,
        inputs: Sequence[Array | None],
        outputs: Sequence[Array | None],
        observation: Observation | None = None,
        **limits: Any,
    ) -> None:
        super().__init__(program, plan, inputs, outputs, **limits)
        self.observation = observation or Observation(lambda step: None)
        self._entered_ns: list[int] = []

    def _begin(self, pause: Pause) -> bool:
        has_begun = super()._begin(pause)
        if has_begun:
            self._watch(self._bound_plans[-1])
        return has_begun

    def _enter(self, bound: BoundPlan) -> None:
        self._entered_ns.append(perf_counter_ns())
        super()._enter(bound)

    def _continue(
        self, bound: BoundPlan, control: ControlFlow, following: BoundPlan | None
    ) -> None:
        if following is not None:
            self._watch(following)
        else:
            step, slots = bound.plan.steps[bound.position], bound.slots
            inputs = [slots[index] for index in step.inputs]
            outputs = [slots[index] for index in step.outputs]
            times_ns = self._entered_ns.pop(), perf_counter_ns()
            self.observation.observe((bound.plan, step, inputs, outputs, *times_ns))
        super()._continue(bound, control, following)

    def _watch(self, bound: BoundPlan) -> None:
        """Replace the calls of ``bound`` by ones that report themselves."""
        steps = bound.plan.steps
        bound.calls = bound.calls.copy()  # a straight plan's are its workspace's
        for position, run in enumerate(self.observation.runs(bound)):
            call = bound.calls[position]
            if run is not None and call is not None:
                bound.calls[position] = run, call[1], call[2]
            elif steps[position].operation.type not in CONTROL_FLOW:
                bound.calls[position] = self._dynamic(bound, steps[position])

    def _dynamic(self, bound: BoundPlan, step: Step) -> Call:
        """Return a call of a step that is prepared when its turn comes."""
        plan, slots = bound.plan, bound.slots
        observe = self.observation.observe

        def run(_: Inputs, __: Outputs) -> None:
            begun_ns = perf_counter_ns()
            run_dynamic_step(step, slots, plan.subgraph.operands)
            ended_ns = perf_counter_ns()
            inputs = [slots[index] for index in step.inputs]
            outputs = [slots[index] for index in step.outputs]
            observe((plan, step, inputs, outputs, begun_ns, ended_ns))

        return run, [], []


def observed_run(
    run: Callable[[Inputs, Outputs], object], plan: Plan, step: Step, observe: Observe
) -> Run:
    """Return a run of the same kind that reports itself when it has ended."""
    if isinstance(run, InterruptibleRun):
        inner = run.attempt

        def attempt(inputs: Inputs, outputs: Outputs) -> bool:
            begun_ns = perf_counter_ns()
            if not inner(inputs, outputs):
                return False
            observe((plan, step, inputs, outputs, begun_ns, perf_counter_ns()))
            return True

        return InterruptibleRun(attempt, run.interrupt, run.clear, run.spread)
    if isinstance(run, TiledRun):
        parts = run.tiles

        def tiles(inputs: Inputs, outputs: Outputs) -> Iterator[None]:
            begun_ns = perf_counter_ns()
            yield from parts(inputs, outputs)
            observe((plan, step, inputs, outputs, begun_ns, perf_counter_ns()))

        return TiledRun(tiles)

    def whole(inputs: Inputs, outputs: Outputs) -> None:
        begun_ns = perf_counter_ns()
        run(inputs, outputs)
        observe((plan, step, inputs, outputs, begun_ns, perf_counter_ns()))

    return whole
