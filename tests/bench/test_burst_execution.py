"""Whole executions by burst and their parts, as the benchmark calls them."""

import os

import pytest

from asyncnn.bench.burst_execution import (
    PARTS,
    burst_execution,
    burst_parts,
    burst_run,
)
from asyncnn.bench.burst_goals import (
    BURST,
    HEADLINE,
    PIPE,
    judge_burst,
    judge_headline,
)
from asyncnn.bench.rounds import Figure
from asyncnn.hal.types import NO_TIMING, ErrorStatus

CPU = min(os.sched_getaffinity(0))


@pytest.mark.slow
async def test_a_burst_of_the_no_op_device_executes_and_runs() -> None:
    async with burst_execution(CPU) as execute:
        for _ in range(3):
            assert (await execute()).status is ErrorStatus.NONE
    async with burst_run(CPU) as run:
        assert len(await run()) == 1


async def test_every_part_does_its_part() -> None:
    async with burst_parts() as parts:
        assert parts.keys() == PARTS.keys()
        request, bind, execute, result = (parts[name] for name in PARTS)
        assert bind() is bind()
        assert request() == bind().packet
        assert execute() is ErrorStatus.NONE
        assert result() is NO_TIMING


def figure(us: float) -> Figure:
    return Figure((us,))


def test_goals_depend_on_the_placement() -> None:
    figures = {BURST: figure(5.0), PIPE: figure(10.0)}
    apart, together = (judge_burst(figures, is_apart=x) for x in (True, False))
    assert [verdict.met for verdict in apart] == [False]
    assert [verdict.met for verdict in together] == [True]


@pytest.mark.parametrize(("burst_us", "is_met"), [(3.4, True), (3.6, False)])
def test_the_headline_takes_the_pipe_at_its_best(burst_us: float, is_met: bool) -> None:
    verdict = judge_headline(
        [
            (True, {BURST: figure(burst_us), PIPE: figure(40.0)}),
            (False, {BURST: figure(1.0), PIPE: figure(10.0)}),
        ]
    )
    assert verdict is not None
    assert verdict.limit == HEADLINE.of(gates=False)
    assert verdict.ratio == pytest.approx(burst_us / 10)
    assert verdict.met is is_met


def test_without_two_cpus_there_is_no_headline() -> None:
    assert judge_headline([(False, {BURST: figure(1), PIPE: figure(9)})]) is None
