"""Executions as work that stops, goes on, is aborted and reports once."""

import time
from typing import Any

import numpy as np
import pytest

from asyncnn.devices.work import ExecuteWork
from asyncnn.engine import Program
from asyncnn.errors import AsyncnnError
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    MeasureTiming,
    OutputShape,
    Priority,
    Timing,
)
from asyncnn.qos import Pause
from tests.devices.test_execution import request_for
from tests.networks import chain

X = np.arange(16, dtype=np.float32)


class PauseAfter(Pause):
    """Asks for a pause after some boundaries."""

    def __init__(self, boundaries: int) -> None:
        self._left = boundaries

    @property
    def requested(self) -> bool:
        self._left -= 1
        return self._left < 0

    @requested.setter
    def requested(self, value: bool) -> None:
        raise NotImplementedError


class Reported:
    """The report of one execution of twenty additions."""

    def __init__(self, **options: Any) -> None:
        self.program = Program(chain(20, 16).model)
        self.z = np.empty_like(X)
        self.error: AsyncnnError | None = None
        self.shapes: tuple[OutputShape, ...] = ()
        self.timing = NO_TIMING
        self.computed_ns = 0
        self.reports = 0
        self.work = ExecuteWork(
            self.program,
            request_for([X], [self.z]),
            MeasureTiming.YES,
            Priority.LOW,
            options.get("deadline_ns"),
            None,
            self._report,
        )

    def _report(
        self,
        error: AsyncnnError | None,
        shapes: tuple[OutputShape, ...],
        timing: Timing,
        computed_ns: int,
    ) -> None:
        self.reports += 1
        self.error, self.shapes, self.timing = error, shapes, timing
        self.computed_ns = computed_ns


def test_work_goes_on_where_it_stopped() -> None:
    run = Reported()
    stops = 0
    while not run.work.advance(PauseAfter(3)):
        stops += 1
    assert stops == 6
    assert run.work.finish() is ErrorStatus.NONE
    np.testing.assert_array_equal(run.z, X + 20)
    assert run.shapes == (OutputShape((16,), True),)
    assert run.reports == 1


def test_work_that_is_always_asked_to_stop_comes_to_its_end() -> None:
    run = Reported()
    stops = 0
    while not run.work.advance(PauseAfter(0)):
        stops += 1
    assert stops == 19
    assert run.work.finish() is ErrorStatus.NONE


def test_the_measured_time_includes_the_suspension_and_the_computed_does_not() -> None:
    run = Reported()
    assert not run.work.advance(PauseAfter(3))
    time.sleep(0.02)
    assert run.work.advance(Pause())
    run.work.finish()
    assert run.timing.time_on_device >= 20_000
    assert run.timing.time_in_driver >= run.timing.time_on_device
    assert 0 < run.computed_ns < 20_000_000


@pytest.mark.parametrize("stops", [0, 1])
def test_aborted_work_gives_its_buffers_back(stops: int) -> None:
    run = Reported()
    for _ in range(stops):
        assert not run.work.advance(PauseAfter(3))
    run.work.abort(ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)
    assert run.work.finish() is ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
    assert (run.program.idle_bytes > 0) == (stops > 0)
    assert run.timing == NO_TIMING
    assert run.shapes == ()


def test_an_abort_takes_effect_at_the_next_boundary() -> None:
    run = Reported()
    assert not run.work.advance(PauseAfter(3))
    run.work.abort(ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)
    assert run.work.advance(Pause())
    assert run.work.finish() is ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
    assert run.program.idle_bytes > 0


def test_a_deadline_that_passes_during_the_suspension_is_missed() -> None:
    run = Reported(deadline_ns=time.monotonic_ns() + 10_000_000)
    assert not run.work.advance(PauseAfter(3))
    time.sleep(0.011)
    assert run.work.advance(Pause())
    assert run.work.finish() is ErrorStatus.MISSED_DEADLINE_TRANSIENT
    assert run.program.idle_bytes > 0
