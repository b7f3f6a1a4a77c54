"""Watches event loops beside each activity, in process and with a driver process."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import replace

from asyncnn.devices import OWN_PROCESS, DeviceSettings
from asyncnn.runtime.device import connect, open_device
from asyncnn.tools.bench.environment import describe_environment
from asyncnn.tools.bench.placement import ALL_CPUS, placement
from asyncnn.tools.bench.processes import temporary_folder
from asyncnn.tools.bench.responsiveness.activities import ACTIVITIES, Stage, Watched
from asyncnn.tools.bench.responsiveness.driver import DriverHeartbeat, beating_driver
from asyncnn.tools.bench.responsiveness.heartbeat import Heartbeat, Pulse
from asyncnn.tools.bench.responsiveness.report import (
    APPLICATION,
    DRIVER,
    IDLE,
    IN_PROCESS,
    RELEASE,
    Heard,
    ResponsivenessReport,
    judge,
    meets_goals,
)
from asyncnn.tools.bench.responsiveness.workloads import Sizes
from asyncnn.tools.bench.rounds import rotated

DEFAULT_ROUNDS = 3
MAX_ATTEMPTS = 3
"""Attempts of one round, of which the one with the shortest gap counts."""

DISTURBED_MS = 2.0
"""A loop that waits for a CPU for longer is kept from it by others."""

_LEAST_S = 1.0
_AFTERWARDS_S = 0.1
_RESTING_S = 0.5

Pulses: TypeAlias = dict[str, Pulse]
"""What was heard in one attempt, by side."""

Progress: TypeAlias = Callable[[Sequence[str]], Iterable[str]]


def bench_responsiveness(
    *,
    rounds: int = DEFAULT_ROUNDS,
    pattern: str = "*",
    sizes: Sizes | None = None,
    settings: DeviceSettings = OWN_PROCESS,
    progress: Progress = lambda activities: activities,
) -> ResponsivenessReport:
    """Measure the activities whose names match ``pattern``, and idle loops.

    The devices have ``settings``, by default those of a driver process.
    """
    chosen = [a for a in ACTIVITIES if a == IDLE or fnmatchcase(a, pattern)]
    sizes = sizes or Sizes()
    results = _Results()
    with placement(ALL_CPUS) as where:
        for way in _WAYS:
            open_bench = partial(way, settings)
            asyncio.run(_measure(open_bench, sizes, chosen, rounds, progress, results))
    return ResponsivenessReport(
        environment=describe_environment(),
        placement=where,
        rounds=rounds,
        operations=sizes.operations,
        input_bytes=sizes.input_bytes,
        heard=results.judged(),
        repeated=dict(results.repeated),
    )


class _Results:
    """What was heard so far."""

    def __init__(self) -> None:
        self.repeated: Counter[str] = Counter()
        self._pulses: defaultdict[tuple[str, str], list[Pulse]] = defaultdict(list)

    def add(self, activity: str, attempts: Sequence[Pulses]) -> None:
        best = min(attempts, key=_longest_ms)
        for side, pulse in best.items():
            self._pulses[activity, side].append(pulse)
        self.repeated[activity] += len(attempts) - 1

    def judged(self) -> tuple[Heard, ...]:
        return tuple(judge(*place, pulses) for place, pulses in self._pulses.items())


async def _measure(
    open_bench: "_OpenBench",
    sizes: Sizes,
    activities: Sequence[str],
    rounds: int,
    progress: Progress,
    results: _Results,
) -> None:
    turns = [a for number in range(rounds) for a in rotated(activities, number)]
    async with open_bench(sizes) as (stage, watch):
        for activity in progress(turns):
            results.add(activity, await _attempts(activity, stage, watch))


async def _attempts(activity: str, stage: Stage, watch: "_Watch") -> list[Pulses]:
    """Watch an activity, and again if the machine has disturbed that."""
    attempts: list[Pulses] = []
    while len(attempts) < MAX_ATTEMPTS:
        async with ACTIVITIES[activity](stage) as act:
            await stage.settle()
            attempts.append(await watch(act, _least_s(activity)))
        if not any(is_disturbed(pulse) for pulse in attempts[-1].values()):
            break
    return attempts


def is_disturbed(pulse: Pulse) -> bool:
    """Tell whether goals may have been missed because of others on the machine."""
    missed = not meets_goals(pulse.p99_ms, pulse.longest_ms)
    return missed and pulse.waited_ms > DISTURBED_MS


def _longest_ms(pulses: Pulses) -> float:
    return max(pulse.longest_ms for pulse in pulses.values())


def _least_s(activity: str) -> float:
    """Return how long to listen at least: a device that is left alone rests later."""
    if activity == RELEASE:
        return DeviceSettings().idle_after_s + _RESTING_S
    return _LEAST_S


class _Watch:
    """Has hearts beat while something is done, and a while after."""

    def __init__(
        self, side: str, heartbeat: Heartbeat, driver: DriverHeartbeat | None = None
    ) -> None:
        self._side = side
        self._heartbeat = heartbeat
        self._driver = driver

    async def __call__(self, act: Watched, least_s: float) -> Pulses:
        """Return what was heard during ``act`` and until ``least_s`` have passed."""
        clock = asyncio.get_running_loop().time
        if self._driver is not None:
            self._driver.start()
        started = clock()
        self._heartbeat.start()
        kept = await act()
        await asyncio.sleep(max(started + least_s - clock(), _AFTERWARDS_S))
        pulses = {self._side: self._heartbeat.stop()}
        if self._driver is not None:
            pulses[DRIVER] = self._driver.stop()
        del kept
        return pulses


_Bench: TypeAlias = tuple[Stage, _Watch]
_OpenBench: TypeAlias = Callable[[Sizes], AbstractAsyncContextManager[_Bench]]
_Way: TypeAlias = Callable[[DeviceSettings, Sizes], AbstractAsyncContextManager[_Bench]]


@asynccontextmanager
async def _in_process(given: DeviceSettings, sizes: Sizes) -> AsyncIterator[_Bench]:
    """Have a device in this process."""
    with temporary_folder() as root, closing(Heartbeat()) as heartbeat:
        settings, cache = _settings(given, root), _cache_folder(root)
        async with (
            open_device(settings=settings) as plain,
            open_device(settings=settings, cache_dir=cache) as cached,
        ):
            stage = Stage(plain, cached, cache, sizes)
            yield stage, _Watch(IN_PROCESS, heartbeat)


@asynccontextmanager
async def _with_driver(given: DeviceSettings, sizes: Sizes) -> AsyncIterator[_Bench]:
    """Have a driver process, and two connections to it."""
    with temporary_folder() as root, closing(Heartbeat()) as heartbeat:
        path, cache = root / "driver.sock", _cache_folder(root)
        with beating_driver(path, _settings(given, root)) as driver:
            async with (
                connect(path) as plain,
                connect(path, cache_dir=cache) as cached,
            ):
                stage = Stage(plain, cached, cache, sizes)
                yield stage, _Watch(APPLICATION, heartbeat, driver)


def _settings(given: DeviceSettings, root: Path) -> DeviceSettings:
    return replace(given, cache_key_file=str(root / "key"))


def _cache_folder(root: Path) -> Path:
    folder = root / "models"
    folder.mkdir(mode=0o700)
    return folder


_WAYS: tuple[_Way, ...] = (_in_process, _with_driver)
