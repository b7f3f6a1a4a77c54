"""Scripts of calls to segments, jobs, controls, fields of runs, ports and lanes."""

import gc
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from types import SimpleNamespace
from typing import Any

import numpy as np

from asyncnn.engine.job import (
    COPIED_BYTES,
    FLAG_BYTES,
    Control,
    Job,
    JobSegment,
    LanePort,
    RunFields,
    made,
)
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.types import DEFAULT_OPTIONS, ErrorStatus
from asyncnn.pacing import Pause
from asyncnn.tools.fuzz.driver_calls import CallScript, EndError
from tests.engine.scripted import INTERRUPTED, BuiltGraph, engine

_MOST_STEPS, _MOST_LANES = 60, 3
_ELEMENTS = (1, 4, COPIED_BYTES // 4, COPIED_BYTES // 4 + 16)
_EDGES = (-1, 8, 255, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, -(2**63))
_ANSWERS = (
    *(AsyncnnError, TypeError, ValueError, RuntimeError, OSError),
    *(OverflowError, AttributeError, BufferError, LookupError),
)
_LIMIT_S = 20.0


class _Graph(BuiltGraph):
    """A graph that says what a script has it say, and calls back."""

    def __init__(self, play: "JobScript", elements: int, *sides: int) -> None:
        self._play = play
        super().__init__(1.0, elements, inputs=sides[0], outputs=sides[1])

    def _bind(self, addresses: tuple[int, ...]) -> Any:
        right = super()._bind(addresses)
        match self._play.choice(24):
            case 0:
                self._play.step()
            case 1:
                return [right]
            case 2:
                return tuple(range(9)), right
            case 3:
                return ("word",), right
            case 4:
                self.forget()
        return right

    def _check(self, inputs: Any, outputs: Any) -> None:
        if self._play.choice(8):
            super()._check(inputs, outputs)

    def _ended(self, status: int) -> None:
        if self._play.choice(8) == 0:
            self._play.step()
        super()._ended(status)


class _Run(RunFields):
    """A run whose parts in Python do nothing."""

    @classmethod
    def anew(cls, *_: object) -> "_Run":
        return cls()

    def _finish(self) -> ErrorStatus:
        return ErrorStatus.NONE

    def _spread(self, pause: Pause) -> None:
        self._threads = 1

    def _resolve(self, result: Any) -> None:
        self._result = result

    def _report_run(self) -> None:
        pass


class JobScript:
    """Takes the steps of a script; those of lanes as well if there is a port."""

    def __init__(self, data: bytes, fd: int | None = None) -> None:
        self._script = CallScript(data)
        self._lock = threading.RLock()
        self._left = _MOST_STEPS
        self._fd = fd
        self._graphs: list[_Graph] = [_Graph(self, 4, 1, 1)]
        graph = self._graphs[0]
        assert Job is not None
        self._jobs: list[Any] = [Job(((graph, (0,), (1,)),), 2)]
        self._controls: list[Any] = [Control()]
        self._lanes: list[Any] = []
        self._ended: list[Any] = []
        self.port: Any = None
        if fd is not None:
            assert LanePort is not None
            self.port = LanePort(fd)
            self._lanes.append(self.port.lane("fuzz"))

    def choice(self, most: int) -> int:
        """Return a number that the script has, or the last at its end."""
        with suppress(EndError), self._lock:
            return self._script.byte() % most
        return most - 1

    def play(self) -> None:
        """Take all steps."""
        with suppress(EndError):
            while self._left > 0:
                self.step()

    def step(self) -> None:
        """Take one step, as long as some are left."""
        with self._lock:
            self._left -= 1
            if self._left < 0:
                return
            call = self._chosen()
        with suppress(*_ANSWERS):
            call()

    def _chosen(self) -> Callable[[], object]:
        one, script = self._script.one, self._script
        graph, job = one(self._graphs), one(self._jobs)
        control = one(self._controls)
        steps: list[Callable[[], object]] = [
            self._make_graph,
            self._make_job,
            self._make_segment,
            lambda: self._controls.append(Control()),
            lambda: job.run(self._arrays(), control),
            lambda: job.run(self._arrays(), control, *self._orders()),
            lambda: job.__init__(((graph, (0,), (1,)),), 2),
            control.stop,
            control.pause,
            lambda: (control.longest(), control.position),
            graph.interrupt,
            graph.clear_interrupt,
            lambda: script.byte() > 240 and graph.end(),
            graph.forget,
            graph.bound_addresses,
            lambda: script.byte() > 240 and graph.close(),
            lambda: graph.run(self._arrays(), self._arrays()),
            lambda: setattr(graph.script, "fails_with", one((0, 0, INTERRUPTED, 5))),
            lambda: len(self._graphs) > 1 and self._graphs.remove(graph),
            lambda: len(self._jobs) > 1 and self._jobs.remove(job),
            lambda: script.byte() > 240 and gc.collect(),
            self._fields,
        ]
        if self.port is not None:
            steps += self._lane_steps(job, control, graph)
        return script.one(steps)  # type: ignore[no-any-return]

    def _lane_steps(
        self, job: Any, control: Any, graph: _Graph
    ) -> list[Callable[[], object]]:
        one, port = self._script.one, self.port
        lane = one(self._lanes)

        def offer() -> None:
            job.offer(lane, object(), self._arrays(), control, *self._orders())

        def offer_held() -> None:
            graph.script.waits = 1
            try:
                offer()
                one((control.stop, control.pause, graph.interrupt, lane.close))()
            finally:
                graph.script.waits = 0

        return [
            *[offer] * 4,
            *[offer_held] * 2,
            lambda: (
                len(self._lanes) < _MOST_LANES
                and self._lanes.append(port.lane("x" * (self._script.byte() % 99)))
            ),
            lambda: self._script.byte() > 200 and lane.close(),
            lambda: port.drain(self._ended),
            lambda: port.bring(self._ended, self.step),
            lambda: select.select([self._fd], [], [], 1e-3),
        ]

    def _make_graph(self) -> None:
        if len(self._graphs) < 4:
            elements = self._script.one(_ELEMENTS)
            sides = self._script.byte() % 4, self._script.byte() % 3
            self._graphs.append(_Graph(self, elements, *sides))

    def _make_job(self) -> None:
        one = self._script.one
        segments = self._script.some(
            lambda: (
                one(self._graphs),
                self._script.some(self._argument),
                self._script.some(self._argument, 2),
            )
        )
        assert Job is not None
        self._jobs.append(Job(segments, self._script.byte() % 6 - 1))
        del self._jobs[8:]

    def _argument(self) -> Any:
        if self._script.byte() > 60:
            return self._script.byte() % 4
        return self._script.one((*_EDGES, *self._arrays(), None, "x"))

    def _make_segment(self) -> None:
        one = self._script.one
        tensor = SimpleNamespace(nbytes=one((0, 1, *_EDGES)), dtype=one(_DTYPES))
        flag = one((bytearray(FLAG_BYTES), bytearray(3), bytes(FLAG_BYTES), None))
        flag = flag if self._script.byte() > 60 else memoryview(bytearray(40))[1:17]
        ends = self._script.some(lambda: tensor, 2), self._script.some(lambda: tensor)
        stop_by = one((None, None, (0, 0, 0), (1, 2), 7))
        JobSegment(one((0, 1, *_EDGES)), flag, *ends, stop_by)

    def _arrays(self) -> list[Any]:
        return list(self._script.some(self._array, 4))

    def _array(self) -> Any:
        elements = self._script.one(_ELEMENTS)
        array = np.zeros(elements + 1, np.float32)
        match self._script.byte() % 12:
            case 0:
                return None
            case 1:
                return array
            case 2:
                return array.view(np.uint8)[1 : 1 + 4 * elements].view(np.uint8)
            case 3:
                array.flags.writeable = False
            case 4:
                return np.zeros(2 * elements, np.float32)[::2]
            case 5:
                return bytes(4 * elements)
            case 6:
                return np.zeros(elements, np.int32)
        return array[:elements]

    def _orders(self) -> tuple[Any, Any, Any]:
        one, now = self._script.one, time.monotonic_ns()
        times = (None, None, 0, now, now + 10**6, now + 10**10, *_EDGES, 0.5)
        asked = Pause()
        asked.requested = True
        return one(times), one((None, Pause(), asked, 7)), one(times)

    def _fields(self) -> None:
        one = self._script.one
        idle: dict[int, Any] = {}
        result = SimpleNamespace(output_shapes=())
        executable = SimpleNamespace(
            program=SimpleNamespace(idle=idle),
            blanks={},
            goes_native=one((True, False)),
            may_spread=one((True, False)),
            is_young=one((True, False)),
            result=result,
            learn=lambda: None,
        )
        run, plan = _Run(), SimpleNamespace(known_outputs=())
        idle[id(plan)] = [SimpleNamespace(job=one(self._jobs))]
        for name, values in (
            ("_executable", (executable, executable)),
            ("pause", (Pause(), Pause())),
            ("_arrays", (self._arrays(), None)),
            ("_plan", (plan, plan)),
            ("_execution", (None, self)),
            ("ends_anywhere", (False, True)),
            ("_workspace", (None, SimpleNamespace(job=one(self._jobs)))),
            ("_control", (None, one(self._controls))),
            ("_abort_status", (None, 5)),
            ("deadline_ns", (None, *_EDGES)),
            ("_shapes", (result.output_shapes, None)),
            ("_lessons", ([], None)),
            ("_report", (None, lambda *_: self.step())),
        ):
            if self._script.byte() > 20:
                setattr(run, name, one(values))
        executable.blanks[_Run] = run
        request = SimpleNamespace(plan=plan)
        given = executable, request, self._arrays(), DEFAULT_OPTIONS, None
        copied = made(_Run, *given)
        lanes = [SimpleNamespace(thread=each, work=None) for each in self._lanes]
        for each in (run, copied):
            each.offer(one((lanes, [], None)))
            each.finish()

    def close(self) -> None:
        """Have all lanes end, and take what has come back."""
        self._left = 0
        for control in self._controls:
            control.stop()
        for lane in self._lanes:
            lane.close()
        due = time.monotonic() + _LIMIT_S
        while not all(lane.has_ended for lane in self._lanes):
            assert time.monotonic() < due, "a lane does not end"
            time.sleep(1e-4)
        if self.port is not None:
            self.port.drain(self._ended)


_DTYPES = (np.dtype(np.float32), np.dtype("V7"), None, SimpleNamespace(char="é"))


def play(data: bytes) -> None:
    """Take the steps of a script, without lanes."""
    engine()
    with closing(JobScript(data)) as script:
        script.play()


def play_on_lanes(data: bytes) -> None:
    """Take the steps of a script on two threads, beside lanes."""
    engine()
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        with closing(JobScript(data, fd)) as script:
            other = threading.Thread(target=script.play)
            other.start()
            script.play()
            other.join()
    finally:
        os.close(fd)
