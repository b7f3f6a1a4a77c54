"""The soak: mixed work for long, and what of the processes grows meanwhile."""

import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

import asyncnn
from asyncnn.engine import Program
from asyncnn.hal.types import Priority
from asyncnn.tools.bench.made_models import long_model
from asyncnn.tools.bench.measured_models import small_model
from asyncnn.tools.bench.qos_load import direct
from asyncnn.tools.bench.rounds import percentile
from asyncnn.tools.other_runtimes import LiteRt
from asyncnn.tools.samples import random_sample
from asyncnn.tools.stress import bodies, dying
from asyncnn.tools.stress.place import Body, StressPlace
from asyncnn.tools.stress.stress_report import FAILURE, Growth, StressRow, growth_text
from asyncnn.tools.stress.watchdog import StressTrial, try_case
from asyncnn.tools.watched_processes import descriptors_of

_OTHERS: tuple[Body, ...] = (
    bodies.mixed,
    bodies.bursts,
    dying.fences,
    dying.sessions,
    dying.leaving,
)
"""What clients do that come and die."""

_RATIO, _MINUTES = "p99_ratio", "minutes"
_WINDOW_S, _PAIRS, _TURN_S = 10.0, 100, 0.5
_LOOK_S = 2.0
_WARM_UP = 1 / 3
_BLOCKS = 10
_T_95 = 2.31
"""Of Student's distribution: 95 % on both sides, for slopes through ten points."""

_MB = 1e6
_RSS_MB_H, _STEP_MB, _STEP = 1.0, 1.05, 1.5
"""What memory may gain in an hour; what a single arena, or one more of what is counted,
makes of a short soak.
"""
_SLOWER = 0.1
_SHM = Path("/dev/shm")


async def soaking(place: StressPlace) -> None:
    """Be the client that stays and measures, or one that dies."""
    if place.order.number:
        await place.rng.choice(_OTHERS)(place)
        return
    with small_model() as file:
        async with place.opened() as device:
            run, bare = await _compared(place, device, file)
            while not place.is_over:
                await _window(place, device, run, bare)


async def _compared(
    place: StressPlace, device: asyncnn.Device, file: Path
) -> tuple[Callable[[], Awaitable[object]], Callable[[], object]]:
    """Return what runs a model on the device, and on a bare engine in this thread."""
    is_reference = place.order.device == "reference"
    named = long_model(12, 1) if is_reference else asyncnn.load(file)
    await place.require(device, named)
    sample = random_sample(named.inputs)
    prepared = await device.prepare(named, priority=Priority.HIGH)
    (x,) = sample.values()
    if is_reference:
        return lambda: prepared.run(sample), direct(Program(named.model), x)
    engine = LiteRt(file)
    return lambda: prepared.run(sample), lambda: engine.run([x])


async def _window(
    place: StressPlace,
    device: asyncnn.Device,
    run: Callable[[], Awaitable[object]],
    bare: Callable[[], object],
) -> None:
    """Measure for some seconds, with work of all kinds between."""
    times: tuple[list[int], list[int]] = ([], [])
    until = time.monotonic() + _WINDOW_S
    while time.monotonic() < until and not place.is_over:
        for _ in range(_PAIRS):
            started = time.perf_counter_ns()
            await run()
            middle = time.perf_counter_ns()
            bare()
            times[0].append(middle - started)
            times[1].append(time.perf_counter_ns() - middle)
        place.done("measured", _PAIRS)
        await _mixed_turn(place)
    ours, engines = (percentile(each, 0.99) for each in times)
    place.figures.setdefault(_RATIO, []).append(ours / engines)
    minutes = (time.monotonic() - place.span.begin) / 60
    place.figures.setdefault(_MINUTES, []).append(minutes)


async def _mixed_turn(place: StressPlace) -> None:
    """Do what some other case does, on a device of its own, for a moment."""
    end = min(place.span.end, time.monotonic() + _TURN_S)
    turn = StressPlace(place.order, replace(place.span, end=end), place.output)
    turn.rng = place.rng
    turn.counts = place.counts
    turn.figures = place.figures
    await place.rng.choice((bodies.mixed, bodies.bursts, dying.fences, dying.sessions))(
        turn
    )


