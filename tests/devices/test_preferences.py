"""What execution preferences change: threads, what is kept ready, and shares."""

import asyncio
import errno
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from asyncnn.devices import DeviceSettings, compiled_graph, executable
from asyncnn.devices.compiled_graph import CompiledGraph
from asyncnn.devices.executable import (
    CALM,
    CALM_OF_LONG,
    CALM_OF_LONGEST,
    WORTH_SPREADING_NS,
    Spreading,
)
from asyncnn.devices.litert.c_api_engine import CApiEngine
from asyncnn.engine import Program
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.types import ExecutionPreference
from asyncnn.pacing import Steps, completed
from asyncnn.qos import Client, acting_for
from asyncnn.runtime.opening_devices import open_device
from tests.measuring import best_of
from tests.networks import chain
from tests.waits import until

pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
from tests.devices.test_accelerated import X, layers

FAST = ExecutionPreference.FAST_SINGLE_ANSWER
SUSTAINED = ExecutionPreference.SUSTAINED_SPEED
FRUGAL = ExecutionPreference.LOW_POWER
LONG_NS = 2 * WORTH_SPREADING_NS


class FakeProgram(Program):
    """Remembers for how many threads it was widened."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.widened: list[int] = []
        self.trimmed = 0
        self.failure = failure

    def widening(self, threads: int) -> Steps[None]:
        yield
        self.widened.append(threads)
        if self.failure is not None:
            raise self.failure

    def trim(self) -> int:
        self.trimmed += 1
        return 0


def decisions(
    decider: Spreading, count: int, took_ns: Callable[[int], int], lanes_each: int = 2
) -> list[int]:
    """Return the threads of so many executions in a row."""
    made = []
    for _ in range(count):
        threads = decider.threads(lanes_each)
        decider.observe(threads, took_ns(threads))
        made.append(threads)
    return made


class TestDeciding:
    def test_several_threads_are_kept_if_they_gain(self) -> None:
        program = FakeProgram()
        decider = Spreading(program, 2, completed)
        made = decisions(decider, 400, lambda threads: LONG_NS // threads)
        assert made[: CALM + 1].count(2) <= 1
        assert program.widened == [2]
        # Now and then the other way is tried.
        assert 390 - CALM <= made.count(2) < 400 - CALM

    @pytest.mark.parametrize(
        ("long", "needed"), [(3, CALM_OF_LONG), (10, CALM_OF_LONGEST)]
    )
    def test_those_that_take_long_have_several_sooner(
        self, long: int, needed: int
    ) -> None:
        decider = Spreading(FakeProgram(), 2, completed)
        made = decisions(decider, 20, lambda threads: long * LONG_NS // threads)
        assert made[:-1] == [1] * needed + [2] * (19 - needed)

    def test_those_that_take_long_are_tried_again_sooner(self) -> None:
        decider = Spreading(FakeProgram(), 2, completed)
        decisions(decider, 6, lambda _: 10 * LONG_NS)  # on busy processors
        made = decisions(decider, 40, lambda threads: 10 * LONG_NS // threads)
        assert made.index(2) < 20
        assert made[-1] == 2

    def test_they_are_given_up_if_they_do_not(self) -> None:
        decider = Spreading(FakeProgram(), 2, completed)
        made = decisions(decider, 10_000, lambda _: LONG_NS)
        assert 5 <= made.count(2) <= 12

    def test_trials_end_early_where_they_take_long(self) -> None:
        decider = Spreading(FakeProgram(), 2, completed)
        made = decisions(decider, 50, lambda threads: LONG_NS * threads**2)
        assert made.count(2) == 2  # the first is cold, and may take long for that

    def test_trials_go_on_where_all_take_long_by_now(self) -> None:
        decider = Spreading(FakeProgram(), 2, completed)
        decisions(decider, CALM - 1, lambda _: LONG_NS)
        decisions(decider, 1, lambda _: 8 * LONG_NS)  # what else the machine does
        made = decisions(decider, 5, lambda n: 8 * LONG_NS if n == 1 else 12 * LONG_NS)
        assert made.count(2) == 4
        decider = Spreading(FakeProgram(), 2, completed)
        took = iter([10 * LONG_NS, *[LONG_NS // 2] * 400])
        made = decisions(decider, 400, lambda n: LONG_NS if n == 1 else next(took))
        assert made.count(2) > 300

    def test_it_changes_with_what_they_gain(self) -> None:
        decider = Spreading(FakeProgram(), 2, completed)
        assert decisions(decider, 60, lambda n: LONG_NS // n)[-3:] == [2] * 3
        assert decisions(decider, 60, lambda n: LONG_NS * n)[-3:] == [1] * 3

    def test_there_is_one_while_lanes_are_busy_and_for_a_while_afterwards(self) -> None:
        decider = Spreading(FakeProgram(), 4, completed)
        assert decisions(decider, 50, lambda n: LONG_NS // n, 4)[-1] == 4
        assert decider.threads(2) == 1
        made = decisions(decider, CALM + 1, lambda n: LONG_NS // n, 4)
        assert made == [1] * CALM + [4]

    @pytest.mark.parametrize(
        ("long", "gain", "is_kept"), [(10, 2, True), (2, 2, False), (10, 1, False)]
    )
    def test_what_long_ones_gain_by_is_kept(
        self, long: int, gain: int, is_kept: bool
    ) -> None:
        decider = Spreading(FakeProgram(), 2, completed)
        decisions(decider, 1, lambda _: long * LONG_NS)
        assert not decider.is_worth_keeping
        decisions(decider, 10, lambda n: long * LONG_NS // (gain if n > 1 else 1))
        assert decider.is_worth_keeping is is_kept
        decider.begin_anew()
        assert not decider.is_worth_keeping

    def test_what_is_short_never_has_more_than_one(self) -> None:
        program = FakeProgram()
        decider = Spreading(program, 2, completed)
        assert decisions(decider, 100, lambda _: WORTH_SPREADING_NS // 2) == [1] * 100
        assert not program.widened

    def test_after_idleness_it_begins_anew(self) -> None:
        program = FakeProgram()
        decider = Spreading(program, 2, completed)
        decisions(decider, 50, lambda n: LONG_NS // n)
        decider.begin_anew()
        made = decisions(decider, 50, lambda n: LONG_NS // n)
        assert made[:CALM] == [1] * CALM
        assert made[-1] == 2
        assert program.widened == [2, 2]
        assert not program.trimmed

    def test_what_is_made_while_it_rests_is_given_back(self) -> None:
        program, making = FakeProgram(), list[Steps[None]]()
        decider = Spreading(program, 2, making.append)
        for rests in (True, False):
            made = decisions(decider, 50, lambda n: LONG_NS // n)
            assert set(made) == {1}
            if rests:
                decider.begin_anew()
            completed(making.pop())
            assert program.trimmed == 1
        assert decisions(decider, 50, lambda n: LONG_NS // n)[-1] == 2

    def test_what_fails_while_it_rests_is_given_back_and_not_tried_again(self) -> None:
        program, making = FakeProgram(MemoryError()), list[Steps[None]]()
        decider = Spreading(program, 2, making.append)
        decisions(decider, 50, lambda n: LONG_NS // n)
        decider.begin_anew()
        completed(making.pop())
        decisions(decider, 50, lambda n: LONG_NS // n)
        assert (program.trimmed, making) == (1, [])

    @pytest.mark.parametrize(
        "failure",
        [
            GeneralFailureError("no threads"),
            OSError(errno.EMFILE, "no descriptors"),
            MemoryError(),
        ],
    )
    def test_an_engine_that_fails_is_not_asked_again(self, failure: Exception) -> None:
        program = FakeProgram(failure)
        decider = Spreading(program, 2, completed)
        assert decisions(decider, 100, lambda n: LONG_NS // n) == [1] * 100
        assert program.widened == [2]


class Compiled:
    """Counts the graphs that are compiled and the runs, by their threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
        self.graphs: list[int] = []
        self.runs: list[int] = []
        self.wide = weakref.WeakSet[CompiledGraph]()
        self.may_widen = threading.Event()
        self.may_widen.set()
        compile_ = CApiEngine.compile
        attempt = compiled_graph.GraphRun.attempt

        def compiled(
            engine: Any, model: Any, *, threads: int = 1, **others: Any
        ) -> CompiledGraph:
            self.graphs.append(threads)
            if threads > 1 and self.fail_with is not None:
                raise self.fail_with
            graph = compile_(engine, model, threads=threads, **others)
            if threads > 1:
                assert self.may_widen.wait(30)
                self.wide.add(graph)
            return graph

        def attempted(run: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
            self.runs.append(run._threads)
            return attempt(run, inputs, outputs)

        monkeypatch.setattr(CApiEngine, "compile", compiled)
        self.fail_with: OSError | None = None
        monkeypatch.setattr(compiled_graph.GraphRun, "attempt", attempted)
        # So that all runs pass there, those on one thread too.
        monkeypatch.setattr(compiled_graph.GraphRun, "segment", lambda _: None)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Compiled:
    monkeypatch.setattr(executable, "WORTH_SPREADING_NS", 0)
    return Compiled(monkeypatch)


TWO_LANES = DeviceSettings(lanes=2, inline_below_us=0)


class TestThreads:
    async def widened(self, seen: Compiled, run: Callable[[], Any]) -> None:
        """Run until there is a graph for several threads, and some more."""
        async with asyncio.timeout(30):
            while 2 not in seen.runs:
                await run()

    async def test_a_fast_single_answer_has_several_while_lanes_are_idle(
        self, seen: Compiled
    ) -> None:
        async with open_device("accelerated", settings=TWO_LANES) as device:
            prepared = await device.prepare(layers(2), preference=FAST)
            await self.widened(seen, lambda: prepared.run(X))
            np.testing.assert_array_equal((await prepared.run(X))["y"], X / 4)
            seen.runs.clear()
            # Some find the other lane idle: while it wakes up, and at the end.
            await asyncio.gather(*(prepared.run(X) for _ in range(12)))
            assert seen.runs.count(2) < seen.runs.count(1)

    @pytest.mark.parametrize("preference", [SUSTAINED, FRUGAL])
    async def test_others_have_one(
        self, seen: Compiled, preference: ExecutionPreference
    ) -> None:
        async with open_device("accelerated", settings=TWO_LANES) as device:
            prepared = await device.prepare(layers(4), preference=preference)
            for _ in range(2 * CALM):
                await prepared.run(X)
        assert set(seen.runs) == {1}

    @pytest.mark.parametrize(
        "settings", [{"lanes": 1}, {"lanes": 2, "most_threads": 1}]
    )
    async def test_there_are_never_more_than_lanes_or_set(
        self, seen: Compiled, settings: dict[str, int]
    ) -> None:
        given = DeviceSettings(inline_below_us=0, **settings)  # type: ignore[arg-type]
        async with open_device("accelerated", settings=given) as device:
            prepared = await device.prepare(layers(4), preference=FAST)
            for _ in range(2 * CALM):
                await prepared.run(X)
        assert set(seen.runs) == {1}

    async def test_there_is_one_where_no_further_graph_can_be_compiled(
        self, seen: Compiled
    ) -> None:
        async with open_device("accelerated", settings=TWO_LANES) as device:
            prepared = await device.prepare(layers(2), preference=FAST)
            await self.widened(seen, lambda: prepared.run(X))
            # Runs at a time have a workspace each; the second has no such graph yet.
            await asyncio.gather(prepared.run(X), prepared.run(X))
            seen.fail_with = OSError(errno.EMFILE, "no descriptors")
            seen.graphs.clear()
            async with asyncio.timeout(30):
                while 2 not in seen.graphs:
                    await asyncio.gather(prepared.run(X), prepared.run(X))
                    for _ in range(4 * CALM):
                        np.testing.assert_array_equal(
                            (await prepared.run(X))["y"], X / 4
                        )
            assert seen.graphs.count(2) == 1

    async def test_runs_on_several_are_interrupted_as_well(
        self, seen: Compiled
    ) -> None:
        async with open_device("accelerated", settings=TWO_LANES) as device:
            prepared = await device.prepare(layers(8), preference=FAST)
            await self.widened(seen, lambda: prepared.run(X))
            spent_s: list[float] = []
            for _ in range(5):
                begun_s = time.perf_counter()
                await prepared.run(X)
                spent_s.append(time.perf_counter() - begun_s)
            interrupted = 0
            async with asyncio.timeout(60):
                while interrupted < 5:  # where the loop is late, one has ended
                    task = asyncio.create_task(prepared.run(X))
                    await asyncio.sleep(min(spent_s) / 4)
                    if task.cancel():
                        interrupted += 1
                        with pytest.raises(asyncio.CancelledError):
                            await task
            outputs = await prepared.run(X)
            np.testing.assert_allclose(outputs["y"], X / 2.0**8)


def test_an_interrupt_may_come_as_a_run_ends() -> None:
    class Graph:
        interrupts = 0

        def interrupt(self) -> None:
            self.interrupts += 1

    graph = Graph()
    found = iter([graph])

    class Ending(compiled_graph.GraphRun):
        """Lets go of its graph as soon as another thread has looked for it."""

        @property
        def _graph(self) -> Any:
            return next(found, None)

        @_graph.setter
        def _graph(self, graph: Any) -> None: ...

    Ending(None).interrupt()  # type: ignore[arg-type]  # it needs no kernel
    assert graph.interrupts == 1


class TestStayingReady:
    async def ended(self, name: str) -> None:
        """Wait until threads of a name have ended."""
        for thread in threading.enumerate():
            if thread.name == name:
                await asyncio.to_thread(thread.join)

    async def test_sustained_speed_takes_no_memory_before_its_first_run(
        self, seen: Compiled
    ) -> None:
        graphs, models = [], []
        async with open_device("accelerated", settings=TWO_LANES) as device:
            for preference in (SUSTAINED, FAST):
                models.append(await device.prepare(layers(4), preference=preference))
                graphs.append(len(seen.graphs))
            sustained, fast = (await device.statistics()).models
            assert sustained.idle_bytes == fast.idle_bytes
            assert graphs[1] == 2 * graphs[0]

    async def test_it_keeps_threads_and_memory_of_an_idle_device(self) -> None:
        settings = DeviceSettings(lanes=2, inline_below_us=0, idle_after_s=0.05)
        async with open_device("accelerated", settings=settings) as device:
            prepared = {}
            for preference in (SUSTAINED, FAST):
                prepared[preference] = await device.prepare(
                    layers(12), preference=preference
                )
                await prepared[preference].run(X)
            async with asyncio.timeout(10):
                while (await device.statistics()).models[1].idle_bytes:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            statistics = await device.statistics()
            assert statistics.models[0].idle_bytes
            assert statistics.threads >= 1

    async def test_what_is_being_made_as_a_device_becomes_idle_goes_too(
        self, seen: Compiled
    ) -> None:
        settings = DeviceSettings(lanes=2, inline_below_us=0, idle_after_s=0.05)
        async with open_device("accelerated", settings=settings) as device:
            prepared = await device.prepare(layers(2), preference=FAST)
            seen.may_widen.clear()
            async with asyncio.timeout(30):
                while 2 not in seen.graphs:
                    await prepared.run(X)
            await until(lambda: not device.hal.statistics().threads)
            await self.ended("asyncnn-release")
            seen.may_widen.set()
            await self.ended("asyncnn-background")
            assert not seen.wide
            await TestThreads().widened(seen, lambda: prepared.run(X))

    @pytest.mark.parametrize("preference", [SUSTAINED, FAST])
    async def test_other_graphs_go_but_for_one(
        self, seen: Compiled, preference: ExecutionPreference
    ) -> None:
        settings = DeviceSettings(lanes=2, inline_below_us=0, idle_after_s=0.3)
        async with open_device("accelerated", settings=settings) as device:
            prepared = await device.prepare(layers(2), preference=preference)

            async def run_until(graphs: int) -> None:
                """Run on both lanes, which a busy machine may not use at once."""
                while True:
                    runs = (prepared.run(X) for _ in range(12))
                    for outputs in await asyncio.gather(*runs):
                        np.testing.assert_array_equal(outputs["y"], X / 4)
                    if len(seen.graphs) >= graphs:
                        break

            async with asyncio.timeout(20):
                await run_until(2)
                assert seen.graphs == [1, 1]
                await asyncio.sleep(1)
                graphs = 2 if preference is SUSTAINED else 3
                await run_until(graphs)
                assert seen.graphs == [1] * graphs


@pytest.mark.alone
async def test_low_power_has_a_quarter_of_its_clients_share() -> None:
    x = np.zeros((64, 64), np.float32)
    settings = DeviceSettings(inline_below_us=0, lanes=1)

    async def off_by() -> float:
        """Return how many times its share it has, or the inverse if that is more."""
        runs = {FRUGAL: 0, SUSTAINED: 0}
        is_over = False
        began = asyncio.Barrier(4)

        async def repeat(preference: ExecutionPreference) -> None:
            with acting_for(Client(preference.name)):
                prepared = await device.prepare(
                    chain(100, 64, 64), preference=preference
                )
                await began.wait()
                while not is_over:
                    await prepared.run(x)
                    runs[preference] += 1

        async with (
            open_device("reference", settings=settings) as device,
            asyncio.TaskGroup() as tasks,
        ):
            for preference in (FRUGAL, SUSTAINED) * 2:
                tasks.create_task(repeat(preference))
            await asyncio.sleep(1)
            is_over = True
        share = 4 * runs[FRUGAL] / max(1, runs[SUSTAINED])
        return max(share, 1 / share) if share else float("inf")

    await best_of(4, off_by, 1.999)
