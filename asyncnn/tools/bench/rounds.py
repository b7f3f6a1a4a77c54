"""The one runner: measures contenders in interleaved rounds of one process.

In each round every contender runs a batch, and the order rotates. A contender's figure
is the median over the rounds of the batch medians. A ratio is the median of the ratios
within each round: what slows a whole round down cancels out.
"""

import asyncio
import inspect
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncnn.runtime.model import InputShapes

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

DEFAULT_ROUNDS = 7
MIN_ROUNDS = 5
FEW_ROUNDS = 3
"""Usual rounds of a benchmark whose contenders take seconds."""

DEFAULT_BATCH_US = 60_000.0

ENERGY = "'s energy"
"""Ends the name of the figure of what a contender uses, in a unit that stays the same.

That is microjoules, where an `EnergyMeter` is found; or else microseconds that this
process has had of the processors.
"""

P99 = " p99"
"""Ends the name of the median of the percentiles of batches."""

RAPL = Path("/sys/class/powercap")
_MOST = "max_energy_range_uj"

_MIN_RUNS = 3
_MAX_RUNS = 2000
_WARM_UP_RUNS = 3

Progress: TypeAlias = Callable[[Sequence[Any]], Iterable[Any]]
"""Iterates over what is measured, and shows that."""


class Order(NamedTuple):
    """What is asked of a benchmark, which takes of it what its command's options are.

    Models are from ``folder``, of which None has the usual ones, and what
    ``pattern`` matches of them. ``progress`` iterates over what is measured. With
    ``gates``, goals are what any machine has to reach, not what is wanted.
    """

    folder: Path | None = None
    rounds: int = DEFAULT_ROUNDS
    pattern: str = "*"
    mobilenet: bool | None = None
    input_shapes: InputShapes = None
    gates: bool = False
    section: Sequence[str] | None = None
    setting: Sequence[str] | None = None
    progress: Progress = iter


Call: TypeAlias = Callable[[], Any]
"""Runs a contender once; what it returns may have to be awaited."""

Samples: TypeAlias = Mapping[str, Sequence[float]]
"""Microseconds of each run by figure, of which `OWN` has the contender's name."""

Batch: TypeAlias = Callable[[int], Awaitable[Samples]]
"""Runs a contender so many times."""

OWN = ""


class Batches(NamedTuple):
    """Runs that time themselves, or have several figures."""

    run: Batch


class Once(NamedTuple):
    """Takes its time once in each round; ``take`` gives its figure, or several."""

    take: Callable[[], Awaitable[float | Mapping[str, float]]]


Runs: TypeAlias = Call | Batches | Once
Started: TypeAlias = dict[str, Runs]
"""What is measured, by contender."""


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


Figures: TypeAlias = dict[str, Figure]
"""By contender."""


async def in_rounds(
    turns: Mapping[K, Callable[[], Awaitable[T]]], rounds: int
) -> dict[K, list[T]]:
    """Take turns in rotated order; return what each gives, one for each round."""
    found: dict[K, list[T]] = {key: [] for key in turns}
    for number in range(rounds):
        for key in rotated(list(turns), number):
            found[key].append(await turns[key]())
    return found


async def measure(
    contenders: Mapping[str, Runs],
    *,
    rounds: int = DEFAULT_ROUNDS,
    batch_us: float = DEFAULT_BATCH_US,
    energy: bool = False,
    per: int = 1,
    pause_s: float = 0.0,
    p99: bool = False,
) -> Figures:
    """Warm up and measure contenders; ``batch_us`` bounds each one's batches.

    A batch has at least three runs, however long they take. A run is of ``per``
    messages, each of which counts, and begins after ``pause_s``. Each contender may
    have the figures of what a run uses, see `ENERGY`, and of percentiles as well.
    """
    turns: dict[str, Callable[[], Awaitable[Mapping[str, float]]]] = {}
    for name, contender in contenders.items():
        if isinstance(contender, Once):
            turns[name] = partial(_taken, name, contender)
            continue
        batch = await timed(contender)
        if pause_s:
            batch = partial(_paused, batch, pause_s)
        runs = await _warm_up(batch, batch_us)
        turns[name] = partial(_summed_up, name, batch, runs, energy, per, p99)
    values: defaultdict[str, list[float]] = defaultdict(list)
    for each in (await in_rounds(turns, rounds)).values():
        for figures in each:
            for figure, value in figures.items():
                values[figure].append(value)
    return {name: Figure(tuple(each)) for name, each in values.items()}


