"""What ``asyncnn bench burst`` measures, and what is wanted of it."""

from collections.abc import Collection, Mapping

import msgspec

from asyncnn.bench.burst_execution import BURST, BURSTS, PARTS
from asyncnn.bench.burst_transport import BATCH
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

    def limit(self, is_apart: bool) -> float | None:
        """Return the goal in a placement."""
        return self.apart if is_apart else self.together


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


class BurstVerdict(msgspec.Struct, frozen=True):
    """A goal and the ratio that was measured."""

    figure: str
    peer: str
    limit: float
    ratio: float
    met: bool


def judge_burst(
    figures: Mapping[str, Figure], *, is_apart: bool
) -> tuple[BurstVerdict, ...]:
    """Hold figures against the goals; what was not measured is left out."""
    verdicts = []
    for goal in GOALS:
        limit = goal.limit(is_apart)
        if limit is not None and {goal.figure, goal.peer} <= figures.keys():
            ratio = figures[goal.figure].ratio_to(figures[goal.peer])
            verdict = BurstVerdict(goal.figure, goal.peer, limit, ratio, ratio <= limit)
            verdicts.append(verdict)
    return tuple(verdicts)


def judge_headline(
    placements: Collection[tuple[bool, Mapping[str, Figure]]],
) -> BurstVerdict | None:
    """Hold a burst across CPUs against a Pipe in whatever placement suits it best.

    None unless both were measured.
    """
    bursts = [f[BURST].us for is_apart, f in placements if is_apart and BURST in f]
    pipes = [figures[PIPE].us for _, figures in placements if PIPE in figures]
    if not bursts or not pipes:
        return None
    ratio = min(bursts) / min(pipes)
    return BurstVerdict(BURST, "best " + PIPE, HEADLINE, ratio, ratio <= HEADLINE)