class Gauges:
    """Reads what processes have, now and then."""

    def __init__(self) -> None:
        self._read_at = 0.0
        self.minutes: list[float] = []
        self.values: dict[tuple[str, str], list[float]] = {}

    def watch(self, pids: Mapping[str, int], passed: float) -> None:
        """Read the gauges of processes by their names, if it is time."""
        if passed < self._read_at:
            return
        self._read_at = passed + _LOOK_S
        try:
            read = dict(_read(pids))
        except OSError:
            return  # one of them is ending
        self.minutes.append(passed / 60)
        for key, value in read.items():
            self.values.setdefault(key, []).append(value)


def _read(pids: Mapping[str, int]) -> "list[tuple[tuple[str, str], float]]":
    found: list[tuple[tuple[str, str], float]] = []
    for who, pid in pids.items():
        root = Path(f"/proc/{pid}")
        pages = int((root / "statm").read_text().split()[1])
        found += [
            ((f"{who} RSS", "MB"), pages * os.sysconf("SC_PAGE_SIZE") / _MB),
            ((f"{who} descriptors", ""), len(descriptors_of(pid))),
            ((f"{who} threads", ""), len(os.listdir(root / "task"))),
            ((f"{who} mappings", ""), (root / "maps").read_bytes().count(b"\n")),
        ]
    names = sum("asyncnn" in name for name in os.listdir(_SHM)) if _SHM.exists() else 0
    return [*found, (("names in /dev/shm", ""), names)]


def growth_of(
    name: str, unit: str, minutes: Sequence[float], values: Sequence[float]
) -> Growth:
    """Return how a quantity has gone, by the last two thirds of its values.

    These are cut into ten blocks. A line is laid through the least of each, as what
    clients hold that live then comes on top, or the mean of ratios; the noise is that
    of its slope with 95 % confidence. Neighbouring values depend on each other, blocks
    hardly do. A single step shows in one half of the blocks, growth in both. Fewer than
    twenty values say nothing.
    """
    begin = int(len(values) * _WARM_UP)
    times, kept = np.array(minutes[begin:]) / 60, np.array(values[begin:])
    slope, noise, most, grows = 0.0, None, 0.0, False
    if len(kept) >= 2 * _BLOCKS:
        cut = np.mean if name == _RATIO else np.min
        at = np.array([np.mean(block) for block in np.array_split(times, _BLOCKS)])
        of_blocks = np.array([cut(block) for block in np.array_split(kept, _BLOCKS)])
        (slope, start) = (float(each) for each in np.polyfit(at, of_blocks, 1))
        left = of_blocks - start - slope * at
        spread = ((at - at.mean()) ** 2).sum()
        noise = _T_95 * float(np.sqrt((left**2).sum() / (_BLOCKS - 2) / spread))
        hours = float(times[-1] - times[0])
        most = _most(name, unit, float(kept.mean()), hours)
        halves = np.split(of_blocks, 2)
        goes_on = all(half[-1] > half[0] for half in halves)
        grows = slope - noise > most and goes_on
    return Growth(
        name=name,
        unit=unit,
        minutes=tuple(minutes),
        values=tuple(map(float, values)),
        slope=slope,
        noise=noise,
        most=most,
        grows=grows,
    )


def _most(name: str, unit: str, mean: float, hours: float) -> float:
    """Return what a quantity may gain in an hour of a soak that lasted ``hours``."""
    if name == _RATIO:
        return _SLOWER * mean / hours
    return max(_RSS_MB_H, _STEP_MB / hours) if unit == "MB" else _STEP / hours


def soak(trial: StressTrial) -> tuple[StressRow, list[Growth]]:
    """Soak a device; it fails if something grows beyond noise."""
    gauges = Gauges()
    row = try_case(replace(trial, watch=gauges.watch))
    growth = [
        growth_of(name, unit, gauges.minutes, values)
        for (name, unit), values in gauges.values.items()
    ]
    minutes, ratios = (row.figures.pop(each, []) for each in (_MINUTES, _RATIO))
    growth.append(growth_of(_RATIO, "", minutes, ratios))
    grown = [growth_text(each) for each in growth if each.grows]
    if grown and row.has_passed:
        row = replace(row, outcome=FAILURE, reason="; ".join(grown))
    return row, growth
