"""Graphs of engines that do not ask for a flag, but are stopped by calls."""

import threading
from typing import Any

import numpy as np
import pytest

from asyncnn.engine.job import DONE, STOPPED, Control, Job, StopCalls
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from tests.engine.scripted import (
    INTERRUPTED,
    BuiltGraph,
    PythonGraph,
    arrays,
    is_untouched,
    meanwhile,
)


def said_from(status: int) -> int:
    """Return what the engine has said, of a status that is no int."""
    assert status & 0xFFFFFFFF == 5
    return status >> 32


class _Stopped:
    has_stop_calls = True
    script: Any
    said: int

    def _ended(self, status: int) -> None:
        self.said = said_from(status)
        if self.said != INTERRUPTED:
            raise GeneralFailureError(f"the engine says {self.said}")


class StoppedBuilt(_Stopped, BuiltGraph):
    pass


class StoppedPython(_Stopped, PythonGraph):
    pass


@pytest.fixture(params=[StoppedBuilt, StoppedPython])
def graph(request: pytest.FixtureRequest) -> Any:
    return request.param(1, 4)


needs_compiled = pytest.mark.skipif(Job is None, reason="there is no compiled job")


def test_it_is_called_as_its_flag_is_raised_and_lowered(graph: Any) -> None:
    x, y = arrays()
    for _ in range(3):
        graph.interrupt()
        assert graph.script.stopped == 1
        assert not graph.run([x], [y])
        assert is_untouched(y)
        graph.clear_interrupt()
        assert graph.script.stopped == 0
    assert graph.run([x], [y])
    np.testing.assert_array_equal(y, x + 1)


def test_it_ends_in_the_middle(graph: Any) -> None:
    x, y = arrays()
    graph.script.waits = 1

    def interrupt() -> None:
        graph.wait_until_begun()
        graph.interrupt()

    with meanwhile(interrupt):
        assert not graph.run([x], [y])
    assert graph.said == INTERRUPTED


def test_one_that_has_ended_stays_so(graph: Any) -> None:
    x, y = arrays()
    graph.end()
    graph.clear_interrupt()
    assert graph.script.stopped == 1
    assert not graph.run([x], [y])


def test_what_it_says_is_a_pointer(graph: Any) -> None:
    x, y = arrays()
    graph.script.fails_with = 3
    with pytest.raises(GeneralFailureError, match="the engine says 3"):
        graph.run([x], [y])


@pytest.mark.parametrize("wrong", [StopCalls(0, 1, 1), StopCalls(1, 0, 1)])
@pytest.mark.parametrize("kind", [BuiltGraph, PythonGraph])
def test_functions_that_are_none_are_refused(kind: Any, wrong: Any) -> None:
    made = kind(1, 4)
    tensors = made.inputs, made.outputs
    with pytest.raises(InvalidArgumentError, match="no function at 0"):
        kind.kind.__init__(kind.__new__(kind), 1, made.byte, *tensors, wrong)


@needs_compiled
@pytest.mark.parametrize("path", ["stop before", "stop within"])
def test_a_stop_of_a_job_stops_it(path: str) -> None:
    assert Job is not None
    graph, (x, y), control = StoppedBuilt(1, 4), arrays(), Control()
    job = Job(((graph, (0,), (1,)),), 2)
    graph.script.waits = 1

    def stop() -> None:
        if path == "stop within":
            graph.wait_until_begun()
        control.stop()

    with meanwhile(stop):
        assert job.run([x, y], control) == STOPPED
    assert is_untouched(y)
    graph.script.waits = 0
    assert job.run([x, y], Control()) == DONE
    assert graph.script.stopped == 0


@needs_compiled
def test_a_pause_waits_for_its_end() -> None:
    assert Job is not None
    graph, (x, y), control = StoppedBuilt(1, 4), arrays(), Control()
    job = Job(((graph, (0,), (1,)),), 2)
    graph.script.waits = 1

    def pause() -> None:
        graph.wait_until_begun()
        control.pause()
        assert graph.script.stopped == 0
        graph.script.waits = 0

    with meanwhile(pause):
        assert job.run([x, y], control) == DONE
    assert graph.script.begun == 1


@needs_compiled
def test_no_stop_is_lost_and_none_lasts() -> None:
    """Stops come at any time of runs, late ones between two of them."""
    assert Job is not None
    graph, (x, y) = StoppedBuilt(1, 4), arrays()
    job = Job(((graph, (0,), (1,)),), 2)
    for _ in range(2000):
        control = Control()
        thread = threading.Thread(target=control.stop)
        thread.start()
        outcome = job.run([x, y], control)
        assert job.run([x, y], Control()) == DONE
        thread.join()
        assert outcome in (DONE, STOPPED)
    assert job.run([x, y], Control()) == DONE
    assert graph.script.stopped == 0
