"""The JSON document of ``asyncnn bench qos``, and its goals."""

import msgspec

from asyncnn.tools.bench.environment import Environment

IDLE = "idle"
SATURATED = "saturated"
POOL = "pool"

DESCRIPTIONS = {
    IDLE: "HIGH on an idle device",
    SATURATED: "HIGH while LOW executions saturate it",
    POOL: "the same load through a thread pool, first come, first served",
}

P99_TO_IDLE = 1.5
POOL_TO_P99 = 5.0
OVERHEAD_TO_THREAD = 0.45
LOST = 0.05


class Latency(msgspec.Struct, frozen=True):
    """Microseconds of urgent executions."""

    p50_us: float
    p99_us: float


class Misses(msgspec.Struct, frozen=True):
    """Share of the deadlines that were missed under an offered load."""

    load: float
    by_deadline: float
    by_arrival: float


class Overhead(msgspec.Struct, frozen=True):
    """Processor time that is added to an execution of which 100 are pending.

    By the scheduler, and by `asyncio.to_thread`, in microseconds; the ratio is the
    median of those of one batch each.
    """

    scheduled_us: float
    to_thread_us: float
    ratio: float


class Verdict(msgspec.Struct, frozen=True):
    """A goal, in words, and what was measured of it."""

    goal: str
    value: float
    limit: float
    met: bool


class QosReport(msgspec.Struct, frozen=True):
    """The JSON document of ``asyncnn bench qos --json``.

    ``lost`` is the share of time that preemptions add to a mix of executions.
    """

    environment: Environment
    placement: str
    rounds: int
    latencies: dict[str, Latency]
    longest_operation_us: float
    misses: tuple[Misses, ...]
    overhead: Overhead
    lost: float
    verdicts: tuple[Verdict, ...]

    @property
    def met(self) -> bool:
        """Whether every goal was met."""
        return all(verdict.met for verdict in self.verdicts)


def judge(
    latencies: dict[str, Latency],
    longest_us: float,
    misses: tuple[Misses, ...],
    overhead: Overhead,
    lost: float,
) -> tuple[Verdict, ...]:
    """Hold what was measured against the goals."""
    idle, busy, pool = (latencies[name].p99_us for name in (IDLE, SATURATED, POOL))
    figures = [
        (
            f"saturated p99 within {P99_TO_IDLE:g} x idle and one operation, us",
            busy,
            P99_TO_IDLE * idle + longest_us,
        ),
        (
            f"saturated p99 a {POOL_TO_P99:g}th of the pool's, us",
            busy,
            pool / POOL_TO_P99,
        ),
        (
            "scheduling an execution, to asyncio.to_thread",
            overhead.ratio,
            OVERHEAD_TO_THREAD,
        ),
        ("time lost to preemption", lost, LOST),
    ]
    figures += [
        (
            f"misses at {each.load:.0%} load, by deadline",
            each.by_deadline,
            each.by_arrival,
        )
        for each in misses
    ]
    return tuple(Verdict(goal, v, limit, v <= limit) for goal, v, limit in figures)
