"""Executions that are shorter than handing them to a lane would be."""

import time
from collections.abc import Callable

from asyncnn.engine import Program
from asyncnn.engine.arguments import execute_request
from asyncnn.engine.execution import Execution, run_straight
from asyncnn.engine.plan import Plan
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import OutputShape, Request
from asyncnn.tracing import Layer, Phase, active

_FORGETTING = 1.02
"""Growth per execution of the least duration seen, which decides on inlining. One run
that was disturbed does not count; a model that became slow is noticed within some tens.
"""

_CERTAIN = 0.75
"""Share of the least duration seen that any execution takes, as far as one can tell."""


class Inliner:
    """Learns how long executions of a program take, and runs short ones at once.

    ``is_due`` tells whether they have lately taken less than ``below_ns`` nanoseconds.
    ``count`` is told the nanoseconds of each success.
    """

    def __init__(
        self, program: Program, below_ns: float, count: Callable[[int], None]
    ) -> None:
        self._program = program
        self._count = count
        self._below_ns = below_ns
        # Known once there was an execution: a plan may be restored for the first.
        self._is_foreseeable: bool | None = None
        self._least_ns = float("inf")
        self.is_due = False

    @property
    def certain_ns(self) -> int:
        """Nanoseconds that the next execution takes at least; 0 if that is open."""
        if not self._is_foreseeable:
            return 0
        return int(self._least_ns * _CERTAIN)

    def observe(self, run_ns: int) -> None:
        """Learn from an execution that took ``run_ns`` nanoseconds."""
        if self._is_foreseeable is None:
            self._is_foreseeable = self._program.is_straight
            # Without fixed shapes, or with loops, one tells little of the next.
            self._below_ns *= self._is_foreseeable
        least_ns = self._least_ns * _FORGETTING
        if run_ns < least_ns:
            least_ns = run_ns
        self._least_ns = least_ns
        self.is_due = least_ns < self._below_ns

    def run(self, request: Request) -> tuple[tuple[OutputShape, ...], int]:
        """Execute a validated request; return output shapes and nanoseconds taken.

        :raises AsyncnnError: if the execution fails.
        """
        started = time.perf_counter_ns()
        shapes = execute_request(self._program, request, self._compute)
        run_ns = time.perf_counter_ns() - started
        self.observe(run_ns)
        self._count(run_ns)
        if active.recorder is not None:
            ended = started + run_ns
            active.recorder.add("execute", Layer.CPU, Phase.COMPUTATION, started, ended)
        return shapes, run_ns

    def _compute(
        self, plan: Plan, inputs: list[Array | None], outputs: list[Array | None]
    ) -> list[Array]:
        if plan.is_straight:
            return run_straight(self._program, plan, inputs, outputs)
        # An omitted input may have led to a plan that is not.
        execution = Execution(self._program, plan, inputs, outputs)
        execution.advance()
        return execution.outputs
