"""The fence benchmark: its contenders, verdicts and report."""

import asyncio
import inspect
import io
import json
import os
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from asyncnn.bench import fence
from asyncnn.bench.environment import describe_environment
from asyncnn.bench.fence import (
    CHAIN,
    DESCRIPTIONS,
    EVENTFD,
    GOALS,
    PENDING,
    FencePlacement,
    FenceReport,
    bench_fence,
    judge_fences,
)
from asyncnn.bench.fence_chains import awaited_executions, fenced_chain
from asyncnn.bench.fence_pipelines import one_by_one, pipelined, queued
from asyncnn.bench.fence_table import fence_table
from asyncnn.bench.fence_waits import (
    pending_event,
    pending_eventfd,
    pending_fence,
    pending_fence_of_another,
    signalled_fence,
    turn_of_the_loop,
)
from asyncnn.bench.noop import NoOpDevice
from asyncnn.bench.ratios import RatioGoal
from asyncnn.bench.rounds import Figure
from asyncnn.cli.bench import bench_app
from asyncnn.fences import FenceSource, SyncFence
from asyncnn.hal.types import ErrorStatus, MeasureTiming, Request
from asyncnn.runtime.device import Device
from tests.networks import addition

CPU = min(os.sched_getaffinity(0))


class TestContenders:
    @pytest.mark.parametrize(
        "wait",
        [
            signalled_fence(),
            turn_of_the_loop(),
            pending_fence,
            pending_event,
            pending_eventfd,
            pending_fence_of_another,
        ],
    )
    async def test_each_wait_ends(self, wait: fence.Wait) -> None:
        for _ in range(3):
            awaited = wait()
            assert inspect.isawaitable(awaited)
            async with asyncio.timeout(5):
                await awaited

    @pytest.mark.parametrize("contender", [fenced_chain, awaited_executions])
    async def test_each_chain_ends(self, contender: fence.Wait) -> None:
        async with NoOpDevice() as hal:
            wait = await contender(Device("no-op", hal))
            for _ in range(2):
                async with asyncio.timeout(5):
                    await wait()

    async def test_each_way_of_streaming_delivers_the_frames(self) -> None:
        async with AsyncExitStack() as stack:
            hal = await stack.enter_async_context(NoOpDevice())
            device = Device("no-op", hal)
            for wait in (
                await pipelined(device, stack),
                await one_by_one(device),
                await queued(stack),
            ):
                for _ in range(2):
                    async with asyncio.timeout(10):
                        frame = await wait()
                    assert isinstance(frame, np.ndarray)
                    assert frame.shape == (4,)


class TestNoOpDevice:
    """It keeps to the rules of fenced execution, or the figures would say nothing."""

    async def launch(self, *wait_for: SyncFence) -> SyncFence | None:
        async with NoOpDevice() as hal:
            model = await Device("no-op", hal).prepare(addition(4))
            run = model.run_fenced([np.ones(4, np.float32)] * 2, wait_for=wait_for)
            return run.fence

    async def test_it_waits_for_its_fences(self) -> None:
        gates: list[tuple[SyncFence, FenceSource]]
        gates = [SyncFence.pair() for _ in range(2)]
        fence = await self.launch(*[fence for fence, _ in gates])
        assert fence is not None
        assert fence.status is None
        for _, source in gates:
            source.signal()
        await fence.wait(5)

    async def test_it_waits_for_nothing_that_is_over(self) -> None:
        for wait_for in ((), (SyncFence.signalled(),)):
            fence = await self.launch(*wait_for)
            assert fence is None or fence.status is ErrorStatus.NONE

    async def test_a_request_is_validated(self) -> None:
        async with NoOpDevice() as hal:
            model = await Device("no-op", hal).prepare(addition(4))
            refused = model.hal.execute_fenced(
                Request((), (), ()), (), MeasureTiming.NO, None, None, None
            )
        assert refused == (ErrorStatus.INVALID_ARGUMENT, None, None)


def figures(us: float = 100.0, **others: float) -> dict[str, Figure]:
    return {name: Figure((others.get(name, us),)) for name in DESCRIPTIONS}


@pytest.mark.parametrize("goal", GOALS)
def test_each_goal_has_its_limit(goal: RatioGoal) -> None:
    for ratio, expected in ((goal.limit, True), (goal.limit * 1.01, False)):
        verdicts = judge_fences(figures(**{goal.figure: ratio, goal.peer: 1.0}))
        (verdict,) = (
            v for v in verdicts if (v.figure, v.peer) == (goal.figure, goal.peer)
        )
        assert verdict.met is expected


@pytest.mark.slow
def test_every_contender_has_a_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence, "_BATCH_US", 500.0)
    monkeypatch.setattr(fence, "cpu_pairs", lambda: [(CPU, CPU)])
    report = bench_fence(rounds=2)
    (placed,) = report.placements
    assert list(placed.us) == list(DESCRIPTIONS)
    assert all(us > 0 for us in placed.us.values())
    assert msgspec.json.decode(msgspec.json.encode(report), type=FenceReport) == report


def made_up(pending_us: float) -> FenceReport:
    measured = figures(**{PENDING: pending_us, EVENTFD: 100.0, CHAIN: 1.0})
    measured["pipeline"] = Figure((1.0,))
    placed = FencePlacement(
        placement="apart",
        figures=measured,
        us={name: figure.us for name, figure in measured.items()},
        verdicts=judge_fences(measured),
    )
    return FenceReport(describe_environment(), 5, (placed,))


@pytest.mark.parametrize(("pending_us", "outcome"), [(150, "met"), (151, "MISSED")])
def test_the_table_shows_times_and_verdicts(pending_us: float, outcome: str) -> None:
    console = Console(width=130, record=True, file=io.StringIO())
    console.print(fence_table(made_up(pending_us)))
    rows = console.export_text().splitlines()
    (row,) = [row for row in rows if "pending / eventfd" in row]
    assert row.split()[-5:-1] == [f"{pending_us / 100:.3f}", "<=", "1.5", outcome]


@pytest.mark.parametrize(("pending_us", "status"), [(150, 0), (151, 1)])
def test_a_missed_goal_fails_a_check_after_all_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pending_us: float, status: int
) -> None:
    def fake(*, rounds: int) -> FenceReport:
        assert rounds == 6
        return made_up(pending_us)

    monkeypatch.setattr("asyncnn.cli.bench.bench_fence", fake)
    document = tmp_path / "fence.json"
    arguments = ["fence", "--check", "--rounds", "6", "--json", str(document)]
    result = CliRunner().invoke(bench_app, arguments)
    assert result.exit_code == status
    assert "a signalled fence, awaited" in result.output
    assert json.loads(document.read_text())["placements"][0]["us"][EVENTFD] == 100.0
