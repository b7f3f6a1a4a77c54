"""Where a run can stop: between two operations, and inside those that allow it.

`Stoppable` is what all runs of plans have in common: they pause, are aborted or miss
their deadline at boundaries. `ThreadYielder` gives other threads the interpreter
between short operations.
"""

import time
from collections.abc import Callable, Iterator
from contextvars import Context
from typing import Protocol

import numpy as np

from asyncnn.engine.delegation import Step
from asyncnn.engine.plan import Plan
from asyncnn.engine.program import Program
from asyncnn.engine.workspace import Workspace
from asyncnn.hal.errors import (
    MissedDeadlineTransientError,
    error_for,
)
from asyncnn.hal.types import ErrorStatus
from asyncnn.kernels.kernel import (
    MOST_ATTEMPTS,
    Inputs,
    InterruptibleRun,
    Outputs,
    TiledRun,
)
from asyncnn.pacing import Stepwise

CALLS_PER_CHECK = 64
"""Calls between two readings of the clock."""

MOST_INTERRUPTED = 4
"""Times that one call of another engine is interrupted, and begun anew, for a pause."""

YIELD_AFTER_NS = 3_000_000
"""Nanoseconds of short calls after which others get a turn."""

_YIELD_S = 1e-6
"""The system makes some 50 us of it: about what it takes to wake a thread."""


class ThreadYielder:
    """Pauses a thread every few milliseconds that it spends on many short calls.

    A thread that computes gives up the interpreter when another has waited for a switch
    interval in vain. But short operations of NumPy release it for a microsecond or two
    of their own accord, BLAS on small matrices above all. Each time the thread that
    waits is woken, finds it taken again, and waits anew, so that the interval never
    ends: event loops were seen to stand still for 100 ms. So a series of short
    operations pauses now and then for long enough to be relieved. Longer calls need no
    pause.
    """

    __slots__ = ("_calls", "_since_ns")

    def __init__(self) -> None:
        self._calls = 0
        self._since_ns = time.monotonic_ns()

    def count(self, calls: int) -> None:
        """Note that so many calls were made; pause if others are due."""
        self._calls += calls
        if self._calls < CALLS_PER_CHECK:
            return
        self._calls = 0
        if time.monotonic_ns() - self._since_ns >= YIELD_AFTER_NS:
            time.sleep(_YIELD_S)
            self._since_ns = time.monotonic_ns()


QUIET = Context()
"""Here NumPy does not complain of overflow and the like. Running something in a copy
takes a tenth of what `numpy.errstate` does around it.
"""
QUIET.run(np.seterr, all="ignore")


class Pause(Protocol):
    """Asks an execution to stop at its next boundary.

    That is between two operations, or between two parts of one that takes long.
    ``interrupt`` is called, on any thread, when that is asked while another engine
    computes, which may use ``threads``. From ``from_ns`` on it is asked by itself.
    """

    interrupt: Callable[[], None] | None
    threads: int
    from_ns: int | None

    @property
    def requested(self) -> bool:
        """Whether it is to stop."""


class Unpaused:
    """A pause that nobody requests."""

    interrupt: Callable[[], None] | None = None
    requested = False
    threads = 1
    from_ns: int | None = None


