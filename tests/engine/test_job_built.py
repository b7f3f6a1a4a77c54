"""The job in C was built, is checked as it is made, and leaves no memory wrong."""

import gc
import importlib
import importlib.util
import sys
import weakref
from typing import Any

import numpy as np
import pytest

from asyncnn.engine import job as jobs
from asyncnn.engine.job import Control, Job
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.qos import Pause
from tests.engine.scripted import BuiltGraph, Chain, arrays

needs_compiled = pytest.mark.skipif(Job is None, reason="there is no compiled job")


BUILT = importlib.util.find_spec("asyncnn.engine._job") is not None


@needs_compiled
class TestMakingJobs:
    """A job is checked as it is made: afterwards nobody looks."""

    def graph(self, **sides: int) -> BuiltGraph:
        return BuiltGraph(1, 4, **sides)

    @pytest.mark.parametrize("port", [2, -1, -2, 1 << 40, 1 << 80, -(1 << 80)])
    @pytest.mark.parametrize("side", [0, 1])
    def test_ports_that_are_not_there_are_refused(self, port: int, side: int) -> None:
        assert Job is not None
        arguments = ((port,), (1,)) if side == 0 else ((0,), (port,))
        with pytest.raises(InvalidArgumentError, match=f"there is no port {port} of 2"):
            Job(((self.graph(), *arguments),), 2)

    @pytest.mark.parametrize(
        ("inputs", "outputs"), [((), (1,)), ((0, 0), (1,)), ((0,), ()), ((0,), (1, 1))]
    )
    def test_other_numbers_of_arguments_are_refused(
        self, inputs: tuple[int, ...], outputs: tuple[int, ...]
    ) -> None:
        assert Job is not None
        with pytest.raises(InvalidArgumentError, match="takes 1 inputs and 1 outputs"):
            Job(((self.graph(), inputs, outputs),), 2)

    @pytest.mark.parametrize("length", [0, 3, 5, 4000])
    def test_memory_of_another_size_is_refused(self, length: int) -> None:
        assert Job is not None
        memory = np.zeros(length, np.float32)
        for arguments in ((memory,), (0,)), ((0,), (memory,)):
            with pytest.raises(InvalidArgumentError, match=f"{4 * length} bytes"):
                Job(((self.graph(), *arguments),), 1)

    def test_memory_that_cannot_be_written_to_is_no_output(self) -> None:
        assert Job is not None
        memory = np.zeros(4, np.float32)
        memory.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            Job(((self.graph(), (0,), (memory,)),), 1)
        with pytest.raises(ValueError, match="contiguous"):
            Job(((self.graph(), (np.zeros(8, np.float32)[::2],), (0,)),), 1)

    @pytest.mark.parametrize("segments", [(), ("graph",), (("graph", (0,), (0,)),)])
    def test_what_is_no_segment_is_refused(self, segments: Any) -> None:
        assert Job is not None
        with pytest.raises((TypeError, InvalidArgumentError)):
            Job(segments, 1)
        with pytest.raises((InvalidArgumentError, OverflowError)):
            Job(((self.graph(), (0,), (0,)),), -1)

    def test_one_that_was_not_initialised_does_not_run(self) -> None:
        built: Any = importlib.import_module("asyncnn.engine._job")
        job = built.Job.__new__(built.Job)
        with pytest.raises(ValueError, match="not initialised"):
            job.run([], Control())
        with pytest.raises(InvalidArgumentError):
            job.__init__(((self.graph(), (7,), (0,)),), 1)
        with pytest.raises(ValueError, match="not initialised"):
            job.run([None], Control())
        segment = built.Segment.__new__(built.Segment)
        for use in (segment.interrupt, segment.end, lambda: segment.run([], [])):
            with pytest.raises(ValueError, match="not initialised"):
                use()
        with pytest.raises(ValueError, match="not initialised"):
            built.Job(((segment, (), ()),), 0)
        assert segment.bound_addresses() == []

    def test_a_run_takes_as_many_arrays_as_there_are_ports(self) -> None:
        assert Job is not None
        job = Job(((self.graph(), (0,), (1,)),), 2)
        x, y = arrays()
        for given in ([], [x], [x, y, y]):
            with pytest.raises(InvalidArgumentError, match="the job has 2 ports"):
                job.run(given, Control())
        for wrong in (None, "control", job):
            with pytest.raises(TypeError, match="Control"):
                job.run([x, y], wrong)  # type: ignore[arg-type]
        assert job.run([x, y], Control()) == jobs.DONE

    def test_a_control_of_a_longer_job_is_refused(self) -> None:
        assert Job is not None
        longer = Job(
            ((self.graph(), (0,), (1,)),) * 1 + ((self.graph(), (0,), (1,)),), 2
        )
        shorter = Job(((self.graph(), (0,), (1,)),), 2)
        control = Control()
        assert longer.run(arrays(), control) == jobs.DONE
        with pytest.raises(ValueError, match="another job"):
            shorter.run(arrays(), control)

    def test_segments_may_share_ports_and_memory(self) -> None:
        assert Job is not None
        middle = np.zeros(4, np.float32)
        job = Job(
            (
                (self.graph(outputs=2), (0,), (1, middle)),
                (self.graph(inputs=3), (0, 1, middle), (2,)),
            ),
            3,
        )
        x, y = arrays()
        z = np.zeros(4, np.float32)
        assert job.run([x, y, z], Control()) == jobs.DONE
        np.testing.assert_array_equal(y, x + 1)
        np.testing.assert_array_equal(z, 3 * x + 3)

    def test_it_keeps_its_memory_and_goes_with_its_segments(self) -> None:
        assert Job is not None
        graph, memory = self.graph(), np.zeros(4, np.float32)
        gone = weakref.ref(memory), weakref.ref(graph)
        job = Job(((graph, (0,), (memory,)),), 1)
        graph.job = job  # type: ignore[attr-defined]
        del memory, graph
        gc.collect()
        assert gone[0]() is not None
        assert job.run([np.ones(4, np.float32)], Control()) == jobs.DONE
        del job
        gc.collect()
        assert gone[0]() is gone[1]() is None

    def test_words_that_are_none_are_refused(self) -> None:
        class Wrong(BuiltGraph):
            told: Any = None

            def _bind(self, addresses: tuple[int, ...]) -> Any:
                return self.told

        x, y = arrays()
        graph = Wrong(1, 4)
        for told in (None, (1, 2), ((-1,), None), ((1,) * 9, None), (("a",), None)):
            graph.told = told
            with pytest.raises((TypeError, OverflowError, InvalidArgumentError)):
                graph.run([x], [y])
        assert graph.script.begun == 0
        assert not graph.bound_addresses()

    def test_what_it_returns_is_counted_by_every_interpreter(self) -> None:
        assert Job is not None
        graph = self.graph()
        job = Job(((graph, (0,), (1,)),), 2)
        x, y = arrays()
        counted = (True, False, None, Control, graph)
        before = [sys.getrefcount(value) for value in counted]
        for _ in range(1000):
            graph.run([x], [y])
            graph.interrupt()
            graph.run([x], [y])
            graph.clear_interrupt()
            control = Control()
            job.run([x, y], control, 1 << 60, Pause(), None)
            control.stop()
            control.pause()
            assert job.run([x, y], control) == jobs.DONE
            graph.forget()
        del control
        after = [sys.getrefcount(value) for value in counted]
        assert all(abs(a - b) < 100 for a, b in zip(after, before, strict=True))


@needs_compiled
@pytest.mark.parametrize("deadline_ns", [None, 1 << 62])
def test_a_warm_run_passes_few_functions(deadline_ns: int | None) -> None:
    chain = Chain("job", 1)
    x, y = arrays()
    pause = Pause()
    chain.execution(x, y, deadline_ns).advance(pause)
    passed: list[str] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and "asyncnn" in frame.f_code.co_filename:
            passed.append(frame.f_code.co_qualname)
        elif event == "c_call" and "_job" in str(getattr(argument, "__self__", "")):
            passed.append(argument.__qualname__)

    sys.setprofile(note)
    try:
        chain.execution(x, y, deadline_ns).advance(pause)
    finally:
        sys.setprofile(None)
    assert len(passed) <= 12, passed
    assert "Job.run" in passed
