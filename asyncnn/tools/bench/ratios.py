"""Figures held against those of peers in the same run."""

from collections.abc import Iterable, Mapping

import msgspec

from asyncnn.tools.bench.rounds import Figure


class RatioGoal(msgspec.Struct, frozen=True):
    """``limit`` is the largest ratio of a figure to that of ``peer``."""

    figure: str
    peer: str
    limit: float


class RatioVerdict(msgspec.Struct, frozen=True):
    """A goal and the ratio that was measured."""

    figure: str
    peer: str
    limit: float
    ratio: float
    met: bool

    @classmethod
    def of(cls, goal: RatioGoal, ratio: float) -> "RatioVerdict":
        """Hold ``ratio`` against ``goal``."""
        return cls(goal.figure, goal.peer, goal.limit, ratio, ratio <= goal.limit)


def judge_ratio(goal: RatioGoal, figures: Mapping[str, Figure]) -> RatioVerdict:
    """Hold the two figures that ``goal`` names, both of them measured, against it."""
    ratio = figures[goal.figure].ratio_to(figures[goal.peer])
    return RatioVerdict.of(goal, ratio)


def verdict_cell(verdict: RatioVerdict) -> str:
    """Return a verdict as markup for a table."""
    outcome = "[green]met[/]" if verdict.met else "[bold red]MISSED[/]"
    return f"{verdict.ratio:.3f} <= {verdict.limit:.3g} {outcome}"


def goal_cell(verdicts: Iterable[RatioVerdict], figure: str, peer: str) -> str:
    """Return the verdict on a figure and its peer, a dash if there is none."""
    for verdict in verdicts:
        if (verdict.figure, verdict.peer) == (figure, peer):
            return verdict_cell(verdict)
    return "-"
