"""Plans that an engine computes alone, in one call and segment by segment."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from asyncnn.engine.job import COPIED_BYTES, Job
from asyncnn.engine.plan_execution import MOST_INTERRUPTED, PlanExecution, run_bound
from asyncnn.hal.errors import (
    AsyncnnError,
    GeneralFailureError,
    InvalidArgumentError,
    MissedDeadlineTransientError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import ErrorStatus
from asyncnn.kernels.kernel import MOST_ATTEMPTS
from asyncnn.pacing import TimedPause
from asyncnn.qos import Pause
from tests.engine.scripted import (
    INTERRUPTED,
    Chain,
    Way,
    arrays,
    is_untouched,
    meanwhile,
)
from tests.forks import in_child_blocking

ABORTED = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT


@pytest.mark.parametrize("links", [1, 2, 7])
@pytest.mark.parametrize("elements", [1, 5, COPIED_BYTES // 4, COPIED_BYTES])
@pytest.mark.parametrize("offset", [0, 4, 64])
def test_a_run_computes_what_its_segments_do(
    way: Way, links: int, elements: int, offset: int
) -> None:
    chain = Chain(way, links, elements)
    for _ in range(3):
        x, y = arrays(elements, offset=offset)
        assert chain.execution(x, y, None).advance(Pause())
        np.testing.assert_array_equal(y, x + chain.total)
        y.fill(np.nan)
        run_bound(chain.program, chain.plan, [x, y])
        np.testing.assert_array_equal(y, x + chain.total)
    assert [graph.script.ended for graph in chain.graphs] == [6] * links


@pytest.mark.parametrize("links", [1, 3])
def test_a_run_on_several_threads_goes_on_as_it_has_begun(way: Way, links: int) -> None:
    chain = Chain(way, links)
    x, y = arrays()
    for first, then in (1, 2), (2, 1), (2, 2), (1, 1):
        y.fill(np.nan)
        execution = chain.execution(x, y)
        pause = Pause()
        pause.threads = first
        pause.request()
        while not execution.advance(pause):
            pause.threads = then
        np.testing.assert_array_equal(y, x + chain.total)
    assert [graph.script.ended for graph in chain.graphs] == [4] * links


@pytest.mark.parametrize("at", [0, 2])
def test_an_abort_ends_the_segment_under_way_and_touches_no_output(
    way: Way, at: int
) -> None:
    chain = Chain(way, 3)
    graph = chain.graphs[at]
    graph.script.waits = 1
    x, y = arrays()
    execution = chain.execution(x, y)

    def abort() -> None:
        graph.wait_until_begun()
        execution.abort(ABORTED)

    with meanwhile(abort), pytest.raises(ResourceExhaustedTransientError):
        execution.advance(Pause())
    assert is_untouched(y)
    assert [each.script.begun for each in chain.graphs] == [1] * (at + 1) + [0] * (
        2 - at
    )
    graph.script.waits = 0
    assert chain.execution(x, y).advance(Pause())
    np.testing.assert_array_equal(y, x + chain.total)


def test_an_abort_before_the_first_segment_is_seen(way: Way) -> None:
    chain = Chain(way, 2)
    execution = chain.execution(*arrays())
    execution.abort(ABORTED)
    with pytest.raises(ResourceExhaustedTransientError):
        execution.advance(Pause())
    assert chain.graphs[0].script.begun == 0


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_pause_goes_on_with_the_segment_that_it_interrupted(
    way: Way, at: int
) -> None:
    chain = Chain(way, 3)
    graph = chain.graphs[at]
    graph.script.waits = 1
    x, y = arrays()
    execution, pause = chain.execution(x, y), Pause()

    def request() -> None:
        graph.wait_until_begun()
        pause.request()

    with meanwhile(request):
        assert not execution.advance(pause)
    assert pause.interrupt is None
    assert is_untouched(y)
    graph.script.waits = 0
    assert execution.advance(Pause())
    np.testing.assert_array_equal(y, x + chain.total)
    begun = [1 + (number == at) for number in range(3)]
    assert [each.script.begun for each in chain.graphs] == begun


def test_a_run_that_is_asked_before_makes_progress_each_time(way: Way) -> None:
    chain = Chain(way, 4)
    x, y = arrays()
    run_bound(chain.program, chain.plan, [x, y])
    execution, pause = chain.execution(x, y), Pause()
    pause.request()
    for done in range(1, 4):
        assert not execution.advance(pause)
        assert [each.script.ended for each in chain.graphs] == [2] * done + [1] * (
            4 - done
        )
    assert execution.advance(pause)


def test_a_pause_by_the_clock_is_seen_between_segments(way: Way) -> None:
    chain = Chain(way, 3)
    graph = chain.graphs[0]
    x, y = arrays()
    run_bound(chain.program, chain.plan, [x, y])  # a workspace is there from now on
    graph.script.waits = 1
    execution, pause = chain.execution(x, y), TimedPause(time.monotonic_ns() + 10**7)

    def release() -> None:
        graph.wait_until_begun(2)
        while not pause.requested:
            time.sleep(0.001)
        graph.script.waits = 0

    with meanwhile(release):
        assert not execution.advance(pause)
    assert [each.script.ended for each in chain.graphs] == [2, 1, 1]
    assert execution.advance(TimedPause(time.monotonic_ns() + 10**12))
    assert [each.script.ended for each in chain.graphs] == [2, 2, 2]


def test_a_segment_is_interrupted_for_pauses_a_few_times_only(way: Way) -> None:
    chain = Chain(way, 2)
    graph = chain.graphs[1]
    graph.script.waits = 1
    x, y = arrays()
    execution = chain.execution(x, y)
    for number in range(MOST_INTERRUPTED):
        pause = Pause()

        def request(times: int = number + 1, pause: Pause = pause) -> None:
            graph.wait_until_begun(times)
            pause.request()

        with meanwhile(request):
            assert not execution.advance(pause)
    last = Pause()

    def release() -> None:
        graph.wait_until_begun(MOST_INTERRUPTED + 1)
        last.request()
        graph.script.waits = 0

    with meanwhile(release):
        assert execution.advance(last)
    assert graph.script.begun == MOST_INTERRUPTED + 1
    np.testing.assert_array_equal(y, x + chain.total)


def test_a_late_interrupt_changes_nothing(way: Way) -> None:
    chain = Chain(way, 1)
    (graph,) = chain.graphs
    graph.script.waits = 1
    x, y = arrays()

    def interrupt() -> None:
        graph.wait_until_begun()
        graph.interrupt()
        graph.wait_until_begun(2)
        graph.script.waits = 0

    with meanwhile(interrupt):
        assert chain.execution(x, y).advance(Pause())
    np.testing.assert_array_equal(y, x + 1)


@pytest.mark.parametrize("is_inline", [False, True])
def test_one_that_ends_early_each_time_fails(way: Way, is_inline: bool) -> None:
    chain = Chain(way, 2)
    chain.graphs[1].script.fails_with = INTERRUPTED
    x, y = arrays()
    execution = chain.execution(x, y)
    inline = partial(run_bound, chain.program, chain.plan, [x, y])
    with pytest.raises(GeneralFailureError, match=r"ADD failed.*interrupted each time"):
        inline() if is_inline else execution.advance(Pause())
    assert chain.graphs[1].script.begun == MOST_ATTEMPTS
    assert is_untouched(y)


def test_what_an_engine_says_is_the_error(way: Way) -> None:
    chain = Chain(way, 2)
    chain.graphs[1].script.fails_with = 3
    x, y = arrays()
    with pytest.raises(GeneralFailureError, match="the engine says 3"):
        chain.execution(x, y).advance(Pause())
    with pytest.raises(GeneralFailureError, match="the engine says 3"):
        run_bound(chain.program, chain.plan, [x, y])
    assert is_untouched(y)
    chain.graphs[1].script.fails_with = 0
    assert chain.execution(x, y).advance(Pause())


def test_a_deadline_is_looked_at_between_segments(way: Way) -> None:
    chain = Chain(way, 3)
    graph = chain.graphs[1]
    graph.script.waits = 1
    x, y = arrays()
    due_ns = time.monotonic_ns() + 10**9
    execution = chain.execution(x, y, due_ns)

    def release() -> None:
        graph.wait_until_begun()
        while time.monotonic_ns() <= due_ns:
            time.sleep(0.001)
        graph.script.waits = 0

    with meanwhile(release), pytest.raises(MissedDeadlineTransientError):
        execution.advance(Pause())
    assert chain.graphs[2].script.begun == 0
    assert is_untouched(y)
    part_ns, step = execution.longest_part()
    assert part_ns > 0
    assert step is chain.plan.steps[1]


def test_a_deadline_ends_the_segment_under_way(way: Way) -> None:
    if way != "job" or Job is None:
        pytest.skip("segments that run one by one are interrupted by others")
    chain = Chain(way, 2)
    graph = chain.graphs[1]
    graph.script.waits = 1
    x, y = arrays()
    execution = chain.execution(x, y, time.monotonic_ns() + 10**7)
    with pytest.raises(MissedDeadlineTransientError):
        execution.advance(Pause())
    assert graph.script.begun == 1
    assert is_untouched(y)
    graph.script.waits = 0
    assert chain.execution(x, y).advance(Pause())


def test_the_part_under_way_is_told(way: Way) -> None:
    chain = Chain(way, 2)
    graph = chain.graphs[1]
    x, y = arrays()
    run_bound(chain.program, chain.plan, [x, y])
    graph.script.waits = 1
    execution = chain.execution(x, y, time.monotonic_ns() + 10**12)

    def look() -> None:
        graph.wait_until_begun(2)
        begun_ns = time.monotonic_ns()
        while execution.longest_part()[0] < 1_000_000:
            assert time.monotonic_ns() < begun_ns + 10**10
        assert execution.longest_part()[1] is chain.plan.steps[1]
        graph.script.waits = 0

    with meanwhile(look):
        assert execution.advance(Pause())


def test_a_deadline_that_has_passed_ends_it_before_it_begins(way: Way) -> None:
    chain = Chain(way, 1)
    x, y = arrays()
    run_bound(chain.program, chain.plan, [x, y])
    for due_ns in (time.monotonic_ns(), 0, -5):
        with pytest.raises(MissedDeadlineTransientError):
            chain.execution(x, y, due_ns).advance(Pause())
    assert chain.graphs[0].script.begun == 1


def test_other_threads_go_on_while_it_runs(way: Way) -> None:
    chain = Chain(way, 1)
    (graph,) = chain.graphs
    graph.script.waits = 1
    counted: list[int] = []

    def count() -> None:
        graph.wait_until_begun()
        counted.extend(range(1000))
        graph.script.waits = 0

    with meanwhile(count):
        assert chain.execution(*arrays()).advance(Pause())
    assert len(counted) == 1000


def test_a_signal_waits_for_the_end_and_harms_nothing(way: Way) -> None:
    chain = Chain(way, 1)
    (graph,) = chain.graphs
    graph.script.waits = 1
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    x, y = arrays()

    def send() -> None:
        graph.wait_until_begun()
        os.kill(os.getpid(), signal.SIGUSR1)
        graph.script.waits = 0

    try:
        with meanwhile(send):
            assert chain.execution(x, y).advance(Pause())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == [signal.SIGUSR1]
    np.testing.assert_array_equal(y, x + 1)


def test_a_graph_is_not_freed_while_it_runs(way: Way) -> None:
    chain = Chain(way, 2)
    graph = chain.graphs[1]
    graph.script.waits = 1
    x, y = arrays()

    def close() -> None:
        graph.wait_until_begun()
        graph.close()
        assert not graph.script.is_freed
        assert not graph.stop(0)
        graph.script.waits = 0

    with meanwhile(close):
        assert chain.execution(x, y).advance(Pause())
    np.testing.assert_array_equal(y, x + chain.total)
    assert graph.script.is_freed
    with pytest.raises(AsyncnnError, match="the compiled graph is closed"):
        chain.execution(x, y).advance(Pause())


def test_a_graph_that_has_ended_stops_its_run_and_all_others(way: Way) -> None:
    """As that of a process that ends has, whose run would go on beside its end."""
    chain = Chain(way, 2)
    graph = chain.graphs[0]
    graph.script.waits = 1

    def end() -> None:
        graph.wait_until_begun()
        graph.end()

    for _ in range(2):
        with meanwhile(end), pytest.raises(GeneralFailureError, match="each time"):
            chain.execution(*arrays()).advance(Pause())
    assert chain.graphs[1].script.begun == 0


def test_a_forked_child_refuses(way: Way) -> None:
    chain = Chain(way, 2)
    x, y = arrays()
    run_bound(chain.program, chain.plan, [x, y])

    def child() -> str:
        try:
            chain.execution(x, y).advance(Pause())
        except AsyncnnError as error:
            return error.message
        return "it has run"

    assert "belongs to the process that opened it" in in_child_blocking(child)
    assert chain.execution(x, y).advance(Pause())


def test_a_graph_serves_one_run_at_a_time(way: Way) -> None:
    chain = Chain(way, 1)
    (graph,) = chain.graphs
    graph.script.waits = 1
    x, y = arrays()

    def run() -> None:
        assert chain.execution(x, y).advance(Pause())

    with meanwhile(run):
        graph.wait_until_begun()
        try:
            with pytest.raises(AsyncnnError, match="runs in another thread"):
                chain.execution(*arrays()).advance(Pause())
        finally:
            graph.script.waits = 0
    np.testing.assert_array_equal(y, x + 1)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda x, y: [x[:3], y], r"input 0 is float32\[3\]"),
        (lambda x, y: [x.astype(np.int32), y], r"input 0 is int32\[4\]"),
        (lambda x, y: [np.zeros(8, np.float32)[::2], y], "input 0 is not C-contiguous"),
        (lambda x, y: [x, np.broadcast_to(y[:1], 4)], "output 0 is"),
        (lambda x, y: [x, y.astype(np.float64)], r"output 0 is float64\[4\]"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    way: Way, spoil: Callable[[Array, Array], list[Any]], message: str
) -> None:
    chain = Chain(way, 1)
    x, y = arrays()
    given, place = spoil(x, y)
    execution = PlanExecution(chain.program, chain.plan, [given], [place])
    with pytest.raises(InvalidArgumentError, match=message):
        execution.advance(Pause())
    assert chain.graphs[0].script.begun == 0
    assert chain.execution(x, y).advance(Pause())


@pytest.mark.parametrize(
    "count", [2000, pytest.param(100_000, marks=[pytest.mark.exhaustive])]
)
@pytest.mark.timeout(900)
def test_whatever_happens_at_any_time_has_one_right_end(way: Way, count: int) -> None:
    """Aborts, pauses and deadlines at random, by another thread, in a chain of four."""
    chain = Chain(way, 4, 64)
    seed = random.randrange(2**32)
    choose = random.Random(seed)
    under_way: list[tuple[PlanExecution, Pause]] = []
    is_over = threading.Event()

    def disturb() -> None:
        picks = random.Random(seed + 1)
        while not is_over.is_set():
            if picks.random() < 0.7:
                time.sleep(picks.random() * 1e-4)
            found = under_way[-1:]
            for execution, pause in found:
                kind = picks.random()
                if kind < 0.2:
                    execution.abort(ABORTED)
                elif kind < 0.8:
                    pause.request()

    ends = dict.fromkeys(("done", "aborted", "late"), 0)
    x, y = arrays(64)
    with meanwhile(disturb):
        try:
            while sum(ends.values()) < count or not all(ends.values()):
                y.fill(np.nan)
                for graph in chain.graphs:
                    graph.script.parts = choose.choice((1, 4, 64))
                due_ns = None
                if choose.random() < 0.3:
                    due_ns = time.monotonic_ns() + choose.randrange(200_000)
                execution = chain.execution(x, y, due_ns)
                try:
                    while True:
                        pause = Pause()
                        under_way[:] = [(execution, pause)]
                        if execution.advance(pause):
                            break
                    under_way.clear()
                    np.testing.assert_array_equal(y, x + chain.total, f"seed {seed}")
                    ends["done"] += 1
                except ResourceExhaustedTransientError:
                    assert is_untouched(y), seed
                    ends["aborted"] += 1
                except MissedDeadlineTransientError:
                    assert due_ns is not None
                    assert is_untouched(y), seed
                    ends["late"] += 1
        finally:
            is_over.set()
    y.fill(np.nan)
    assert chain.execution(x, y).advance(Pause())
    np.testing.assert_array_equal(y, x + chain.total)
