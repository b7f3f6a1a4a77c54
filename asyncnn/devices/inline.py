"""Whether executions are shorter than handing them to a lane would be."""

from asyncnn.engine import Program

_FORGETTING = 1.02
"""Growth per execution of the least duration seen, which decides on inlining. One run
that was disturbed does not count; a model that became slow is noticed within some tens.
"""

_CERTAIN = 0.75
"""Share of the least duration seen that any execution takes, as far as one can tell."""


class Inliner:
    """Learns how long executions of a program take.

    ``is_due`` tells whether they have lately taken less than ``below_ns`` nanoseconds.
    """

    def __init__(self, program: Program, below_ns: float) -> None:
        self._program = program
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
