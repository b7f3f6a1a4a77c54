"""One observed run taken apart: every nanosecond of it belongs to a step or a stage.

A run is one execution, or one for each partition. An execution waits in a queue, binds
arrays to its workspace, runs steps, and replies; spans of a recording say when. Steps
of a subgraph are run within an IF or a WHILE: its own time is without them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import groupby
from typing import NamedTuple, Self, TypeAlias

import msgspec

from asyncnn.engine.delegation import Step
from asyncnn.engine.plan import CONTROL_FLOW, Plan
from asyncnn.runtime.framework.stepping import PARTITION_PREFIX
from asyncnn.tracing import Span


class RunStage(StrEnum):
    """What a run does besides its operations."""

    REQUEST = "to the device"
    QUEUE = "in the queue"
    BINDING = "binding arrays"
    BETWEEN = "between operations"
    MOVING = "between partitions"
    HANDING_BACK = "back to the loop"
    REPLYING = "to the caller"
    ELSEWHERE = "on the device"


MEANINGS = {
    RunStage.REQUEST: "arrays checked, the request made, and the HAL called",
    RunStage.QUEUE: "until a lane takes the execution",
    RunStage.BINDING: "a workspace taken, and arrays put in their places",
    RunStage.BETWEEN: "the engine goes from one step to the next",
    RunStage.MOVING: "one partition replies, the next is handed what it has computed",
    RunStage.HANDING_BACK: "from the lane's thread to the event loop",
    RunStage.REPLYING: "outputs stored, the callback notified, the caller woken",
    RunStage.ELSEWHERE: "all of a run, of which this process sees nothing",
}


class EndedStep(NamedTuple):
    """A step that has ended; times are of `time.perf_counter_ns`."""

    plan: Plan
    step: Step
    begun_ns: int
    ended_ns: int


class Cost(NamedTuple):
    """What observing a step takes, in nanoseconds: within its times, and around."""

    within_ns: float
    around_ns: float


class TracedExecution(msgspec.Struct):
    """One execution of a device of this process: spans, and the steps in them."""

    begun_ns: int
    computing: list[tuple[int, int]]
    replied_ns: int
    entries: list[EndedStep]

    @property
    def plan(self) -> Plan | None:
        """Its outermost plan; None if it has run no step."""
        return self.entries[-1].plan if self.entries else None


Place: TypeAlias = tuple[int, int, int]
"""Of a step: number of the execution, identity of the subgraph, and an output."""


class Timeline:
    """What one run spent on what, in nanoseconds: ``own_ns`` by step, and ``stages``.

    A step may have run several times: ``counts`` says. ``computed_ns`` are the times
    that the executions took on their lanes, and ``observing_ns`` what reporting all
    steps did. ``reported_ns`` are those that devices report of partitions, in order.
    """

    def __init__(self, begun_ns: int, ended_ns: int, cost: Cost) -> None:
        self.own_ns: defaultdict[Place, float] = defaultdict(float)
        self.counts: Counter[Place] = Counter()
        self.stages: defaultdict[RunStage, float] = defaultdict(float)
        self.computed_ns: list[int] = []
        self.reported_ns: list[int] = []
        self.total_ns = ended_ns - begun_ns
        self.observing_ns = 0.0
        self._reached_ns = begun_ns
        self._cost = cost

    @classmethod
    def of(
        cls,
        begun_ns: int,
        ended_ns: int,
        executions: Sequence[TracedExecution],
        cost: Cost,
    ) -> Self:
        """Take a run apart; ``cost`` is what observing a step takes."""
        made = cls(begun_ns, ended_ns, cost)
        for number, execution in enumerate(executions):
            made._add(number, execution)
        if executions:
            replied_ns = executions[-1].replied_ns
            made._reach(replied_ns, RunStage.HANDING_BACK)
            made._reach(ended_ns, RunStage.REPLYING)
        else:
            made._reach(ended_ns, RunStage.ELSEWHERE)
        return made

    def _reach(self, at_ns: int, stage: RunStage) -> None:
        self.stages[stage] += at_ns - self._reached_ns
        self._reached_ns = at_ns

    def _add(self, number: int, execution: TracedExecution) -> None:
        self._reach(execution.begun_ns, RunStage.MOVING if number else RunStage.REQUEST)
        for begun_ns, ended_ns in execution.computing:
            self._reach(begun_ns, RunStage.QUEUE)
            self._reach(ended_ns, RunStage.BINDING)
            within = [e for e in execution.entries if begun_ns <= e.begun_ns < ended_ns]
            self._add_entries(number, within)
        self.computed_ns.append(sum(e - s for s, e in execution.computing))

    def _add_entries(self, number: int, entries: Sequence[EndedStep]) -> None:
        """Give steps and what lies between them their part of the time for binding."""
        # Times of what has ended, and is in no control flow so far.
        outer: list[tuple[int, int]] = []
        within_ns, around_ns = self._cost
        for entry in entries:
            inner: list[tuple[int, int]] = []
            if entry.step.operation.type in CONTROL_FLOW:
                while outer and outer[-1][0] >= entry.begun_ns:
                    inner.append(outer.pop())
            place = number, id(entry.plan.subgraph), entry.step.outputs[0]
            taken_ns = entry.ended_ns - entry.begun_ns - _sum(inner)
            self.own_ns[place] += taken_ns - within_ns - len(inner) * around_ns
            self.counts[place] += 1
            outer.append((entry.begun_ns, entry.ended_ns))
        if not outer:
            return
        spanned_ns = outer[-1][1] - outer[0][0]
        between_ns = spanned_ns - _sum(outer) - len(outer) * around_ns
        self.stages[RunStage.BETWEEN] += between_ns
        self.stages[RunStage.BINDING] -= spanned_ns
        self.observing_ns += len(entries) * (within_ns + around_ns)


def _sum(times: Iterable[tuple[int, int]]) -> int:
    return sum(ended_ns - begun_ns for begun_ns, ended_ns in times)


def reported_times(spans: Iterable[Span]) -> list[int]:
    """Return the nanoseconds that devices report of the partitions of a run."""
    of_partitions = [span for span in spans if span.name.startswith(PARTITION_PREFIX)]
    of_partitions.sort(key=lambda span: span.ended_ns)
    return [span.ended_ns - span.started_ns for span in of_partitions]


def executions_of(
    spans: Iterable[Span], entries: Iterable[EndedStep]
) -> list[TracedExecution]:
    """Return the executions that spans show, in order, with their entries."""
    found: list[TracedExecution] = []
    ordered = sorted(spans, key=lambda span: span.group)
    for _, group in groupby(ordered, lambda span: span.group):
        named: dict[str, list[Span]] = defaultdict(list)
        for span in group:
            named[span.name].append(span)
        if "execution" not in named or "execute" not in named:
            continue
        computing = [(each.started_ns, each.ended_ns) for each in named["execute"]]
        reply = named["reply"][0].started_ns if named["reply"] else computing[-1][1]
        (whole,) = named["execution"]
        found.append(TracedExecution(whole.started_ns, sorted(computing), reply, []))
    found.sort(key=lambda execution: execution.begun_ns)
    for entry in entries:
        for execution in found:
            if any(s <= entry.begun_ns <= e for s, e in execution.computing):
                execution.entries.append(entry)
                break
    return found
