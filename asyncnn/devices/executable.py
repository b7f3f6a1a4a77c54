"""What executions of a model have in common: how long they take, and plans for them.

`Inliner` learns how long, and so which of them to run on the event loop. `NewShapes`
has plans made for those that there are none for.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import ClassVar

import msgspec

from asyncnn.devices.cache_format import Compiled
from asyncnn.devices.device_settings import DeviceSettings
from asyncnn.devices.process_wide import NOTHING
from asyncnn.devices.spreading import Spreading
from asyncnn.engine import Program
from asyncnn.engine.arguments import Layout, input_shapes
from asyncnn.engine.program import InputShapes
from asyncnn.hal.errors import (
    AsyncnnError,
    MissedDeadlinePersistentError,
    MissedDeadlineTransientError,
    ResourceExhaustedTransientError,
    error_for,
)
from asyncnn.hal.types import ErrorStatus, ExecutionPreference, Priority, Request
from asyncnn.pacing import Steps, Stepwise
from asyncnn.qos import Pause, Scheduler, Work, WorkAccounting

_LOW_POWER_FACTOR = 4.0
"""How much longer executions may be that run on the loop to save power."""

_FORGETTING = 1.02
"""Growth, per execution, of the least duration seen, which decides on inlining.

So one slow run does not count, and a slow model is noticed within some tens of runs.
"""

_FAR = 2.0
"""Multiple of ``below_ns`` beyond which processor time is not measured."""

SHORT_NS = 5_000_000
"""Executions that take less stop so soon that who waits for one may wait for that."""

_CERTAIN = 0.75
"""Share of the least duration seen that any execution takes, as far as one can tell."""


class Inliner:
    """Learns how long executions of a program take.

    ``should_inline`` tells whether they have lately taken less than ``below_ns``
    nanoseconds of a thread: on a lane they also wait for the interpreter, which they
    would not have to on the loop. ``takes_far_longer`` tells whether they have taken
    `_FAR` times that: then it does not matter how much of it was of a thread.
    ``are_short`` tells whether they are known to have taken less than `SHORT_NS`.
    """

    def __init__(self, program: Program, below_ns: float) -> None:
        self._program = program
        self._below_ns = below_ns
        # The first execution decides: it may have to restore a plan.
        self._is_foreseeable: bool | None = None
        measured_ns = program.measured_ns
        self._least_ns = self._least_cpu_ns = (
            float("inf") if measured_ns is None else measured_ns
        )
        self.should_inline = self._least_cpu_ns < below_ns
        self.takes_far_longer = False
        self.are_short = self._least_ns < SHORT_NS

    @property
    def min_runtime_ns(self) -> int:
        """Nanoseconds that the next execution takes at least; 0 if that is open."""
        if not self._is_foreseeable:
            return 0
        return int(self._least_ns * _CERTAIN)

    def observe(self, run_ns: int, cpu_ns: int) -> None:
        """Learn from an execution of ``run_ns`` nanoseconds, ``cpu_ns`` of a thread."""
        if self._is_foreseeable is None:
            self._is_foreseeable = self._program.is_straight
            # Without fixed shapes, or with loops, one tells little of the next.
            self._below_ns *= self._is_foreseeable
        least_ns = self._least_ns * _FORGETTING
        self._least_ns = run_ns if run_ns < least_ns else least_ns
        self.takes_far_longer = self._least_ns > _FAR * self._below_ns
        self.are_short = self._is_foreseeable and self._least_ns < SHORT_NS
        least_ns = self._least_cpu_ns * _FORGETTING
        self._least_cpu_ns = least_ns = cpu_ns if cpu_ns < least_ns else least_ns
        self.should_inline = least_ns < self._below_ns


def inline_below_us(compiled: Compiled, settings: DeviceSettings) -> float:
    """Return below how many microseconds executions of a model run on the loop.

    LOW_POWER spares waking a thread, and so is more patient.
    """
    saves_power = compiled.preference is ExecutionPreference.LOW_POWER
    return settings.inline_below_us * (_LOW_POWER_FACTOR if saves_power else 1.0)


class Executable(msgspec.Struct, eq=False):
    """What all executions of one prepared model have in common.

    ``layout`` is that of the last plain request. ``spreading`` decides on threads, if
    there may be several. ``cost`` is that of `Job`. Kernels run within ``computing``,
    on any number of threads at a time.
    """

    program: Program
    inliner: Inliner
    priority: Priority
    accounting: WorkAccounting
    refuses_unmeetable_deadlines: bool = False
    layout: Layout | None = None
    spreading: Spreading | None = None
    cost: float = 1.0
    computing: AbstractContextManager[object] = NOTHING

    def observe(self, computed_ns: int, cpu_ns: int, threads: int) -> None:
        """Learn from an execution; ``threads`` is 0 if it tells nothing of these."""
        self.inliner.observe(computed_ns, cpu_ns)
        if threads and self.spreading is not None:
            self.spreading.observe(threads, computed_ns)


class Lesson(msgspec.Struct, frozen=True):
    """What an execution tells of the next ones; see `Executable.observe`.

    Tracked by the garbage collector, unlike `LateEnd`: it leads to the model.
    """

    executable: Executable
    computed_ns: int
    cpu_ns: int
    threads: int

    def __call__(self) -> None:
        """Learn it."""
        self.executable.observe(self.computed_ns, self.cpu_ns, self.threads)


class PlanWork(Work):
    """Makes the plan of a model for input shapes, and tells ``planned`` why not.

    One that is under way as its deadline passes goes on: the next run will need it.
    """

    is_separable: ClassVar[bool] = True
    keeps_its_lane: ClassVar[bool] = True

    def __init__(
        self,
        program: Program,
        shapes: InputShapes,
        waiting: Work,
        planned: Callable[[AsyncnnError | None], None],
    ) -> None:
        priority, deadline_ns = waiting.priority, waiting.deadline_ns
        super().__init__(priority, deadline_ns, client=waiting.client)
        self._steps = Stepwise(_planning(program, shapes))
        self._waiting = [planned]
        self._error: AsyncnnError | None = None
        self._is_unwanted = False

    def advance(self, pause: Pause) -> bool:
        """Plan until the end, until nobody wants it, or until it is to pause."""
        ended = self._steps.advance(lambda: pause.requested or self._is_unwanted)
        return ended or self._is_unwanted

    def abort(self, status: ErrorStatus) -> None:
        """Report ``status`` instead of a plan."""
        self._error = error_for(status, "it was still being compiled for its shapes")
        self._is_unwanted = status is not ErrorStatus.MISSED_DEADLINE_TRANSIENT

    def fail(self, error: AsyncnnError) -> None:
        """Report why there is no plan."""
        self._error = error

    def finish(self) -> ErrorStatus:
        """Tell whoever waits, and keep nothing of it: this may go on."""
        self._waiting.pop()(self._error)
        return ErrorStatus.NONE if self._error is None else self._error.status


def _planning(program: Program, shapes: InputShapes) -> Steps[None]:
    # Work that came before may have made it.
    if program.known_plan(shapes) is None:
        yield from program.planning(shapes)


class NewShapes:
    """Has executions wait for plans that are made beside the lanes.

    ``executions`` has the lanes, ``plans`` a thread of its own: to compile a model for
    other shapes may take as long as to prepare it. Belongs to the event loop.
    """

    def __init__(self, executions: Scheduler, plans: Scheduler) -> None:
        self._executions = executions
        self._plans = plans
        self._planning: dict[Work, PlanWork] = {}

    def take(self, work: Work, program: Program, request: Request) -> bool:
        """Submit ``work`` on a request once it has a plan; False if it has one.

        Where nothing more can be planned beside the lanes, it is on its own.

        :raises DeviceUnavailableError: as `Scheduler.submit`.
        :raises MissedDeadlinePersistentError: likewise.
        """
        shapes = input_shapes(program, request)
        if program.known_plan(shapes) is not None:
            return False
        plan = PlanWork(program, shapes, work, lambda error: self._planned(work, error))
        try:
            self._plans.submit(plan)
        except ResourceExhaustedTransientError:
            return False
        self._planning[work] = plan
        return True

    def cancel(self, work: Work, status: ErrorStatus) -> None:
        """Stop work that was taken, or submitted; see `Scheduler.cancel`."""
        plan = self._planning.get(work)
        if plan is None:
            self._executions.cancel(work, status)
        else:
            self._plans.cancel(plan, status)

    def _planned(self, work: Work, error: AsyncnnError | None) -> None:
        del self._planning[work]
        if error is None:
            try:
                self._executions.submit(work)
                return
            except MissedDeadlinePersistentError:  # it has passed since the call
                error = MissedDeadlineTransientError("it had just been compiled")
            except AsyncnnError as refusal:
                error = refusal
        else:
            self._executions.count_refusal(work, error.status)
        work.fail(error)
        work.finish()