class Stoppable:
    """A run that comes to boundaries; `abort` from any thread at any time.

    One that has a deadline measures its parts from boundary to boundary.
    """

    __slots__ = (
        "_abort_status",
        "_at_step",
        "_deadline_ns",
        "_interrupt",
        "_interrupted",
        "_longest",
        "_making",
        "_since_ns",
        "_tiles",
    )

    def __init__(self, deadline_ns: int | None) -> None:
        self._making: Stepwise[Workspace] | None = None
        self._deadline_ns = deadline_ns
        self._abort_status: ErrorStatus | None = None
        self._interrupt: Callable[[], None] | None = None
        self._interrupted = self._since_ns = 0
        self._tiles: Iterator[None] | None = None
        self._at_step: Step | None = None
        self._longest: tuple[int, Step | None] = 0, None

    def abort(self, status: ErrorStatus) -> None:
        """Make `advance` fail with ``status`` at the next boundary."""
        self._abort_status = status
        # Behind the status, which an engine looks at after it has set this.
        interrupt = self._interrupt
        if interrupt is not None:
            interrupt()

    def longest_part(self) -> tuple[int, Step | None]:
        """Return the nanoseconds of the longest part yet, and its step; on any thread.

        The part under way counts. Only of a run with a deadline.
        """
        taken_ns = time.monotonic_ns() - self._since_ns if self._since_ns else 0
        longest = self._longest
        return longest if longest[0] > taken_ns else (taken_ns, self._at_step)

    def _workspace(
        self, program: Program, plan: Plan, pause: Pause
    ) -> Workspace | None:
        """Take a workspace, or go on making one; None if paused meanwhile."""
        workspace = program.idle_workspace(plan)
        if workspace is None:
            if self._making is None:
                self._making = Stepwise(program.equipping(plan))
            if not self._making.advance(lambda: self._must_stop(pause)):
                self._check()
                return None
            workspace = self._making.result
        self._making = None
        return workspace

    def _must_stop(self, pause: Pause) -> bool:
        return pause.requested or self._abort_status is not None or self._is_late

    @property
    def _is_late(self) -> bool:
        deadline_ns = self._deadline_ns
        return deadline_ns is not None and time.monotonic_ns() >= deadline_ns

    def _check(self, step: Step | None = None) -> None:
        """Raise if it is to end at this boundary; else it goes on, with ``step``."""
        if self._abort_status is not None:
            raise error_for(self._abort_status, "the execution was aborted")
        deadline_ns = self._deadline_ns
        if deadline_ns is None:
            return
        now_ns = time.monotonic_ns()
        if now_ns - self._since_ns > self._longest[0]:
            self._longest = now_ns - self._since_ns, self._at_step
        self._since_ns = now_ns
        if step is not None:
            self._at_step = step
        if now_ns >= deadline_ns:
            raise MissedDeadlineTransientError("the deadline passed")

    def _run_tiles(
        self, run: TiledRun, inputs: Inputs, outputs: Outputs, pause: Pause
    ) -> bool:
        """Begin or go on with an operation in tiles; False if paused between two."""
        tiles = self._tiles or run.tiles(inputs, outputs)
        self._tiles = None
        for _ in tiles:
            if pause.requested:
                self._tiles = tiles
                return False
            if self._abort_status is not None or self._deadline_ns is not None:
                self._check()
        return True

    def _run_elsewhere(
        self, run: InterruptibleRun, inputs: Inputs, outputs: Outputs, pause: Pause
    ) -> bool:
        """Have another engine compute; False if it was interrupted for a pause.

        What it has computed by then is lost. So it may be interrupted a few times only,
        to come to an end under any load.
        """
        was_asked = pause.requested  # then this is what is done in any case
        threads = pause.threads
        may_pause = run.may_pause and self._interrupted < MOST_INTERRUPTED
        try:
            if threads > 1:
                run.spread(threads)
            run.clear()  # which may take long, or fail: another engine compiles, maybe
            # An abort and a pause are set first, then they interrupt what they find
            # here. So what was asked before this is seen below, what comes later
            # interrupts.
            self._interrupt = run.interrupt
            if may_pause:
                pause.interrupt = run.interrupt
            if may_pause and pause.requested and not was_asked:
                self._interrupted += 1
                return False
            for _ in range(MOST_ATTEMPTS):
                if self._abort_status is not None or self._deadline_ns is not None:
                    self._check()
                if run.attempt(inputs, outputs):
                    self._interrupted = 0
                    return True
                run.clear()  # before looking why, or what comes now would be lost
                self._check()
                if may_pause and pause.requested:
                    self._interrupted += 1
                    return False
            raise RuntimeError("it was interrupted each time, without a reason")
        finally:
            self._interrupt = pause.interrupt = None
            if threads > 1:
                run.spread(1)
