"""The JSON document of ``asyncnn bench burst``."""

import msgspec

from asyncnn.fmq import IS_COMPILED
from asyncnn.tools.bench.echoes import Exchange
from asyncnn.tools.bench.environment import Environment
from asyncnn.tools.bench.ratios import RatioVerdict
from asyncnn.tools.bench.rounds import Figure


class BurstPlacement(msgspec.Struct, frozen=True):
    """Figures of one placement, by contender. Those refused have a reason instead.

    ``us`` are medians, ``p99_us`` medians over the rounds of 99th percentiles.
    """

    placement: str
    is_apart: bool
    figures: dict[str, Figure]
    us: dict[str, float]
    p99_us: dict[str, float]
    verdicts: tuple[RatioVerdict, ...]
    refusals: dict[str, str]


class BurstReport(msgspec.Struct, frozen=True):
    """The JSON document of ``asyncnn bench burst --json``.

    ``headline`` compares placements; there is none on a machine with one CPU.
    """

    environment: Environment
    rounds: int
    exchange: Exchange
    placements: tuple[BurstPlacement, ...]
    headline: RatioVerdict | None = None
    is_ring_compiled: bool = IS_COMPILED

    @property
    def met(self) -> bool:
        """Whether every goal whose peer was measured was met."""
        verdicts = [v for placed in self.placements for v in placed.verdicts]
        if self.headline is not None:
            verdicts.append(self.headline)
        return all(verdict.met for verdict in verdicts)
