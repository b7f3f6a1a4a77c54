"""The JSON document of ``asyncnn bench models``."""

from collections.abc import Mapping

import msgspec

from asyncnn.tools.bench.arrays import Difference
from asyncnn.tools.bench.environment import Environment
from asyncnn.tools.bench.goals import LITERT, LITERT_REF, Verdict
from asyncnn.tools.bench.models.goals import judge
from asyncnn.tools.bench.rounds import Figure

DEVICE = "device"
"""The device's own measurement, HAL Timing's ``time_on_device``."""

AWAITED = "awaited"
"""From calling ``prepared.run`` to having its outputs."""

PEERS = (LITERT, LITERT_REF)


class ModelReport(msgspec.Struct, frozen=True):
    """What was measured of one model.

    ``figures`` are called `DEVICE`, `AWAITED`, `LITERT` and `LITERT_REF`; one that is
    missing has its reason under the contender's name in ``refusals``. ``us`` and
    ``ratios``, the device's to each peer, are derived from them.
    """

    model: str
    figures: dict[str, Figure]
    us: dict[str, float]
    ratios: dict[str, float]
    verdicts: tuple[Verdict, ...]
    refusals: dict[str, str]
    difference_to_ref: Difference | None = None


class ModelsReport(msgspec.Struct, frozen=True):
    """The JSON document of ``asyncnn bench models --json``."""

    environment: Environment
    placement: str
    rounds: int
    models: tuple[ModelReport, ...]

    @property
    def met(self) -> bool:
        """Whether every goal was met that could be measured."""
        return all(verdict.met for model in self.models for verdict in model.verdicts)


def summarize(
    model: str,
    figures: Mapping[str, Figure],
    refusals: Mapping[str, str],
    difference: Difference | None = None,
) -> ModelReport:
    """Derive times, ratios and verdicts from the figures of a model."""
    us = {name: figure.us for name, figure in figures.items()}
    ratios = {
        peer: figures[DEVICE].ratio_to(figures[peer])
        for peer in PEERS
        if DEVICE in figures and peer in figures
    }
    return ModelReport(
        model=model,
        figures=dict(figures),
        us=us,
        ratios=ratios,
        verdicts=judge(model, ratios, us.get(LITERT_REF)),
        refusals=dict(refusals),
        difference_to_ref=difference,
    )
