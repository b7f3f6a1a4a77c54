"""What ``asyncnn bench burst`` measures, and what is wanted of it."""

from collections.abc import Collection, Mapping

import msgspec

from asyncnn.tools.bench.burst.execution import BURST, BURSTS, PARTS
from asyncnn.tools.bench.burst.transport import BATCH
from asyncnn.tools.bench.ratios import RatioGoal, RatioVerdict, judge_ratio
from asyncnn.tools.bench.rounds import Figure

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
MILLISECOND = "a millisecond"

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


class Limits(msgspec.Struct, frozen=True):
    """The largest ratio that is wanted, and the largest that any machine may show.

    Without a ``goal``, the gate is the goal.
    """

    goal: float | None
    gate: float

    def of(self, *, gates: bool) -> float:
        """Return the one to judge by."""
        return self.gate if gates or self.goal is None else self.goal


class BurstGoal(msgspec.Struct, frozen=True):
    """Limits on the ratio of a figure to that of ``peer``, by placement.

    ``apart`` holds on different CPUs, ``together`` on the same one; None is no limit.
    """

    figure: str
    peer: str
    apart: Limits
    together: Limits | None


GOALS = (
    BurstGoal(BURST, PIPE, Limits(0.12, 0.2), Limits(0.65, 1.0)),
    # What an execution adds to its two messages depends least on the machine.
    BurstGoal(BURST, QUEUE, Limits(None, 8.0), Limits(None, 2.0)),
    BurstGoal(BURST, GRPC, Limits(1 / 75, 1 / 50), Limits(1 / 23, 1 / 15)),
    BurstGoal(BURST, ICEORYX, Limits(0.6, 1.0), None),
    BurstGoal(QUEUE, PIPE, Limits(0.06, 0.1), Limits(0.5, 0.6)),
    # What is wanted on one CPU is that sleeping costs no more than a blocking peer's.
    BurstGoal(QUEUE_IDLE, PIPE_IDLE, Limits(0.3, 1.0), Limits(None, 1.0)),
    BurstGoal(QUEUE_HOGS, PIPE_HOGS, Limits(1.0, 1.0), None),
    BurstGoal(QUEUE_HOGS, MILLISECOND, Limits(None, 1.0), Limits(None, 1.0)),
    BurstGoal(QUEUE_STREAM, PIPE_STREAM, Limits(1 / 8, 1 / 6), Limits(1 / 8, 1 / 6)),
    BurstGoal(
        QUEUE_BATCHES, PIPE_STREAM, Limits(1 / 60, 1 / 40), Limits(1 / 60, 1 / 40)
    ),
)

HEADLINE = Limits(0.35, 0.5)
"""On the ratio of a burst across CPUs to a Pipe where that is at its best."""


def judge_burst(
    figures: Mapping[str, Figure], *, is_apart: bool, gates: bool = False
) -> tuple[RatioVerdict, ...]:
    """Hold figures against the goals, or the gates; what was not measured is left out.

    :param is_apart: whether the two processes had different CPUs.
    """
    verdicts = []
    for goal in GOALS:
        limits = goal.apart if is_apart else goal.together
        if limits is None or goal.figure not in figures:
            continue
        ratio = RatioGoal(goal.figure, goal.peer, limits.of(gates=gates))
        if goal.peer == MILLISECOND:
            verdicts.append(RatioVerdict.of(ratio, figures[goal.figure].us / 1000))
        elif goal.peer in figures:
            verdicts.append(judge_ratio(ratio, figures))
    return tuple(verdicts)


def judge_headline(
    placements: Collection[tuple[bool, Mapping[str, Figure]]], *, gates: bool = False
) -> RatioVerdict | None:
    """Hold a burst across CPUs against a Pipe in whatever placement suits it best.

    None unless both were measured.
    """
    bursts = [f[BURST].us for is_apart, f in placements if is_apart and BURST in f]
    pipes = [figures[PIPE].us for _, figures in placements if PIPE in figures]
    if not bursts or not pipes:
        return None
    goal = RatioGoal(BURST, "best " + PIPE, HEADLINE.of(gates=gates))
    return RatioVerdict.of(goal, min(bursts) / min(pipes))
