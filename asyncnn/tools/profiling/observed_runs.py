"""Takes a profile: runs a model, observed and not in turn, and adds up what it sees.

Nothing is prepared in another way than for any run. Devices of other processes report
nothing but how long each partition takes them; a framework reports which of its devices
have computed what.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from asyncnn.engine.delegation import Step
from asyncnn.engine.observation import Observation, Observed, observed_run, observing
from asyncnn.engine.plan import Plan
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.offload import offload
from asyncnn.runtime.device import Device
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.runtime.translation import form_for
from asyncnn.tools.bench.environment import describe_environment
from asyncnn.tools.profiling import Profile
from asyncnn.tools.profiling.facts import Facts, facts_of_run, measured_parts
from asyncnn.tools.profiling.summary import Seen, Summary
from asyncnn.tools.profiling.timeline import (
    Cost,
    EndedStep,
    Timeline,
    TracedExecution,
    executions_of,
    reported_times,
)
from asyncnn.tools.samples import Sample
from asyncnn.tracing import Recorder, Span, active, recording_to

USUAL_RUNS, LEAST_RUNS = 50, 5
LONGEST_S = 10.0
"""Seconds after which runs end that nobody has asked for a number of."""

_WARM_UPS = 3
_PART_ROUNDS = 15
_CALIBRATING = 2000

Rounds: TypeAlias = Callable[[Sequence[int]], Iterable[int]]
"""Iterates over rounds, and shows that."""


class ProfileOrder(msgspec.Struct, frozen=True):
    """What to profile: a model on ``inputs``, which ``origin`` describes.

    ``runs`` of None leaves their number to the time that they take.
    """

    name: str
    model: NamedModel
    inputs: Sample
    origin: str
    runs: int | None = None


class Observer:
    """Keeps the steps of a run."""

    def __init__(self) -> None:
        # Tuples are made in a third of the time.
        self.steps: list[tuple[Plan, Step, int, int]] = []
        self.observation = Observation(self)

    def __call__(self, observed: Observed) -> None:
        """Keep the step."""
        plan, step, _, _, begun_ns, ended_ns = observed
        self.steps.append((plan, step, begun_ns, ended_ns))

    @property
    def entries(self) -> list[EndedStep]:
        """The steps."""
        return [EndedStep(*each) for each in self.steps]


class Look(Observer):
    """Looks at the arrays of a first run, too, which takes its time.

    ``given`` is what segments of other engines are computed from, by operand.
    """

    def __init__(self) -> None:
        super().__init__()
        self.facts: dict[tuple[int, int], Facts] = {}
        self.given: dict[tuple[int, int], tuple[Step, dict[int, Array]]] = {}

    def __call__(self, observed: Observed) -> None:
        """Keep the step, and what is not known yet of it."""
        super().__call__(observed)
        plan, step, inputs, outputs, *_ = observed
        key = id(plan.subgraph), step.outputs[0]
        if key in self.facts:
            return
        self.facts[key] = facts_of_run(plan, step, inputs, outputs)
        if step.parts:
            copies = {
                index: array.copy()
                for index, array in zip(step.inputs, inputs, strict=True)
                if array is not None
            }
            self.given[key] = step, copies


async def measure(
    device: Device, order: ProfileOrder, rounds: Rounds = iter
) -> Profile:
    """Prepare a model on ``device``, run it, and return where the time has gone.

    :raises InvalidArgumentError: if this process records already.
    :raises AsyncnnError: if the device refuses the model, or a run fails.
    """
    if active.recorder is not None:
        raise InvalidArgumentError(
            "runs that are traced are not profiled, too", hint="leave out --trace"
        )
    form = await form_for(device.hal, order.model)
    prepared = await device.prepare(form)
    inputs = order.inputs
    for _ in range(_WARM_UPS):
        outputs = await prepared.run(inputs)
    look = Look()
    runs = _Runs(prepared, inputs)
    first = await runs.observed(look)
    entry = next(iter(look.entries), None)
    cost = Cost(0, 0) if entry is None else observing_cost(entry.plan, entry.step)
    lines: list[Timeline] = []
    plain_ns: list[int] = []
    due_s = time.monotonic() + LONGEST_S
    observer = Observer()
    for number in rounds(range(order.runs or USUAL_RUNS)):
        plain_ns.append(await runs.plain())
        executions = await runs.observed(observer)
        line = Timeline.of(*runs.last, executions, cost)
        line.reported_ns = runs.reported_ns
        lines.append(line)
        if order.runs is None and number >= LEAST_RUNS - 1 and time.monotonic() > due_s:
            break
    parts = {
        key: await offload(measured_parts, step, given, _PART_ROUNDS)
        for key, (step, given) in look.given.items()
    }
    steps = () if outputs.route is None else outputs.route.steps
    seen = Seen(first, steps, look.facts, parts, lines)
    return Summary(form.model, device.name, seen).profile(
        model=order.name,
        version=device.version,
        inputs=order.origin,
        run_us=statistics.median(plain_ns) / 1000,
        environment=str(describe_environment()),
    )


class _Runs:
    """Runs of a prepared model; ``last`` is when the last one began and ended.

    ``reported_ns`` are the times that devices report of its partitions, in their order.
    """

    def __init__(self, prepared: PreparedModel, inputs: Sample) -> None:
        self._run = prepared.run
        self._inputs = inputs
        self.last = (0, 0)
        self.reported_ns: list[int] = []

    async def plain(self) -> int:
        """Run once; return the nanoseconds that it took."""
        begun_ns = time.perf_counter_ns()
        await self._run(self._inputs)
        return time.perf_counter_ns() - begun_ns

    async def observed(self, observer: Observer) -> list[TracedExecution]:
        """Run once, observed; return its executions."""
        spans: list[Span] = []
        observer.steps = []
        recorder: Recorder
        with recording_to(spans.extend) as recorder, observing(observer.observation):
            begun_ns = time.perf_counter_ns()
            outputs = await self._run(self._inputs, measure=True)
            self.last = begun_ns, time.perf_counter_ns()
            recorder.flush()
        self.reported_ns = reported_times(spans)
        if outputs.route is None and outputs.timing is not None:
            self.reported_ns = [outputs.timing.on_device_ns or 0]
        return executions_of(spans, observer.entries)


def observing_cost(plan: Plan, step: Step) -> Cost:
    """Return what it takes to observe a step that does nothing."""

    def nothing(inputs: object, outputs: object) -> None:
        pass

    observer = Observer()
    observed = observed_run(nothing, plan, step, observer)
    plain_ns = _looped_ns(nothing)
    total_ns = _looped_ns(observed) - plain_ns
    within = [entry.ended_ns - entry.begun_ns for entry in observer.entries]
    within_ns = max(float(np.median(within)) - plain_ns, 0.0)
    return Cost(within_ns, max(total_ns - within_ns, 0.0))


def _looped_ns(call: Callable[[Sequence[object], Sequence[Array]], object]) -> float:
    """Return what a call takes in a loop: the least of several, in nanoseconds."""
    least_ns = float("inf")
    for _ in range(5):
        begun_ns = time.perf_counter_ns()
        for _ in range(_CALIBRATING // 5):
            call((), ())
        least_ns = min(least_ns, time.perf_counter_ns() - begun_ns)
    return least_ns / (_CALIBRATING // 5)
