"""The JSON document of ``asyncnn bench cache``, and its goals."""

import msgspec

from asyncnn.tools.bench.environment import Environment
from asyncnn.tools.bench.rounds import Figure

ANEW, SAVED, LOADED = "anew", "saved", "loaded"
ANEW_RUN, LOADED_RUN = "anew_run", "loaded_run"

DESCRIPTIONS = {
    ANEW: "prepared anew",
    SAVED: "prepared anew and saved",
    LOADED: "loaded from the cache",
    ANEW_RUN: "first outputs, anew",
    LOADED_RUN: "first outputs, loaded",
}

TIME_LIMIT = 0.25
"""Goal of the time to load a model divided by the time to prepare it anew."""

MEMORY_LIMIT = 0.2
"""Goal of the growth of a process that loads a model divided by its weights."""

MATTERS_ABOVE_US = 10_000.0
"""Models that take this long to prepare have a goal of the time."""

MATTERS_ABOVE_BYTES = 1_000_000
"""Models with weights as large as this have both goals."""


class CacheReport(msgspec.Struct, frozen=True):
    """What was measured of one model; sizes are in bytes.

    ``growth_bytes`` is that of the resident memory of another process. A model that
    ``is_largest``, as a file among those of its folder, has both goals.
    """

    model: str
    figures: dict[str, Figure]
    us: dict[str, float]
    ratio: float
    weights_bytes: int
    growth_bytes: int
    is_largest: bool

    @property
    def growth(self) -> float:
        """Growth as a share of the weights."""
        return self.growth_bytes / self.weights_bytes

    @property
    def saves_time(self) -> bool | None:
        """Whether the goal of the time was met; None if there is none."""
        matters = self._is_large or self.us[ANEW] >= MATTERS_ABOVE_US
        return self.ratio <= TIME_LIMIT if matters else None

    @property
    def saves_memory(self) -> bool | None:
        """Whether the goal of the memory was met; None if there is none."""
        return self.growth < MEMORY_LIMIT if self._is_large else None

    @property
    def _is_large(self) -> bool:
        return self.is_largest or self.weights_bytes >= MATTERS_ABOVE_BYTES

    @property
    def met(self) -> bool:
        """Whether no goal was missed."""
        return False not in (self.saves_time, self.saves_memory)


class CachesReport(msgspec.Struct, frozen=True):
    """The JSON document of ``asyncnn bench cache --json``."""

    environment: Environment
    placement: str
    rounds: int
    models: tuple[CacheReport, ...]

    @property
    def met(self) -> bool:
        """Whether every goal was met."""
        return all(model.met for model in self.models)
