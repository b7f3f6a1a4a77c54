"""Executions as work that stops, goes on, is aborted and reports once."""

import threading
import time
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from asyncnn.devices import preparations
from asyncnn.devices.executable import Executable
from asyncnn.devices.preparations import PrepareWork
from asyncnn.devices.run import Run
from asyncnn.engine import Program
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    ExecutionOptions,
    MeasureTiming,
    OutputShape,
    Priority,
    Timing,
)
from asyncnn.pacing import Pace, Steps
from asyncnn.qos import LOCAL, Pause, WorkAccounting
from asyncnn.qos.work import fail_with
from tests.devices.test_execution import request_for
from tests.engine.scripted import PauseAfter
from tests.networks import chain

X = np.arange(16, dtype=np.float32)


class Reported:
    """The report of one execution of twenty additions."""

    def __init__(self, **options: Any) -> None:
        self.program = Program(chain(20, 16).model)
        self.z = np.empty_like(X)
        self.error: AsyncnnError | None = None
        self.shapes: tuple[OutputShape, ...] = ()
        self.timing = NO_TIMING
        self.reports = 0
        self.executable = Executable(
            self.program, 1e9, Priority.LOW, WorkAccounting(), cancel=Mock()
        )
        self.deadline_ns: int | None = options.get("deadline_ns")
        self.work = self.again()

    def again(self) -> Run:
        return Run(
            self.executable,
            request_for([X], [self.z]),
            ExecutionOptions(MeasureTiming.YES, self.deadline_ns),
            LOCAL,
            self._report,
        )

    def advance(self, pause: Pause) -> bool:
        """Advance the work as a lane does."""
        try:
            return self.work.advance(pause)
        except Exception as error:
            fail_with(self.work, error)
            return True

    def _report(
        self,
        error: AsyncnnError | None,
        shapes: tuple[OutputShape, ...],
        timing: Timing,
    ) -> None:
        self.reports += 1
        self.error, self.shapes, self.timing = error, shapes, timing


def test_work_goes_on_where_it_stopped() -> None:
    run = Reported()
    stops = 0
    while not run.advance(PauseAfter(3)):
        stops += 1
    assert stops == 6
    assert run.work.finish() is ErrorStatus.NONE
    np.testing.assert_array_equal(run.z, X + 20)
    assert run.shapes == (OutputShape((16,), True),)
    assert run.reports == 1


def test_work_that_is_always_asked_to_stop_comes_to_its_end() -> None:
    run = Reported()
    stops = 0
    while not run.advance(PauseAfter(0)):
        stops += 1
    assert stops == 19
    assert run.work.finish() is ErrorStatus.NONE


def test_what_a_stuck_lane_has_not_left_is_reported_without_a_time() -> None:
    """The outputs are there, and the device is closed before the lane goes on."""
    run = Reported()
    run.work._started_ns = 1
    run.work._advance(Pause())
    assert run.work.finish() is ErrorStatus.NONE
    assert run.timing.time_on_device == 0


def test_the_measured_time_includes_the_suspension_and_the_computed_does_not() -> None:
    run = Reported()
    assert not run.advance(PauseAfter(3))
    time.sleep(0.1)
    assert run.advance(Pause())
    run.work.finish()
    assert run.timing.time_on_device >= 100_000
    assert run.timing.time_in_driver >= run.timing.time_on_device
    assert 0 < run.work.computed_ns < 100_000_000


@pytest.mark.parametrize("stops", [0, 1])
def test_aborted_work_gives_its_buffers_back(stops: int) -> None:
    run = Reported()
    for _ in range(stops):
        assert not run.advance(PauseAfter(3))
    run.work.abort(ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)
    assert run.work.finish() is ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
    assert (run.program.idle_bytes > 0) == (stops > 0)
    assert run.timing == NO_TIMING
    assert run.shapes == ()


def test_an_abort_takes_effect_at_the_next_boundary() -> None:
    run = Reported()
    assert not run.advance(PauseAfter(3))
    run.work.abort(ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)
    assert run.advance(Pause())
    assert run.work.finish() is ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
    assert run.program.idle_bytes > 0


def test_a_deadline_that_passes_during_the_suspension_is_missed() -> None:
    run = Reported(deadline_ns=time.monotonic_ns() + 100_000_000)
    assert not run.advance(PauseAfter(3))
    time.sleep(0.101)
    assert run.advance(Pause())
    assert run.work.finish() is ErrorStatus.MISSED_DEADLINE_TRANSIENT
    assert run.program.idle_bytes > 0


def test_work_of_a_quick_model_is_short_and_runs_in_one_go() -> None:
    run = Reported()
    assert not run.work.should_inline
    run.executable.observe(1, 1)
    short = run.again()
    assert short.should_inline
    assert short.run() == short.computed_ns > 0
    assert short.finish() is ErrorStatus.NONE
    np.testing.assert_array_equal(run.z, X + 20)
    assert run.timing.time_in_driver >= run.timing.time_on_device


def test_work_with_a_deadline_is_not_for_the_loop() -> None:
    run = Reported(deadline_ns=time.monotonic_ns() + 10**9)
    run.executable.observe(1, 1)
    assert not run.again().should_inline


def test_a_plan_that_is_made_for_a_request_stops_at_boundaries() -> None:
    run = Reported()
    run.program._plans.clear()
    run.program._main = None
    stops = 0
    while not run.advance(PauseAfter(0)):
        stops += 1
    assert stops == 20 + 19  # between operations that are planned, and executed
    assert run.work.finish() is ErrorStatus.NONE
    np.testing.assert_array_equal(run.z, X + 20)


def test_an_abort_while_a_plan_is_made_takes_effect_at_its_next_boundary() -> None:
    run = Reported()
    run.program._plans.clear()
    run.program._main = None
    assert not run.advance(PauseAfter(0))
    run.work.abort(ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)
    assert run.advance(Pause())
    assert run.work.finish() is ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
    assert not run.program._plans


class Endless:
    """Executions that long work makes way for."""

    is_busy = True


def compute_for(seconds: float) -> None:
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("stopping", ["paused", "aborted"])
def test_a_preparation_that_rests_beside_executions_can_be_stopped(
    deep: bool, stopping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be taken for stuck otherwise: its rest is longer than its steps."""
    pace, executions = Pace(), Endless()
    pace.watch(executions)
    monkeypatch.setattr(preparations, "long_work", pace.long_work)
    monkeypatch.setattr(preparations, "make_way", pace.make_way)
    pause, stopped_s = Pause(), list[float]()

    def prepare() -> Steps[Any]:
        while True:
            compute_for(0.25)  # to rest four times as long
            threading.Timer(0.05, stop).start()
            if deep:
                pace.make_way()
            yield

    def stop() -> None:
        stopped_s.append(time.monotonic())
        if stopping == "paused":
            pause.requested = True
        else:
            work.abort(ErrorStatus.DEVICE_UNAVAILABLE)

    work = PrepareWork(prepare, Priority.MEDIUM, None, lambda _: None)
    assert work.advance(pause) == (stopping == "aborted")
    assert len(stopped_s) == 1
    assert time.monotonic() - stopped_s[0] < 0.6
