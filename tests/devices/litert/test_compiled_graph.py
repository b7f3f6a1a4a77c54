"""When graphs run and when they end: interrupts, threads, closing, forks, the end."""

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from asyncnn.devices.litert.chain_model import Chain
from asyncnn.devices.litert.engine import CompiledGraph, Engine, load_engine
from asyncnn.hal.errors import BusyError, DeviceClosedError, ForkedError
from tests.devices.litert.conftest import Case, at_offset
from tests.forks import in_child_blocking

SHAPE = (128, 512)

LONG = Chain(100, *SHAPE)
"""Takes some 100 ms."""


@pytest.fixture(scope="module")
def long_model() -> bytes:
    return LONG.model()


class Run:
    """A run of a long model in a thread of its own, of which both ends can be seen."""

    def __init__(self, graph: CompiledGraph) -> None:
        self.graph = graph
        self.case = Case(Chain(1, *SHAPE), SHAPE)
        # Not copied from elsewhere in the end: they show how far it has come.
        self.case.outputs = [at_offset(like, 0) for like in self.case.outputs]
        self.outcome: bool | BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.outcome = self.graph.run([self.case.x], self.case.outputs)
        except BaseException as error:
            self.outcome = error

    @property
    def has_begun(self) -> bool:
        return not np.isnan(self.case.outputs[0]).any()

    @property
    def has_ended(self) -> bool:
        return not np.isnan(self.case.outputs[1]).any()

    def start(self) -> None:
        """Return when the first of many layers has been computed."""
        self.thread.start()
        while not self.has_begun:
            assert self.thread.is_alive(), self.outcome


@contextmanager
def under_way(graph: CompiledGraph) -> Iterator[Run]:
    run = Run(graph)
    run.start()
    try:
        yield run
    finally:
        run.thread.join()


def test_an_interrupted_graph_does_not_run(
    engine: Engine, chain: Chain, case: Case
) -> None:
    graph = engine.compile(chain.model())
    graph.interrupt()
    for _ in range(3):
        assert not graph.run([case.x], case.outputs)
        assert np.isnan(case.outputs[-1]).all()
    graph.clear_interrupt()
    assert graph.run([case.x], case.outputs)
    case.assert_right()


def test_a_run_ends_at_the_next_barrier(c_api: Engine, long_model: bytes) -> None:
    graph = c_api.compile(long_model)
    for _ in range(5):
        with under_way(graph) as run:
            graph.interrupt()
        assert run.outcome is False
        assert not run.has_ended
        graph.clear_interrupt()
    whole = Run(graph)
    whole.start()
    whole.thread.join()
    assert whole.outcome is True
    np.testing.assert_array_equal(whole.case.outputs[1], LONG.expected(whole.case.x)[1])


def test_other_threads_go_on_while_a_graph_runs(
    engine: Engine, long_model: bytes
) -> None:
    run = Run(engine.compile(long_model))
    counted = 0
    run.thread.start()
    while run.thread.is_alive():
        counted += 1
    assert run.outcome is True
    assert counted > 1000


def test_a_graph_runs_in_one_thread_at_a_time(c_api: Engine, long_model: bytes) -> None:
    graph = c_api.compile(long_model)
    with under_way(graph) as run:
        other = Case(Chain(1, *SHAPE), SHAPE)
        with pytest.raises(BusyError, match="runs in another thread"):
            graph.run([other.x], other.outputs)
        assert not run.has_ended
    assert run.outcome is True
    assert graph.run([other.x], other.outputs)


@pytest.mark.parametrize("repetitions", [300])
def test_graphs_run_side_by_side(
    engine: Engine, chain: Chain, repetitions: int
) -> None:
    wrong: list[BaseException] = []

    def work(number: int) -> None:
        try:
            graph = engine.compile(chain.model())
            x = np.full((4, 32), number, np.float32)
            expected = chain.expected(x)
            outputs = [np.empty_like(x), np.empty_like(x)]
            for _ in range(repetitions):
                assert graph.run([x], outputs)
                for found, right in zip(outputs, expected, strict=True):
                    np.testing.assert_array_equal(found, right)
                    found.fill(0)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_closed_graph_refuses(engine: Engine, chain: Chain, case: Case) -> None:
    graph = engine.compile(chain.model())
    assert graph.run([case.x], case.outputs)
    graph.close()
    graph.close()
    with pytest.raises(DeviceClosedError, match="the compiled graph is closed"):
        graph.run([case.x], case.outputs)
    graph.interrupt()
    graph.clear_interrupt()


def test_a_run_that_is_under_way_ends_before_its_graph(
    c_api: Engine, long_model: bytes
) -> None:
    graph = c_api.compile(long_model)
    with under_way(graph) as run:
        started = time.monotonic()
        graph.close()
        assert not run.has_ended, time.monotonic() - started
        with pytest.raises(DeviceClosedError):
            graph.run([run.case.x], run.case.outputs)
    assert run.outcome is True
    np.testing.assert_array_equal(run.case.outputs[1], LONG.expected(run.case.x)[1])
    assert graph.stop(0)  # it was freed


