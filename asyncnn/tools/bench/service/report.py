"""The JSON document of ``asyncnn bench service``, and its goals."""

from collections.abc import Mapping

import msgspec

from asyncnn.tools.bench.echoes import Exchange
from asyncnn.tools.bench.environment import Environment
from asyncnn.tools.bench.ratios import RatioGoal, RatioVerdict, judge_ratio
from asyncnn.tools.bench.rounds import Figure

EXECUTE = "execute"
ADD = "add"
RUN = "run"
STREAMS = "asyncio_streams"
GRPC = "grpc_aio"
PIPE = "pipe"
IMAGE = "image"
IMAGE_COPIED = "image_copied"
IMAGE_PIPE = "image_pipe"
IMAGE_EXECUTOR = "image_executor"

DESCRIPTIONS = {
    EXECUTE: "execute_1_3 of a ready request in shared arrays, no-op, awaited",
    ADD: "the same, but four floats are added",
    RUN: "prepared.run of that with ordinary arrays, awaited",
    STREAMS: "asyncio streams, Unix socket, as many bytes",
    GRPC: "grpc.aio unary call, Unix socket, as many bytes",
    PIPE: "multiprocessing.Pipe, as many bytes",
    IMAGE: "image: prepared.run of shared arrays, awaited",
    IMAGE_COPIED: "image: prepared.run of ordinary arrays, awaited",
    IMAGE_PIPE: "image: multiprocessing.Pipe, NumPy arrays",
    IMAGE_EXECUTOR: "image: ProcessPoolExecutor, NumPy arrays, awaited",
}
"""Contenders in the order in which they are reported."""

GOALS = (
    RatioGoal(EXECUTE, STREAMS, 1.6),
    RatioGoal(EXECUTE, GRPC, 0.5),
    RatioGoal(IMAGE, IMAGE_PIPE, 0.3),
    RatioGoal(IMAGE, IMAGE_EXECUTOR, 0.1),
)
"""They hold in each placement."""


class ServicePlacement(msgspec.Struct, frozen=True):
    """Figures of one placement, by contender. Those refused have a reason instead."""

    placement: str
    figures: dict[str, Figure]
    us: dict[str, float]
    verdicts: tuple[RatioVerdict, ...]
    refusals: dict[str, str]


class ServiceReport(msgspec.Struct, frozen=True):
    """The JSON document of ``asyncnn bench service --json``."""

    environment: Environment
    rounds: int
    exchange: Exchange
    placements: tuple[ServicePlacement, ...]

    @property
    def met(self) -> bool:
        """Whether every goal whose peer was measured was met in every placement."""
        return all(v.met for placed in self.placements for v in placed.verdicts)


def judge_service(figures: Mapping[str, Figure]) -> tuple[RatioVerdict, ...]:
    """Hold figures against the goals; peers that were not measured are left out."""
    return tuple(judge_ratio(goal, figures) for goal in GOALS if goal.peer in figures)
