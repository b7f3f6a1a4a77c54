"""The JSON document of ``asyncnn bench awaiting``, and its goal."""

import msgspec

from asyncnn.tools.bench.environment import Environment
from asyncnn.tools.bench.rounds import Figure

NUMPY = "numpy"
ENGINE = "engine"
HAL = "hal"
RUN = "run"
RUN_ON_LANE = "run_on_lane"
TO_THREAD = "to_thread"

DESCRIPTIONS = {
    NUMPY: "np.add(x, y), called",
    ENGINE: "the compiled plan, called",
    HAL: "IPreparedModel.execute_1_3 of a ready request, awaited",
    RUN: "prepared.run([x, y]), awaited",
    RUN_ON_LANE: "the same, never inline on the loop",
    TO_THREAD: "asyncio.to_thread(np.add, x, y), awaited",
}
"""Contenders in the order in which they are reported."""

GOAL = 0.3
"""Largest ratio of `RUN` to `TO_THREAD`, in each placement."""


class PlacementReport(msgspec.Struct, frozen=True):
    """Figures of one placement, by contender; ``ratio`` is `RUN` to `TO_THREAD`."""

    placement: str
    figures: dict[str, Figure]
    us: dict[str, float]
    ratio: float
    limit: float
    met: bool


class AwaitingReport(msgspec.Struct, frozen=True):
    """The JSON document of ``asyncnn bench awaiting --json``."""

    environment: Environment
    rounds: int
    placements: tuple[PlacementReport, ...]

    @property
    def met(self) -> bool:
        """Whether the goal was met in every placement."""
        return all(placed.met for placed in self.placements)