def test_a_graph_that_nobody_keeps_runs_to_its_end(
    c_api: Engine, long_model: bytes
) -> None:
    graph = c_api.compile(long_model)
    gone = weakref.ref(graph)
    run = Run(graph)
    run.start()
    del graph, run.graph
    gc.collect()
    run.thread.join()
    assert run.outcome is True
    gc.collect()
    assert gone() is None


def test_a_forked_child_neither_uses_nor_frees_a_graph(
    engine: Engine, chain: Chain, case: Case
) -> None:
    graph = engine.compile(chain.model())
    assert graph.run([case.x], case.outputs)

    def child() -> str:
        told = []
        for use in (
            lambda: graph.run([case.x], case.outputs),
            lambda: engine.compile(chain.model()),
        ):
            try:
                use()
            except ForkedError as error:
                told.append(error.message)
        graph.close()
        return "; ".join(told)

    told = in_child_blocking(child)
    assert "a compiled graph belongs to the process that opened it" in told
    assert "an engine belongs to the process" in told
    assert graph.run([case.x], case.outputs)
    case.assert_right()


def test_a_forked_child_loads_an_engine_of_its_own(
    engine: Engine, chain: Chain, case: Case
) -> None:
    def child() -> bool:
        mine = load_engine("c_api" if engine.name == "c_api" else "interpreter")
        assert mine is not engine
        graph = mine.compile(chain.model())
        assert graph.run([case.x], case.outputs)
        case.assert_right()
        return True

    assert in_child_blocking(child)


def test_a_child_forked_during_a_run_can_end(c_api: Engine, long_model: bytes) -> None:
    graph = c_api.compile(long_model)
    with under_way(graph) as run:
        assert in_child_blocking(lambda: graph.close() or "ended") == "ended"
    assert run.outcome is True


AT_THE_END = """
import atexit, os, threading

# Called last: what is registered later is called before.
atexit.register(lambda: all(each.wait(20) for each in interrupted) or os._exit(3))

import numpy as np
from asyncnn.devices.litert.chain_model import Chain
from asyncnn.devices.litert.engine import load_engine

engine = load_engine({backend!r})
begun = threading.Barrier({threads} + 1)
interrupted = [threading.Event() for _ in range({threads})]

def work(is_interrupted):
    graph = engine.compile(Chain({links}, 32, 128).model())
    x = np.zeros((32, 128), np.float32)
    outputs = [x.copy(), x.copy()]
    begun.wait()
    while True:
        if not graph.run([x], outputs):
            is_interrupted.set()

for each in interrupted:
    threading.Thread(target=work, args=[each], daemon=True).start()
begun.wait()
"""


@pytest.mark.parametrize("backend", ["c_api", "interpreter"])
def test_the_end_of_a_process_ends_runs_first(backend: str) -> None:
    script = AT_THE_END.format(backend=backend, links=200, threads=2)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")


def resident_kb() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise AssertionError("the system does not say")


def held() -> tuple[int, int]:
    """Return the numbers of descriptors and mappings of this process."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return len(os.listdir("/proc/self/fd")), len(maps)


def check_nothing_is_left(
    work: Callable[[int], None], few: int, many: int, most_kb: int
) -> None:
    work(few)
    before, resident = held(), resident_kb()
    work(many)
    assert held()[0] == before[0]
    assert abs(held()[1] - before[1]) <= 3
    assert resident_kb() - resident < most_kb


@pytest.mark.alone
class TestLeaks:
    def test_runs_leave_nothing_behind(
        self, engine: Engine, chain: Chain, case: Case
    ) -> None:
        graph = engine.compile(chain.model())

        def runs(number: int) -> None:
            for _ in range(number):
                outputs = [np.empty_like(output) for output in case.outputs]
                assert graph.run([case.x.copy()], outputs)

        check_nothing_is_left(runs, 200, 1000, most_kb=512)

    def test_interrupted_runs_leave_nothing_behind(
        self, c_api: Engine, chain: Chain, case: Case
    ) -> None:
        graph = c_api.compile(chain.model())
        graph.interrupt()
        for _ in range(200):
            graph.run([case.x], case.outputs)
        resident = resident_kb()
        for _ in range(2000):
            graph.run([case.x], case.outputs)
        assert resident_kb() - resident < 256

    def test_graphs_leave_nothing_behind(
        self, engine: Engine, chain: Chain, case: Case
    ) -> None:
        model = chain.model()

        def compile_some(number: int) -> None:
            for _ in range(number):
                graph = engine.compile(model)
                assert graph.run([case.x], case.outputs)
                graph.close()

        check_nothing_is_left(compile_some, 30, 100, most_kb=1024)
