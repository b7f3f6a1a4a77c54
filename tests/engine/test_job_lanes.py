"""Runs on lanes: threads in C, beside an interpreter that is busy elsewhere."""

import os
import random
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from weakref import ref

import numpy as np
import pytest

from asyncnn.engine.job import (
    COPIED_BYTES,
    DONE,
    LATE,
    PAUSED,
    STOPPED,
    Control,
    IControl,
    Job,
)
from asyncnn.engine.plan_execution import MOST_INTERRUPTED
from asyncnn.hal.errors import AsyncnnError, GeneralFailureError, InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.kernels.kernel import MOST_ATTEMPTS
from asyncnn.qos import Pause
from asyncnn.qos.native_lanes import Ended
from tests.engine.offered import LIMIT_S, Desk, Links
from tests.engine.scripted import INTERRUPTED, BuiltGraph, arrays, is_untouched
from tests.forks import in_child_blocking

pytestmark = pytest.mark.skipif(Job is None, reason="there is no compiled job")


@pytest.fixture
def desk() -> Iterator[Desk]:
    with closing(Desk()) as desk:
        yield desk


@contextmanager
def held(graph: BuiltGraph) -> Iterator[None]:
    """Have the graph wait while the block lasts."""
    graph.script.waits = 1
    try:
        yield
    finally:
        graph.script.waits = 0


