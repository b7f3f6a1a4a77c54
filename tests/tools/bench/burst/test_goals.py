"""What the burst benchmark judges, by goals and by gates."""

import pytest

from asyncnn.tools.bench.burst.execution import BURST
from asyncnn.tools.bench.burst.goals import (
    GOALS,
    HEADLINE,
    MILLISECOND,
    PIPE,
    PIPE_STREAM,
    QUEUE,
    QUEUE_BATCHES,
    QUEUE_HOGS,
    judge_burst,
    judge_headline,
)
from asyncnn.tools.bench.rounds import Figure


def figures(**us: float) -> dict[str, Figure]:
    return {name: Figure((value,)) for name, value in us.items()}


class TestGoals:
    @pytest.mark.parametrize(("is_apart", "limit"), [(True, 0.06), (False, 0.5)])
    def test_a_placement_has_its_own(self, is_apart: bool, limit: float) -> None:
        for ratio, met in ((limit, True), (limit + 0.001, False)):
            measured = figures(**{QUEUE: ratio, PIPE: 1.0})
            (verdict,) = judge_burst(measured, is_apart=is_apart)
            assert (verdict.figure, verdict.peer) == (QUEUE, PIPE)
            assert (verdict.limit, verdict.met) == (limit, met)

    def test_one_without_its_peer_is_left_out(self) -> None:
        measured = figures(**{QUEUE_BATCHES: 1.0, PIPE: 1.0})
        assert judge_burst(measured, is_apart=True) == ()
        measured |= figures(**{PIPE_STREAM: 100.0})
        (verdict,) = judge_burst(measured, is_apart=True)
        assert verdict.met

    @pytest.mark.parametrize(("us", "met"), [(1000.0, True), (1001.0, False)])
    @pytest.mark.parametrize("is_apart", [True, False])
    def test_nothing_takes_a_millisecond(
        self, us: float, met: bool, is_apart: bool
    ) -> None:
        measured = figures(**{QUEUE_HOGS: us})
        (verdict,) = judge_burst(measured, is_apart=is_apart)
        assert (verdict.peer, verdict.met) == (MILLISECOND, met)

    def test_gates_are_wider_than_goals(self) -> None:
        for goal in GOALS:
            for limits in filter(None, (goal.apart, goal.together)):
                assert limits.of(gates=False) <= limits.of(gates=True)
        measured = figures(**{QUEUE: 0.07, PIPE: 1.0})
        (goal_verdict,) = judge_burst(measured, is_apart=True)
        (gate_verdict,) = judge_burst(measured, is_apart=True, gates=True)
        assert (goal_verdict.met, gate_verdict.met) == (False, True)

    def test_no_figure_is_held_against_a_peer_twice(self) -> None:
        pairs = [(goal.figure, goal.peer) for goal in GOALS]
        assert len(set(pairs)) == len(pairs)


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
