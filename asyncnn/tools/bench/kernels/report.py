"""The JSON document of ``asyncnn bench kernels``, and its goals."""

from collections.abc import Sequence
from statistics import median

import msgspec

from asyncnn.tools.bench.arrays import Difference
from asyncnn.tools.bench.environment import Environment
from asyncnn.tools.bench.goals import LITERT, Goal, Verdict
from asyncnn.tools.bench.kernels.cases import CASES
from asyncnn.tools.bench.rounds import Figure

ENGINE = "engine"
"""The plan on given arrays, called: the kernel, its step and what leads to it."""

GOAL_OF_EACH = Goal(LITERT, 25.0)
GOAL_OF_MEDIAN = Goal(LITERT, 8.0)
"""For the median of the ratios of all kernels."""


class KernelReport(msgspec.Struct, frozen=True):
    """What was measured of one kernel; ``figures`` are `ENGINE` and `LITERT`.

    ``us`` and ``verdict`` are derived from them. ``difference_to_ref`` is that of the
    engine's result to the one of LiteRT's reference kernels.
    """

    kernel: str
    figures: dict[str, Figure]
    us: dict[str, float]
    verdict: Verdict
    difference_to_ref: Difference | None


class KernelsReport(msgspec.Struct, frozen=True):
    """The JSON document of ``asyncnn bench kernels --json``.

    ``median_verdict`` is None unless all kernels were measured.
    """

    environment: Environment
    placement: str
    rounds: int
    kernels: tuple[KernelReport, ...]
    median_verdict: Verdict | None

    @property
    def met(self) -> bool:
        """Whether every goal was met that could be judged."""
        verdicts = [kernel.verdict for kernel in self.kernels]
        if self.median_verdict is not None:
            verdicts.append(self.median_verdict)
        return all(verdict.met for verdict in verdicts)


def summarize_kernel(
    kernel: str, figures: dict[str, Figure], difference: Difference | None
) -> KernelReport:
    """Derive times and the verdict from the figures of a kernel."""
    ratio = figures[ENGINE].ratio_to(figures[LITERT])
    return KernelReport(
        kernel=kernel,
        figures=figures,
        us={name: figure.us for name, figure in figures.items()},
        verdict=Verdict.of(GOAL_OF_EACH, ratio),
        difference_to_ref=difference,
    )


def judge_median(kernels: Sequence[KernelReport]) -> Verdict | None:
    """Hold the median ratio against its goal, if ``kernels`` are all there are."""
    if len(kernels) < len(CASES):
        return None
    ratio = median(kernel.verdict.ratio for kernel in kernels)
    return Verdict.of(GOAL_OF_MEDIAN, ratio)