@pytest.mark.parametrize("links", [1, 5])
@pytest.mark.parametrize("elements", [1, COPIED_BYTES // 4, COPIED_BYTES])
def test_a_lane_computes_what_its_segments_do(
    desk: Desk, links: int, elements: int
) -> None:
    chain, lane = Links(links, elements), desk.lane()
    for number in range(3):
        _, x, y = chain.offer(lane, number)
        assert desk.wait() == [number]
        _, outcome, started_ns, ended_ns, cpu_ns = desk.ended[number]
        assert outcome == DONE
        assert started_ns <= ended_ns <= time.monotonic_ns()
        assert 0 <= cpu_ns <= ended_ns - started_ns + 10**6
        np.testing.assert_array_equal(y, x + chain.total)


def test_it_runs_while_the_interpreter_is_held(desk: Desk) -> None:
    chain, lane = Links(), desk.lane()
    _, x, y = chain.offer(lane)
    due_ns = time.monotonic_ns() + LIMIT_S * 10**9
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(LIMIT_S)  # nobody else has the interpreter until that is over
    try:
        while not chain.graphs[0].script.ended:
            assert time.monotonic_ns() < due_ns
    finally:
        sys.setswitchinterval(interval_s)
    assert desk.wait() == ["token"]
    assert desk.outcome() == DONE
    np.testing.assert_array_equal(y, x + 1)


def test_a_lane_looks_for_its_next_run_for_a_moment_only(desk: Desk) -> None:
    chain, lane = Links(), desk.lane()
    for number in range(100):
        chain.offer(lane, number)
        assert desk.wait() == [number]
    begun = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - begun < 0.05
    _, x, y = chain.offer(lane)  # by then it sleeps
    assert desk.wait() == ["token"]
    np.testing.assert_array_equal(y, x + 1)


def test_a_lane_that_looks_for_its_next_run_ends(desk: Desk) -> None:
    for _ in range(50):
        chain, lane = Links(), desk.lane()
        for number in range(3):
            chain.offer(lane, number)
            assert desk.wait() == [number]
        lane.close()
        due = time.monotonic() + LIMIT_S
        while not lane.has_ended:
            assert time.monotonic() < due


@pytest.mark.parametrize("at", [0, 2])
def test_a_stop_ends_the_segment_under_way(desk: Desk, at: int) -> None:
    chain, lane = Links(3), desk.lane()
    with held(chain.graphs[at]):
        control, _, y = chain.offer(lane)
        chain.graphs[at].wait_until_begun()
        control.stop()
        assert desk.wait() == ["token"]
    assert desk.outcome() == STOPPED
    assert is_untouched(y)
    assert control.position == at


def test_a_paused_run_goes_on(desk: Desk) -> None:
    chain, lane = Links(3), desk.lane()
    with held(chain.graphs[1]):
        control, x, y = chain.offer(lane)
        chain.graphs[1].wait_until_begun()
        control.pause()
        desk.wait()
    assert desk.outcome() == PAUSED
    assert control.position == 1
    chain.offer(lane, control=control, given=(x, y))
    desk.wait()
    assert desk.outcome() == DONE
    np.testing.assert_array_equal(y, x + chain.total)
    assert chain.graphs[0].script.begun == 1


def test_it_pauses_by_the_clock_and_makes_progress_each_time(desk: Desk) -> None:
    chain, lane = Links(4), desk.lane()
    control, x, y = chain.offer(lane, review_ns=1)
    for position in range(1, 4):
        desk.wait()
        assert desk.outcome() == PAUSED
        assert control.position == position
        chain.offer(lane, review_ns=1, control=control, given=(x, y))
    desk.wait()
    assert desk.outcome() == DONE
    np.testing.assert_array_equal(y, x + chain.total)
    asked = Pause()
    asked.request()
    control, *_ = chain.offer(lane, pause=asked)
    desk.wait()
    assert desk.outcome() == PAUSED
    assert control.position == 1


def test_a_segment_is_interrupted_for_pauses_a_few_times_only(desk: Desk) -> None:
    chain, lane = Links(), desk.lane()
    graph = chain.graphs[0]
    with held(graph):
        control, x, y = chain.offer(lane)
        for times in range(1, MOST_INTERRUPTED + 1):
            graph.wait_until_begun(times)
            control.pause()
            desk.wait()
            assert desk.outcome() == PAUSED
            chain.offer(lane, control=control, given=(x, y))
        graph.wait_until_begun(MOST_INTERRUPTED + 1)
        control.pause()
    desk.wait()
    assert desk.outcome() == DONE
    assert graph.script.begun == MOST_INTERRUPTED + 1
    np.testing.assert_array_equal(y, x + 1)


@pytest.mark.parametrize("due_ns", [-5, 0, 1])
def test_a_deadline_that_has_passed_ends_it_before_it_begins(
    desk: Desk, due_ns: int
) -> None:
    chain, lane = Links(), desk.lane()
    *_, y = chain.offer(lane, deadline_ns=due_ns)
    desk.wait()
    assert desk.outcome() == LATE
    assert chain.graphs[0].script.begun == 0
    assert is_untouched(y)


def test_a_deadline_is_looked_at_between_segments(desk: Desk) -> None:
    chain, lane = Links(2), desk.lane()
    with held(chain.graphs[0]):
        due_ns = time.monotonic_ns() + 10**7
        control, *_ = chain.offer(lane, deadline_ns=due_ns)
        chain.graphs[0].wait_until_begun()
        while time.monotonic_ns() < due_ns:
            time.sleep(0.001)
    desk.wait()
    assert desk.outcome() == LATE
    assert chain.graphs[1].script.begun == 0
    assert control.longest()[3] == 0


def test_what_an_engine_says_is_the_error(desk: Desk) -> None:
    chain, lane = Links(2), desk.lane()
    chain.graphs[1].script.fails_with = 3
    control, _, y = chain.offer(lane)
    desk.wait()
    with pytest.raises(GeneralFailureError, match="the engine says 3"):
        desk.outcome()
    assert is_untouched(y)
    chain.graphs[1].script.fails_with = INTERRUPTED
    control, x, y = chain.offer(lane)
    for _ in range(MOST_ATTEMPTS - 1):
        desk.wait()
        assert desk.outcome() == PAUSED
        chain.offer(lane, control=control, given=(x, y))
    desk.wait()
    with pytest.raises(RuntimeError, match="interrupted each time"):
        desk.outcome()
    chain.graphs[1].script.fails_with = 0
    control, x, y = chain.offer(lane)
    desk.wait()
    assert desk.outcome() == DONE


def test_what_does_not_fit_is_refused_before(desk: Desk) -> None:
    chain, lane = Links(), desk.lane()
    x, y = arrays()
    for wrong in (x[:3], x.astype(np.int32), np.zeros(8, np.float32)[::2]):
        with pytest.raises(InvalidArgumentError):
            chain.offer(lane, given=(wrong, y))
    for wrong_lane in (None, "lane", chain.job):
        with pytest.raises(TypeError):
            chain.offer(wrong_lane)  # type: ignore[arg-type]
    control, *_ = chain.offer(lane)
    with pytest.raises(ValueError, match=r"under way|no run now"):
        chain.offer(lane, control=control)  # until it was drained
    desk.wait()
    assert chain.graphs[0].stop(0)
    with pytest.raises(AsyncnnError):
        chain.offer(lane)


def test_a_graph_is_of_one_lane_at_a_time_and_freed_behind_its_runs(desk: Desk) -> None:
    chain, lane, other = Links(), desk.lane(), desk.lane()
    graph = chain.graphs[0]
    with held(graph):
        chain.offer(lane)
        for refused in (
            lambda: chain.offer(other),
            lambda: chain.job.run(arrays(), Control()),
        ):
            with pytest.raises(AsyncnnError, match="runs in another thread"):
                refused()
        graph.wait_until_begun()
        graph.close()
        assert not graph.script.is_freed
    desk.wait()
    assert desk.outcome() == DONE
    assert graph.script.is_freed


def test_closing_waits_for_the_segment_under_way_and_no_more_is_taken() -> None:
    desk = Desk()
    chain, lane = Links(), desk.lane()
    with held(chain.graphs[0]):
        _, x, y = chain.offer(lane)
        chain.graphs[0].wait_until_begun()
        lane.close()
        assert not lane.has_ended
        with pytest.raises(ValueError, match="no run now"):
            Links().offer(lane)
    desk.wait()
    assert desk.outcome() == DONE
    np.testing.assert_array_equal(y, x + 1)
    desk.close()
    assert lane.has_ended


def test_a_run_may_end_when_nobody_is_there_any_more() -> None:
    """The loop has died: what its lanes still do harms nobody."""
    desk = Desk()
    chain, lane = Links(), desk.lane()
    with held(chain.graphs[0]):
        chain.offer(lane)
        chain.graphs[0].wait_until_begun()
        os.close(desk.fd)
        desk.lanes.clear()
        desk.port = None  # type: ignore[assignment]
        del lane, desk
    while not chain.graphs[0].script.ended:
        time.sleep(0.0001)


def test_what_has_ended_is_freed_with_its_port() -> None:
    desk = Desk()
    chain, lane = Links(), desk.lane()
    _, x, _ = chain.offer(lane)
    given = ref(x)
    assert select.select([desk.fd], [], [], LIMIT_S)[0]
    desk.close()
    del x
    assert given() is not None
    desk.port = None  # type: ignore[assignment]
    assert given() is None


def test_a_forked_child_has_no_lanes(desk: Desk) -> None:
    chain, lane = Links(), desk.lane()

    def child() -> str:
        assert lane.has_ended
        lane.close()
        try:
            chain.offer(lane)
        except (ValueError, AsyncnnError) as error:
            return str(error)
        return "it has run"

    with held(chain.graphs[0]):
        chain.offer(lane)
        chain.graphs[0].wait_until_begun()
        assert "no run now" in in_child_blocking(child)
    desk.wait()
    assert desk.outcome() == DONE


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="there is no /proc")
def test_its_thread_has_a_name_a_nice_value_and_no_signals(desk: Desk) -> None:
    chain, nice = Links(), str(min(os.nice(0) + 5, 19))
    lane = desk.lane("of a test, long", nice=5)
    with held(chain.graphs[0]):
        chain.offer(lane)
        chain.graphs[0].wait_until_begun()
        tasks = Path("/proc/self/task").iterdir()
        (task,) = (
            task
            for task in tasks
            if task.joinpath("comm").read_text() == "of a test, long\n"
        )
        state = task.joinpath("status").read_text()
        (blocked,) = (line for line in state.splitlines() if line.startswith("SigBlk"))
        assert int(blocked.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1
        assert task.joinpath("stat").read_text().rpartition(")")[2].split()[16] == nice
    desk.wait()
    assert desk.outcome() == DONE


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize(
    "runs", [300, pytest.param(20000, marks=pytest.mark.exhaustive)]
)
def test_a_storm_loses_no_run_and_no_order(desk: Desk, lanes: int, runs: int) -> None:
    """Stops, pauses and deadlines at random: each run comes back once."""
    seed = random.randrange(2**32)
    note = f"seed {seed}"
    choose = random.Random(seed)
    chains = [(Links(3), desk.lane()) for _ in range(lanes)]
    waiting: list[list[tuple[int, IControl, Array, Array]]] = [[] for _ in chains]
    away: dict[int, tuple[int, IControl, Array, Array]] = {}
    outcomes = [0] * 4
    begun = ended = 0
    drained: list[Ended] = []

    def settle(number: int, outcome: int | BaseException) -> None:
        nonlocal ended
        assert isinstance(outcome, int)
        at, control, x, y = away.pop(number)
        if outcome == PAUSED:
            # Its memory is that of the job: what has stopped in the middle goes first.
            waiting[at].insert(0, (number, control, x, y))
            return
        ended += 1
        outcomes[outcome] += 1
        if outcome == DONE:
            np.testing.assert_array_equal(y, x + chains[at][0].total, note)
        else:
            assert is_untouched(y), note

    while ended < runs:
        for at, (chain, lane) in enumerate(chains):
            if begun < runs and len(waiting[at]) < 3:
                x, y = arrays()
                x += begun
                waiting[at].append((begun, Control(), x, y))
                begun += 1
            if all(a != at for a, *_ in away.values()) and waiting[at]:
                number, control, x, y = waiting[at].pop(0)
                due_ns = review_ns = None
                if choose.random() < 0.2:
                    due_ns = time.monotonic_ns() + choose.randrange(10**5)
                if choose.random() < 0.2:
                    review_ns = time.monotonic_ns() + choose.randrange(10**4)
                more = (due_ns, Pause(), review_ns)
                chain.job.offer(lane, number, (x, y), control, *more)
                away[number] = at, control, x, y
        for _, control, *_ in away.values():
            if choose.random() < 0.2:
                choose.choice([control.stop, control.pause])()
        desk.port.drain(drained)
        while drained:
            number, outcome, *_ = drained.pop(0)
            assert outcome is not None
            settle(number, outcome)
    assert not away, note
    assert not any(waiting), note
    assert sum(outcomes) == begun == runs, note
    assert outcomes[DONE], note


def test_the_loop_comes_again_if_it_was_interrupted_behind_what_it_took(
    desk: Desk,
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    ended: list[Ended] = []
    Links().offer(desk.lane())
    assert select.select([desk.fd], [], [], LIMIT_S)[0]
    with pytest.raises(KeyboardInterrupt):
        desk.port.bring(ended, interrupt)
    assert len(ended) == 1
    assert select.select([desk.fd], [], [], 0)[0]
