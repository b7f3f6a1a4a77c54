"""What executions of a model have in common: how long they take, and on what."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from asyncnn.callbacks import ExecutionResult
from asyncnn.devices.process_wide import NOTHING
from asyncnn.devices.spreading import FORGETTING, WORTH_SPREADING_NS, Spreading
from asyncnn.engine import Program
from asyncnn.hal.types import NO_TIMING, ErrorStatus, Priority
from asyncnn.qos import Work, WorkAccounting

_FAR = 2.0
"""Multiple of ``inline_below_ns`` beyond which processor time is not measured."""

SHORT_NS = 5_000_000
"""Executions that take less stop so soon that who waits for one may wait for that."""

MOST_LESSONS, _YOUNG = 16, 32
"""Executions that are learnt from together, and first ones that are as they end."""

_CERTAIN = 0.75
"""Share of the least duration seen that any execution takes, as far as one can know."""


class Executable:
    """What all executions of one prepared model have in common, and have taught.

    ``spreading`` decides on threads, if there may be several. ``cost`` is as in
    `Work`; ``cancel`` stops one, also while it waits for its plan. Kernels run
    within ``computing``, on any number of threads at a time. It ``goes_native`` once an
    engine has computed one. ``result`` is what the last that succeeded unmeasured was
    awaited for. ``lessons`` have yet to be learnt; while it ``is_young``, none wait.
    Native runs are copied from ``blanks``, by their class.

    ``should_inline`` says whether executions have lately taken less than
    ``inline_below_ns`` nanoseconds of a thread: on a lane they also wait for the
    interpreter, which they would not have to on the loop. ``takes_far_longer`` says
    whether they have taken `_FAR` times that: then it does not matter how much of it
    was of a thread. ``are_short`` says whether they are known to have taken less than
    `SHORT_NS`, ``may_spread`` whether ``spreading`` is to be asked. Before the first,
    which a lane runs, nothing is known: an estimate would be wrong at times, and block
    the loop.
    """

    def __init__(
        self,
        program: Program,
        inline_below_ns: float,
        priority: Priority,
        accounting: WorkAccounting,
        cancel: Callable[[Work, ErrorStatus], None],
        *,
        refuses_unmeetable_deadlines: bool = False,
        computing: AbstractContextManager[object] = NOTHING,
    ) -> None:
        self.program = program
        self.priority = priority
        self.accounting = accounting
        self.cancel = cancel
        self.computing = computing
        self.spreading: Spreading | None = None
        self.cost = 1.0
        self.goes_native = False
        self.lessons: list[tuple[int, int, int]] = []
        self.blanks: dict[type, Any] = {}
        self.result = ExecutionResult(ErrorStatus.NONE, (), NO_TIMING)
        self._refuses_unmeetable_deadlines = refuses_unmeetable_deadlines
        self._below_ns = inline_below_ns
        # The first execution decides: it may have to restore a plan.
        self._is_foreseeable: bool | None = None
        self._least_ns = self._least_cpu_ns = float("inf")
        self.should_inline = self.takes_far_longer = self.are_short = False
        self.may_spread = False
        self._observed, self.is_young = 0, True

    @property
    def min_runtime_ns(self) -> int:
        """Nanoseconds that the next execution takes at least; 0 if that is open."""
        if self._refuses_unmeetable_deadlines and self._is_foreseeable:
            return int(self._least_ns * _CERTAIN)
        return 0

    def learn(self) -> None:
        """Learn from all ``lessons``, which are what `observe` takes."""
        lessons, self.lessons[:] = tuple(self.lessons), ()
        for lesson in lessons:
            self.observe(*lesson)

    def observe(self, run_ns: int, cpu_ns: int, threads: int = 0) -> None:
        """Learn from an execution of ``run_ns`` nanoseconds, ``cpu_ns`` of a thread.

        It says nothing of several threads if ``threads`` is 0.
        """
        if self._is_foreseeable is None:
            self._is_foreseeable = self.program.is_foreseeable
            # Without fixed shapes, or with loops, one says little of the next.
            self._below_ns *= self._is_foreseeable
        least_ns = self._least_ns * FORGETTING
        self._least_ns = least_ns = run_ns if run_ns < least_ns else least_ns
        self.takes_far_longer = least_ns > _FAR * self._below_ns
        self.are_short = self._is_foreseeable and least_ns < SHORT_NS
        least_cpu_ns = self._least_cpu_ns * FORGETTING
        self._least_cpu_ns = cpu_ns if cpu_ns < least_cpu_ns else least_cpu_ns
        if self.should_inline is not (self._least_cpu_ns < self._below_ns):
            self.should_inline = not self.should_inline
            self.blanks.clear()
        self._observed += 1
        self.is_young = self._observed < _YOUNG
        spreading = self.spreading
        if spreading is not None:
            if threads:
                spreading.observe(threads, run_ns)
            self.may_spread = least_ns * spreading.most >= WORTH_SPREADING_NS
