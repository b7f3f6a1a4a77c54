"""Executions while a recording is on: when they waited, computed and replied.

Their steps are spans, too, so they are run by an `ObservedExecution`. What is launched
while nothing records is a `Run`, which has no part of this.
"""

import time
from time import perf_counter_ns
from typing import Any, ClassVar

from asyncnn.devices.preparations import trace_end, trace_queue
from asyncnn.devices.run import Run
from asyncnn.engine import PlanExecution
from asyncnn.engine.delegation import Step
from asyncnn.engine.observation import (
    Observation,
    Observed,
    ObservedExecution,
    current_observation,
)
from asyncnn.hal.types import ErrorStatus
from asyncnn.qos import Pause
from asyncnn.tracing import Layer, Phase, Trace, active


class Traced(Run):
    """The part of an execution whose stages and steps a recorder gets."""

    execution_kind: ClassVar[type[PlanExecution]] = ObservedExecution
    is_like_others = False
    _trace: Trace
    _steps: list[tuple[Step, int, int]]

    def __init__(self, *arguments: Any) -> None:
        assert active.recorder is not None
        self._trace = Trace(active.recorder)
        self._steps = []
        super().__init__(*arguments)

    def run(self) -> int:
        """Execute in one go; return the nanoseconds it took."""
        self._started_ns = perf_counter_ns()  # it has not been queued
        self.advance(Pause())
        return self.computed_ns

    def advance(self, pause: Pause) -> bool:
        """Execute until the end, until `abort`, or until it is to pause."""
        was_queued = not self._started_ns
        resumed_ns = time.monotonic_ns()
        if was_queued:
            trace_queue(self._trace, Phase.EXECUTION, resumed_ns)
        try:
            return super().advance(pause)
        finally:
            add, layer, phase = self._trace.add, Layer.CPU, Phase.COMPUTATION
            add("execute", layer, phase, resumed_ns, time.monotonic_ns())
            for step, begun_ns, ended_ns in self._steps:
                add(f"{step.position}: {step.name}", layer, phase, begun_ns, ended_ns)
            self._steps.clear()

    def offer(self, idle: object) -> bool:
        """Refuse: each step is looked at in Python."""
        return False

    def _begin(self, pause: Pause) -> PlanExecution | None:
        execution = super()._begin(pause)
        if isinstance(execution, ObservedExecution):
            execution.observation = current_observation() or Observation(self._observe)
        return execution

    def _observe(self, observed: Observed) -> None:
        _, step, _, _, begun_ns, ended_ns = observed
        self._steps.append((step, begun_ns, ended_ns))

    def finish(self) -> ErrorStatus:
        """Report the outcome; see `Run`."""
        replied_ns = time.monotonic_ns()
        status = super().finish()
        ended_ns = time.monotonic_ns()
        self._trace.add("reply", Layer.DRIVER, Phase.RESULTS, replied_ns, ended_ns)
        trace_end(self._trace, "execution", Phase.EXECUTION, status)
        return status
