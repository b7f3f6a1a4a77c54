"""What executions of a model have in common: how long they take, and on what.

`Inliner` learns how long, and so which of them to run on the event loop.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

import msgspec

from asyncnn.devices.cache_format import Compiled
from asyncnn.devices.device_settings import DeviceSettings
from asyncnn.devices.process_wide import NOTHING
from asyncnn.devices.spreading import Spreading
from asyncnn.engine import Program
from asyncnn.hal.types import ErrorStatus, ExecutionPreference, Priority
from asyncnn.qos import Work, WorkAccounting

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
    Before the first, which a lane runs, none is: an estimate would be wrong at times,
    and block the loop.
    """

    def __init__(self, program: Program, below_ns: float) -> None:
        self._program = program
        self._below_ns = below_ns
        # The first execution decides: it may have to restore a plan.
        self._is_foreseeable: bool | None = None
        self._least_ns = self._least_cpu_ns = float("inf")
        self.should_inline = self.takes_far_longer = self.are_short = False

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

    ``spreading`` decides on threads, if there may be several. ``cost`` is that of
    `Job`, ``cancel`` that of the scheduler. Kernels run within ``computing``, on any
    number of threads at a time. It ``goes_native`` once an engine has computed one
    alone.
    """

    program: Program
    inliner: Inliner
    priority: Priority
    accounting: WorkAccounting
    cancel: Callable[[Work, ErrorStatus], None]
    refuses_unmeetable_deadlines: bool = False
    spreading: Spreading | None = None
    cost: float = 1.0
    computing: AbstractContextManager[object] = NOTHING
    goes_native: bool = False

    def observe(self, computed_ns: int, cpu_ns: int, threads: int) -> None:
        """Learn from an execution; ``threads`` is 0 if it tells nothing of these."""
        self.inliner.observe(computed_ns, cpu_ns)
        if threads and self.spreading is not None:
            self.spreading.observe(threads, computed_ns)


class Lesson(msgspec.Struct, frozen=True):
    """What an execution tells of the next ones; see `Executable.observe`."""

    executable: Executable
    computed_ns: int
    cpu_ns: int
    threads: int

    def __call__(self) -> None:
        """Learn it."""
        self.executable.observe(self.computed_ns, self.cpu_ns, self.threads)
