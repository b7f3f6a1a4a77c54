"""The JSON document of ``asyncnn bench fence``, and its goals."""

from collections.abc import Mapping

import msgspec

from asyncnn.tools.bench.environment import Environment
from asyncnn.tools.bench.fence.chains import LENGTH
from asyncnn.tools.bench.fence.pipelines import FRAMES, STAGES
from asyncnn.tools.bench.ratios import RatioGoal, RatioVerdict, judge_ratio
from asyncnn.tools.bench.rounds import Figure

SIGNALLED = "signalled"
SLEEP = "sleep"
PENDING = "pending"
PENDING_FD = "pending_fd"
EVENT = "asyncio_event"
EVENTFD = "eventfd"
CHAIN = "chain"
AWAITED = "awaited"
PIPELINE = "pipeline"
ONE_BY_ONE = "one_by_one"
QUEUES = "queues"

DESCRIPTIONS = {
    SIGNALLED: "a signalled fence, awaited",
    SLEEP: "asyncio.sleep(0), awaited",
    PENDING: "a fence made, awaited, and signalled by the loop",
    EVENT: "an asyncio.Event, likewise",
    EVENTFD: "an eventfd with add_reader, likewise",
    PENDING_FD: "a fence of another owner, likewise, by its descriptor",
    CHAIN: f"{LENGTH} no-ops in a driver process, chained by fences",
    AWAITED: f"{LENGTH} no-ops in a driver process, each awaited",
    PIPELINE: f"{FRAMES} frames, {STAGES} stages: asyncnn.pipeline",
    ONE_BY_ONE: f"{FRAMES} frames, {STAGES} stages: each prepared.run awaited",
    QUEUES: f"{FRAMES} frames, {STAGES} stages: asyncio.Queue and to_thread",
}
"""Contenders in the order in which they are reported."""

GOALS = (
    RatioGoal(SIGNALLED, SLEEP, 1.0),
    RatioGoal(PENDING, EVENTFD, 1.5),
    RatioGoal(CHAIN, AWAITED, 0.33),
    RatioGoal(PIPELINE, QUEUES, 0.5),
)
"""They hold in each placement."""


class FencePlacement(msgspec.Struct, frozen=True):
    """Figures of one placement, by contender."""

    placement: str
    figures: dict[str, Figure]
    us: dict[str, float]
    verdicts: tuple[RatioVerdict, ...]


class FenceReport(msgspec.Struct, frozen=True):
    """The JSON document of ``asyncnn bench fence --json``."""

    environment: Environment
    rounds: int
    placements: tuple[FencePlacement, ...]

    @property
    def met(self) -> bool:
        """Whether every goal was met in every placement."""
        return all(v.met for placed in self.placements for v in placed.verdicts)


def judge_fences(figures: Mapping[str, Figure]) -> tuple[RatioVerdict, ...]:
    """Hold figures against the goals."""
    return tuple(judge_ratio(goal, figures) for goal in GOALS)
