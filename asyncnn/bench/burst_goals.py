"""What ``asyncnn bench burst`` measures, and what is wanted of it."""

from collections.abc import Collection, Mapping

import msgspec

from asyncnn.bench.burst_execution import BURST, BURSTS, PARTS
from asyncnn.bench.burst_transport import BATCH
from asyncnn.bench.ratios import RatioGoal, RatioVerdict, judge_ratio
from asyncnn.bench.rounds import Figure

QUEUE = "queue"
PIPE = "pipe"
STREAMS = "asyncio_streams"
UVLOOP = "uvloop_streams"
ZMQ = "pyzmq"
GRPC = "grpc_aio"
ICEORYX = "iceoryx2"
QUEUE_IDLE = "queue_idle"
PIPE_IDLE = "pipe_idle"
QUEUE_HOGS = "queue_hogs"
PIPE_HOGS = "pipe_hogs"
QUEUE_STREAM = "queue_stream"
QUEUE_BATCHES = "queue_batches"
PIPE_STREAM = "pipe_stream"

IDLE_S = 0.003

DESCRIPTIONS = {
    **BURSTS,
    **PARTS,
    QUEUE: "a pair of queues, awaited at both ends",
    PIPE: "multiprocessing.Pipe, blocking",
    STREAMS: "asyncio streams, Unix socket",
    UVLOOP: "the same on uvloop",
    ZMQ: "pyzmq request and reply, Unix socket, awaited",
    GRPC: "grpc.aio unary call, Unix socket",
    ICEORYX: "iceoryx2 request and response, looking again and again",
    QUEUE_IDLE: f"queues, after {IDLE_S * 1000:g} ms of idleness",
    PIPE_IDLE: "multiprocessing.Pipe, likewise",
    QUEUE_HOGS: "queues, while another process spins on each CPU",
    PIPE_HOGS: "multiprocessing.Pipe, likewise",
    QUEUE_STREAM: "one way: a queue, a message at a time",
    QUEUE_BATCHES: f"one way: a queue, {BATCH} messages at a time",
    PIPE_STREAM: "one way: multiprocessing.Pipe",
}
"""Contenders in the order in which they are reported."""


class BurstGoal(msgspec.Struct, frozen=True):
    """The largest ratio of a figure to that of ``peer``, by placement.

    ``apart`` holds on different CPUs, ``together`` on the same one; None is no goal.
    """

    figure: str
    peer: str
    apart: float | None
    together: float | None

    def of(self, is_apart: bool) -> RatioGoal | None:
        """Return the goal in a placement."""
        limit = self.apart if is_apart else self.together
        return None if limit is None else RatioGoal(self.figure, self.peer, limit)


GOALS = (
    BurstGoal(BURST, PIPE, 0.12, 0.65),
    BurstGoal(BURST, GRPC, 1 / 75, 1 / 23),
    BurstGoal(BURST, ICEORYX, 0.6, None),
    BurstGoal(QUEUE, PIPE, 0.06, 0.5),
    BurstGoal(QUEUE_IDLE, PIPE_IDLE, 0.3, 0.3),
    BurstGoal(QUEUE_HOGS, PIPE_HOGS, 1.0, 1.0),
    BurstGoal(QUEUE_STREAM, PIPE_STREAM, 1 / 8, 1 / 8),
    BurstGoal(QUEUE_BATCHES, PIPE_STREAM, 1 / 60, 1 / 60),
)

HEADLINE = 0.35
"""Largest ratio of a burst across CPUs to a Pipe where that is at its best."""


def judge_burst(
    figures: Mapping[str, Figure], *, is_apart: bool
) -> tuple[RatioVerdict, ...]:
    """Hold figures against the goals; what was not measured is left out."""
    goals = (goal.of(is_apart) for goal in GOALS)
    return tuple(
        judge_ratio(goal, figures)
        for goal in goals
        if goal is not None and {goal.figure, goal.peer} <= figures.keys()
    )


def judge_headline(
    placements: Collection[tuple[bool, Mapping[str, Figure]]],
) -> RatioVerdict | None:
    """Hold a burst across CPUs against a Pipe in whatever placement suits it best.

    None unless both were measured.
    """
    bursts = [f[BURST].us for is_apart, f in placements if is_apart and BURST in f]
    pipes = [figures[PIPE].us for _, figures in placements if PIPE in figures]
    if not bursts or not pipes:
        return None
    goal = RatioGoal(BURST, "best " + PIPE, HEADLINE)
    return RatioVerdict.of(goal, min(bursts) / min(pipes))