async def _taken(name: str, contender: Once) -> Mapping[str, float]:
    taken = await contender.take()
    return taken if isinstance(taken, Mapping) else {name: taken}


async def _summed_up(
    name: str, batch: Batch, runs: int, energy: bool, per: int, p99: bool
) -> Mapping[str, float]:
    meter = EnergyMeter.found(RAPL) if energy else None
    before_s = time.process_time()
    samples = await batch(runs)
    used = None if meter is None else meter.joules()
    found = {key or name: median(each) / per for key, each in samples.items()}
    if energy:
        used_s = time.process_time() - before_s
        found[name + ENERGY] = (used_s if used is None else used) * 1e6 / runs
    if p99:
        found[name + P99] = percentile(samples[OWN], 0.99) / per
    return found


async def _paused(batch: Batch, pause_s: float, runs: int) -> Samples:
    samples: list[float] = []
    for _ in range(runs):
        await asyncio.sleep(pause_s)
        samples.extend((await batch(1))[OWN])
    return {OWN: samples}


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


async def timed(call: Call | Batches) -> Batch:
    """Return the batch of whatever is called; try it, as it may have to be awaited."""
    if isinstance(call, Batches):
        return call.run
    first: Any = call()
    is_awaited = inspect.isawaitable(first)
    if is_awaited:
        await first
    return partial(_awaited if is_awaited else _called, call)


async def _called(call: Call, runs: int) -> Samples:
    clock = time.perf_counter_ns
    samples = []
    for _ in range(runs):
        started = clock()
        call()
        samples.append((clock() - started) / 1000)
    return {OWN: samples}


async def _awaited(call: Call, runs: int) -> Samples:
    clock = time.perf_counter_ns
    samples = []
    for _ in range(runs):
        started = clock()
        await call()
        samples.append((clock() - started) / 1000)
    return {OWN: samples}


def _is_package(zone: str) -> bool:
    kind, *numbers = zone.split(":")
    return kind != "intel-rapl-mmio" and len(numbers) == 1


class EnergyMeter:
    """The energy of all packages of the machine; use `found` to get one.

    It counts everything that runs meanwhile, in other processes too. A counter of
    microjoules begins anew above what it holds at most.

    Source: Linux, Documentation/power/powercap/powercap.rst.
    """

    def __init__(self, zones: Sequence[tuple[Path, int]]) -> None:
        self._zones = zones
        self._before = self._read()

    @classmethod
    def found(cls, root: Path) -> Self | None:
        """Return the meter of a machine, None if it has none that can be read.

        Packages are the zones directly below ``root`` such as ``intel-rapl:0``; zones
        of parts, such as ``intel-rapl:0:1``, are counted in them, and zones of
        ``intel-rapl-mmio`` are the same once more. Only root may read the counters on
        many systems.
        """
        try:
            zones = [
                (folder / "energy_uj", int((folder / _MOST).read_text()))
                for folder in sorted(root.iterdir())
                if _is_package(folder.name) and (folder / "energy_uj").exists()
            ]
            return cls(zones) if zones else None
        except (OSError, ValueError):
            return None

    def joules(self) -> float | None:
        """Return the energy since the last call, or since this was made.

        None if a counter can be read no longer.
        """
        try:
            now = self._read()
        except (OSError, ValueError):
            return None
        used = sum(
            after - before + (most if after < before else 0)
            for (_, most), before, after in zip(
                self._zones, self._before, now, strict=True
            )
        )
        self._before = now
        return used * 1e-6

    def _read(self) -> list[int]:
        return [int(counter.read_text()) for counter, _ in self._zones]
