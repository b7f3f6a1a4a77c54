"""A bench as a table: contenders, how each starts, and the goals of their ratios.

Contenders are measured in groups, each in rounds of its own. One starts on the CPUs of
its `Place`, ends with its group, and may be what is to be measured of a workload, such
as a model. `Placement` has the figures of one place, `PlacedReport` of several.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    nullcontext,
)
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias, TypeVar

import msgspec

from asyncnn.devices import OWN_PROCESS, DeviceSettings
from asyncnn.runtime.device import Device
from asyncnn.runtime.opening_devices import open_device
from asyncnn.tools.bench.environment import (
    CpuPair,
    PeerMissingError,
    cpu_pairs,
    describe_environment,
    installed_versions,
    pinned,
)
from asyncnn.tools.bench.report import (
    MICROSECONDS,
    Bars,
    BenchReport,
    Cell,
    Goal,
    GoalVerdict,
    Measured,
    ReportTable,
    judge,
    noted,
    verdict_cell,
)
from asyncnn.tools.bench.rounds import (
    Batch,
    Batches,
    Call,
    Figures,
    Runs,
    measure,
    percentile,
    timed,
)

W = TypeVar("W")

BATCH_US = 20_000.0
_P99 = " p99"
_HERE = CpuPair(0, 0)

Starting: TypeAlias = AbstractAsyncContextManager[Any] | Awaitable[Any]
"""Gives what is measured once it is entered or awaited."""

Start: TypeAlias = "Callable[[Place], Starting]"

Started: TypeAlias = dict[str, Runs]
"""What is measured, by contender."""


class Place:
    """Where contenders start, and what they have open there.

    ``cpus`` matter to those with another process. ``refusals`` say who is not measured.
    """

    def __init__(self, stack: AsyncExitStack, cpus: CpuPair = _HERE) -> None:
        self.stack = stack
        self.enter = stack.enter_async_context
        self.cpus = cpus
        self.cpu = cpus.other
        self.refusals: dict[str, str] = {}
        self._shared: dict[Any, Any] = {}

    def noted(self, *names: str) -> AbstractContextManager[None]:
        """Note why contenders cannot do what the block has them do."""
        return noted(self.refusals, *names)

    async def device(
        self, settings: DeviceSettings = OWN_PROCESS, cache_dir: Path | None = None
    ) -> Device:
        """Open the accelerated device."""
        opened = open_device("accelerated", settings=settings, cache_dir=cache_dir)
        return await self.enter(opened)

    async def shared(self, open_: Callable[..., Any], *args: Any) -> Any:
        """Return what a context has open, the same for all contenders that ask."""
        key = open_, args
        if key not in self._shared:
            self._shared[key] = await self.opened(open_(*args))
        return self._shared[key]

    async def opened(self, starting: Starting) -> Any:
        """Await what is starting, or enter it for as long as the stack."""
        if isinstance(starting, AbstractAsyncContextManager):
            return await self.enter(starting)
        return await starting


class Group(NamedTuple):
    """Contenders that are measured in the same rounds, ``beside`` something else.

    A call is of ``per`` messages, each of which counts, and begins after ``pause_s``.
    """

    contenders: Mapping[str, Start]
    batch_us: float = BATCH_US
    per: int = 1
    pause_s: float = 0.0
    beside: Callable[[CpuPair], AbstractContextManager[object]] = nullcontext


def called(call: Call) -> Start:
    """Return what starts a contender that needs nothing but its call."""

    async def start(place: Place) -> Call:
        return call

    return start


def with_device(
    open_: Callable[[int], AbstractAsyncContextManager[Any]],
    make: Callable[..., Starting],
    *args: object,
) -> Start:
    """Return what starts a contender by ``make`` with a device that others share."""

    async def start(place: Place) -> Any:
        device = await place.shared(open_, place.cpu)
        return await place.opened(make(device, *args))

    return start


async def measure_workload(
    start: Callable[[W, Place], Awaitable[Started]], workload: W, rounds: int
) -> tuple[Figures, dict[str, str]]:
    """Start contenders of a workload, measure them, and say why others were not."""
    async with AsyncExitStack() as stack:
        place = Place(stack)
        started = await start(workload, place)
        return await measure(started, rounds=rounds), place.refusals


async def _measure(
    group: Group, rounds: int, cpus: CpuPair, refusals: dict[str, str]
) -> Figures:
    async with AsyncExitStack() as stack:
        place = Place(stack, cpus)
        started: dict[str, Any] = {}
        for name, start in group.contenders.items():
            with noted(refusals, name, errors=PeerMissingError):
                started[name] = await place.opened(start(place))
        with group.beside(cpus):
            runs: Started = {
                name: Batches(partial(_run, await timed(name, each), name, group))
                for name, each in started.items()
            }
            return await measure(runs, rounds=rounds, batch_us=group.batch_us)


async def _run(
    once: Batch, figure: str, group: Group, runs: int
) -> Mapping[str, Sequence[float]]:
    """Run a batch of a contender, which has a 99th percentile as well."""
    samples: list[float] = []
    for _ in range(runs if group.pause_s else 1):
        if group.pause_s:
            await asyncio.sleep(group.pause_s)
        many = await once(1 if group.pause_s else runs)
        samples.extend(us / group.per for us in many[figure])
    return {figure: samples, figure + _P99: [percentile(samples, 0.99)]}


class Placement(Measured, frozen=True, kw_only=True):
    """Figures of one placement, by contender; ``p99_us`` are medians of percentiles."""

    placement: str
    p99_us: dict[str, float] = msgspec.field(default_factory=dict)
    is_apart: bool = False

    def verdict_on(self, goal: Goal) -> Cell:
        """Return the cell of the verdict on a goal, whatever its limit was here."""
        return verdict_cell(self.verdicts, goal.figure, goal.peer)


Judge: TypeAlias = Callable[[Figures, bool], tuple[GoalVerdict, ...]]
"""Holds figures against goals; takes whether the two processes have a CPU each."""


def placed(
    where: str,
    groups: Iterable[Group],
    judged: Judge | Sequence[Goal],
    rounds: int,
    cpus: CpuPair = _HERE,
) -> Placement:
    """Measure groups one after the other; peers that are missing are noted."""
    refusals: dict[str, str] = {}
    figures: Figures = {}
    for group in groups:
        # A loop of its own: threads keep the placement that they were started in.
        figures |= asyncio.run(_measure(group, rounds, cpus, refusals))
    medians = {name: f for name, f in figures.items() if not name.endswith(_P99)}
    return Placement(
        placement=where,
        figures=medians,
        verdicts=(
            judged(medians, cpus.is_apart)
            if callable(judged)
            else judge(judged, medians)
        ),
        refusals=refusals,
        p99_us={name: figures[name + _P99].us for name in medians},
        is_apart=cpus.is_apart,
    )


def placements(
    groups: Sequence[Group], judged: Judge | Sequence[Goal], rounds: int
) -> Iterator[Placement]:
    """Measure with the other process on another CPU, then on the same one.

    A machine with one CPU is measured once.
    """
    for cpus in cpu_pairs():
        with pinned(cpus.client):
            yield placed(str(cpus), groups, judged, rounds, cpus)


class PlacedReport(BenchReport, frozen=True, kw_only=True):
    """Contenders that were measured in more than one placement.

    The table has a row for each contender and each goal, and a column for each
    placement.
    """

    CONTENDERS: ClassVar[Mapping[str, str]]
    """Titles of the contenders, in the order in which they are reported."""

    GROUPS: ClassVar[Sequence[Group]]
    """Those that are measured in the same rounds, and how they start."""

    GOALS: ClassVar[Sequence[Goal]]
    TITLE: ClassVar[str] = MICROSECONDS

    placements: tuple[Placement, ...]

    @classmethod
    def measured(cls, rounds: int, *packages: str, **told: Any) -> Self:
        """Measure with two processes on different CPUs, then on the same one.

        ``packages`` are peers', and ``told`` what else the report has.
        """
        return cls(
            environment=describe_environment(**installed_versions(*packages)),
            rounds=rounds,
            placements=tuple(placements(cls.GROUPS, cls.GOALS, rounds)),
            **told,
        )

    @property
    def where(self) -> str:
        """That it ran in every placement."""
        return "in each placement"

    def time(self, placement: Placement, contender: str) -> str:
        """Return the time of a contender as text."""
        return placement.time(contender)

    def tables(self) -> Iterator[ReportTable]:
        """Yield the one table."""
        placements = self.placements
        times = [
            (description, *(self.time(each, name) for each in placements))
            for name, description in self.CONTENDERS.items()
        ]
        goals = [
            (f"{goal.figure} / {goal.peer}", *(p.verdict_on(goal) for p in placements))
            for goal in self.GOALS
        ]
        where = (each.placement for each in placements)
        yield ReportTable(self.TITLE, ("", *where), (times, goals))

    def notes(self) -> Iterator[str]:
        """Yield who could not be measured, and why."""
        placements = self.placements
        reasons = {name: why for p in placements for name, why in p.refusals.items()}
        for name, why in reasons.items():
            yield f"{name} was not measured: {why}"

    def bars(self) -> Bars:
        """Return a group for each contender, a bar for each placement."""
        return {
            title: {p.placement: p.us[name] for p in self.placements if name in p.us}
            for name, title in self.CONTENDERS.items()
        }
