"""``asyncnn bench responsiveness``: how long calls keep event loops from their turns.

A heartbeat of 1 ms beats on the event loop of the application, and on the one of the
driver process if there is one, while large models are prepared, queried, cached,
loaded, run for the first time and released, and while large inputs are run. What counts
is how late the beats are, beside beats of loops that have nothing else to do.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    ExitStack,
    asynccontextmanager,
    closing,
)
from fnmatch import fnmatchcase
from functools import partial
from statistics import median
from typing import TypeAlias

import msgspec
from msgspec import structs

import asyncnn
from asyncnn.devices import OWN_PROCESS, DeviceSettings
from asyncnn.devices.device_settings import with_options
from asyncnn.tools.bench import report
from asyncnn.tools.bench.activities import (
    ACTIVITIES,
    IDLE,
    RELEASE,
    DriverHeartbeat,
    Heartbeat,
    Pulse,
    Scene,
    Sizes,
    Watched,
    beating_driver,
)
from asyncnn.tools.bench.environment import ALL_CPUS, placement
from asyncnn.tools.bench.processes import temporary_folder
from asyncnn.tools.bench.rounds import Order, rotated

MAX_ATTEMPTS = 3
"""Attempts of one round, of which the one with the shortest gap counts."""

DISTURBED_MS = 2.0
"""A loop that waits for a CPU for longer is kept from it by others."""

_LEAST_S = 1.0
_AFTERWARDS_S = 0.1
_RESTING_S = 0.5

Pulses: TypeAlias = dict[str, Pulse]
"""What was heard in one attempt, by side."""

IN_PROCESS, APPLICATION, DRIVER = "in_process", "application", "driver"

SIDES = {
    IN_PROCESS: "device in the process",
    APPLICATION: "application of a driver",
    DRIVER: "the driver itself",
}
"""The loops whose heart beats."""

P99_BELOW_MS = 5.0
LONGEST_MS = 20.0


class Heard(msgspec.Struct, frozen=True):
    """The beats of one loop beside one activity; ``pulses`` are the rounds'.

    ``p50_ms`` and ``p99_ms`` are medians of the rounds', ``longest_ms`` is of all.
    """

    activity: str
    side: str
    pulses: tuple[Pulse, ...]
    p50_ms: float
    p99_ms: float
    longest_ms: float
    met: bool


def reported(
    rounds: int,
    where: str,
    sizes: Sizes,
    heard: Sequence[Heard],
    repeated: Mapping[str, int],
) -> report.BenchReport:
    """Return the report: a row for each activity, with what each side's loop had.

    ``repeated`` counts the attempts that the machine disturbed, by activity.
    """
    by_place = {(each.activity, each.side): each for each in heard}
    rows = [
        (activity.description, *(_cell(by_place.get((name, side))) for side in SIDES))
        for name, activity in ACTIVITIES.items()
        if any(each.activity == name for each in heard)
    ]
    notes = [
        f"goals: p99 below {P99_BELOW_MS:g} ms, none over {LONGEST_MS:g} ms; "
        f"models of {sizes.operations:,} operations, "
        f"inputs of {sizes.input_bytes / 2**20:g} MiB",
        *(
            f"{activity}: repeated {count} times, as the machine disturbed it"
            for activity, count in repeated.items()
            if count
        ),
    ]
    if not all(each.met for each in heard if each.activity == IDLE):
        notes.append(
            "the machine is too busy to judge: idle loops miss the goals as well"
        )
    title = "milliseconds that a loop is late: p50, p99, longest"
    fields = {**structs.asdict(sizes), "heard": heard, "repeated": repeated}
    return report.BenchReport(
        report.documented(rounds, None, placement=where, **fields),
        [report.ReportTable(title, ("beside", *SIDES.values()), [rows])],
        notes,
    )


def bench(order: Order, sizes: Sizes | None = None) -> report.BenchReport:
    """Measure the activities whose names match the pattern, and idle loops.

    The devices have the settings of a driver process, but for those that the order
    lists as NAME=VALUE.

    :raises InvalidArgumentError: if there is no such setting.
    """
    settings = with_options(OWN_PROCESS, order.setting or ())
    chosen = [a for a in ACTIVITIES if a == IDLE or fnmatchcase(a, order.pattern)]
    turns = [a for number in range(order.rounds) for a in rotated(chosen, number)]
    sizes = sizes or Sizes()

    async def attempts(has_driver: bool) -> list[tuple[str, list[Pulses]]]:
        async with _opened(settings, sizes, has_driver=has_driver) as (scene, watch):
            return [
                (activity, await _attempts(activity, scene, watch))
                for activity in order.progress(turns)
            ]

    pulses: defaultdict[tuple[str, str], list[Pulse]] = defaultdict(list)
    repeated: Counter[str] = Counter()
    with placement(ALL_CPUS) as where:
        for has_driver in (False, True):
            for activity, tried in asyncio.run(attempts(has_driver)):
                best = min(tried, key=lambda a: max(p.longest_ms for p in a.values()))
                for side, pulse in best.items():
                    pulses[activity, side].append(pulse)
                repeated[activity] += len(tried) - 1
    heard = [judge_pulses(*place, each) for place, each in pulses.items()]
    return reported(order.rounds, where, sizes, heard, dict(repeated))


async def _attempts(activity: str, scene: Scene, watch: "_Watch") -> list[Pulses]:
    """Watch an activity, and again if the machine has disturbed that."""
    attempts: list[Pulses] = []
    while len(attempts) < MAX_ATTEMPTS:
        act = await ACTIVITIES[activity].prepare(scene)
        await scene.settle()
        attempts.append(await watch(act, _least_s(activity)))
        if not any(is_disturbed(pulse) for pulse in attempts[-1].values()):
            break
    return attempts


def is_disturbed(pulse: Pulse) -> bool:
    """Return whether goals may have been missed because of others on the machine."""
    missed = not meets_goals(pulse.p99_ms, pulse.longest_ms)
    return missed and pulse.waited_ms > DISTURBED_MS


def _least_s(activity: str) -> float:
    """Return how long to listen at least: a device that is left alone rests later."""
    if activity == RELEASE:
        return DeviceSettings().idle_after_s + _RESTING_S
    return _LEAST_S


class _Watch(msgspec.Struct, frozen=True):
    """Has hearts beat while something is done, and a while after."""

    side: str
    heartbeat: Heartbeat
    driver: DriverHeartbeat | None = None

    async def __call__(self, act: Watched, least_s: float) -> Pulses:
        """Return what was heard during ``act`` and until ``least_s`` have passed."""
        clock = asyncio.get_running_loop().time
        if self.driver is not None:
            self.driver.start()
        started = clock()
        self.heartbeat.start()
        kept = await act()
        await asyncio.sleep(max(started + least_s - clock(), _AFTERWARDS_S))
        pulses = {self.side: self.heartbeat.stop()}
        if self.driver is not None:
            pulses[DRIVER] = self.driver.stop()
        del kept
        return pulses


@asynccontextmanager
async def _opened(
    settings: DeviceSettings, sizes: Sizes, *, has_driver: bool
) -> AsyncIterator[tuple[Scene, _Watch]]:
    """Have a device in this process, or a driver process with two connections."""
    with ExitStack() as stack:
        root = stack.enter_context(temporary_folder())
        heartbeat = stack.enter_context(closing(Heartbeat()))
        path, cache = root / "driver.sock", root / "models"
        cache.mkdir(mode=0o700)
        settings = structs.replace(settings, cache_key_file=str(root / "key"))
        watch = _Watch(IN_PROCESS, heartbeat)
        opened: Callable[..., AbstractAsyncContextManager[asyncnn.Device]]
        opened = partial(asyncnn.open_device, settings=settings)
        if has_driver:
            driver = stack.enter_context(beating_driver(path, settings))
            watch = _Watch(APPLICATION, heartbeat, driver)
            opened = partial(asyncnn.connect, path)
        async with opened() as plain, opened(cache_dir=cache) as cached:
            yield Scene(plain, cached, cache, sizes), watch


def judge_pulses(activity: str, side: str, pulses: Sequence[Pulse]) -> Heard:
    """Hold the pulses of all rounds against the goals."""
    p99_ms = median(pulse.p99_ms for pulse in pulses)
    longest_ms = max(pulse.longest_ms for pulse in pulses)
    return Heard(
        activity,
        side,
        tuple(pulses),
        median(pulse.p50_ms for pulse in pulses),
        p99_ms,
        longest_ms,
        meets_goals(p99_ms, longest_ms),
    )


def meets_goals(p99_ms: float, longest_ms: float) -> bool:
    """Return whether a loop that was so late is responsive."""
    return p99_ms < P99_BELOW_MS and longest_ms <= LONGEST_MS


def _cell(heard: Heard | None) -> report.Cell:
    if heard is None:
        return "-"
    figures = f"{heard.p50_ms:.2f} {heard.p99_ms:6.2f} {heard.longest_ms:7.2f}"
    return report.Outcome(figures, None if heard.activity == IDLE else heard.met)
