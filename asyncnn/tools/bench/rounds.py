"""Measures contenders in interleaved rounds of one process.

In each round every contender runs a batch, and the order rotates. A contender's figure
is the median over the rounds of the batch medians. A ratio is the median of the ratios
within each round: what slows a whole round down cancels out.
"""

import inspect
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

DEFAULT_ROUNDS = 7
MIN_ROUNDS = 5
FEW_ROUNDS = 3
"""Rounds unless told otherwise of a benchmark whose contenders take seconds."""

DEFAULT_BATCH_US = 60_000.0

RAPL = Path("/sys/class/powercap")
_OF_PACKAGES = "intel-rapl:[0-9]/energy_uj"

_MIN_RUNS = 3
_MAX_RUNS = 2000
_WARM_UP_RUNS = 3

Call: TypeAlias = Callable[[], Any]
"""Runs a contender once; what it returns may have to be awaited."""

Batch: TypeAlias = Callable[[int], Awaitable[Mapping[str, Sequence[float]]]]
"""Runs a contender so many times; returns microseconds of each run, by figure."""


class ManyCalls(NamedTuple):
    """Calls that another process times, many at once.

    ``measure`` takes how many to make and returns the microseconds of each.
    """

    measure: Callable[[int], list[float]]


class Figure(msgspec.Struct, frozen=True):
    """What was measured of one contender: the batch medians in microseconds."""

    round_medians_us: tuple[float, ...]

    @property
    def us(self) -> float:
        """Median over the rounds."""
        return median(self.round_medians_us)

    def ratio_to(self, other: "Figure") -> float:
        """Return the median over the rounds of this figure divided by ``other``'s."""
        pairs = zip(self.round_medians_us, other.round_medians_us, strict=True)
        return median(mine / max(theirs, 1e-3) for mine, theirs in pairs)


Turn: TypeAlias = Callable[[], Awaitable[Mapping[str, float]]]
"""Takes its time once in each round; returns a value of each figure."""


def turn_of(figure: str, value: Callable[[], Awaitable[float]]) -> Turn:
    """Return the turn that gives one figure."""

    async def turn() -> Mapping[str, float]:
        return {figure: await value()}

    return turn


async def in_turn(turns: Sequence[Turn], *, rounds: int) -> dict[str, Figure]:
    """Measure what is not repeated in batches, in rotated order."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        for turn in rotated(turns, number):
            for figure, value in (await turn()).items():
                values[figure].append(value)
    return {name: Figure(tuple(each)) for name, each in values.items()}


async def measure(
    batches: Sequence[Batch],
    *,
    rounds: int = DEFAULT_ROUNDS,
    batch_us: float = DEFAULT_BATCH_US,
) -> dict[str, Figure]:
    """Warm up and measure the contenders; ``batch_us`` bounds each one's batches.

    A batch has at least three runs, however long they take.
    """
    sizes = [await _warm_up(batch, batch_us) for batch in batches]
    contenders = list(zip(batches, sizes, strict=True))
    medians: defaultdict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        for batch, runs in rotated(contenders, number):
            for figure, samples in (await batch(runs)).items():
                medians[figure].append(median(samples))
    return {name: Figure(tuple(values)) for name, values in medians.items()}


async def _warm_up(batch: Batch, batch_us: float) -> int:
    await batch(1)
    least_us = inf  # runs that others on the machine disturb are many times as long
    for _ in range(_WARM_UP_RUNS):
        started = time.perf_counter()
        await batch(1)
        least_us = min(least_us, (time.perf_counter() - started) * 1e6)
    return runs_within(batch_us, least_us)


def percentile(samples: Sequence[float] | NDArray[np.float64], share: float) -> float:
    """Return the value that ``share`` of the samples do not exceed."""
    ordered = np.sort(samples)
    return float(ordered[min(int(share * len(ordered)), len(ordered) - 1)])


def runs_within(budget_us: float, run_us: float) -> int:
    """Return how many runs of ``run_us`` make up a batch of ``budget_us``."""
    return max(_MIN_RUNS, min(_MAX_RUNS, int(budget_us / max(run_us, 1e-3))))


def rotated(items: Sequence[T], by: int) -> list[T]:
    """Return ``items`` in the same circular order, beginning with number ``by``."""
    start = by % len(items) if items else 0
    return [*items[start:], *items[:start]]


def timed_call(figure: str, call: Callable[[], object]) -> Batch:
    """Return the batch of a function that is called on the loop's thread."""

    async def batch(runs: int) -> Mapping[str, Sequence[float]]:
        clock = time.perf_counter_ns
        samples = []
        for _ in range(runs):
            started = clock()
            call()
            samples.append((clock() - started) / 1000)
        return {figure: samples}

    return batch


def timed_await(figure: str, call: Callable[[], Awaitable[object]]) -> Batch:
    """Return the batch of a function whose result is awaited."""

    async def batch(runs: int) -> Mapping[str, Sequence[float]]:
        clock = time.perf_counter_ns
        samples = []
        for _ in range(runs):
            started = clock()
            await call()
            samples.append((clock() - started) / 1000)
        return {figure: samples}

    return batch


def metered(figure: str, batch: Batch) -> Batch:
    """Return ``batch`` with another ``figure``: the energy of each run."""

    async def run(runs: int) -> Mapping[str, Sequence[float]]:
        before = energy_used()
        times = await batch(runs)
        return {**times, figure: [max(energy_used() - before, 0.0) / runs]}

    return run


def energy_used() -> float:
    """Return the energy that was used so far, in a unit that stays the same.

    That is microjoules of the processors, where RAPL is readable; or else microseconds
    that this process has had of them.
    """
    try:
        packages = [int(file.read_text()) for file in RAPL.glob(_OF_PACKAGES)]
    except (OSError, ValueError):  # of root alone, as a rule
        packages = []
    return float(sum(packages)) if packages else time.process_time_ns() / 1000


async def timed(figure: str, call: Call | ManyCalls) -> Batch:
    """Return the batch of whatever is called; try it, as it may have to be awaited."""
    if isinstance(call, ManyCalls):
        measure = call.measure

        async def batch(runs: int) -> Mapping[str, Sequence[float]]:
            return {figure: measure(runs)}

        return batch
    first: Any = call()
    if not inspect.isawaitable(first):
        return timed_call(figure, call)
    await first
    return timed_await(figure, call)
