"""A bench as a table: contenders, how each starts, and the goals of their ratios.

Contenders start in a `Place`, on its CPUs, and end with it. What they run may be a
workload, such as a model: then a function starts all of them at once. A `PlacedBench`
measures its contenders in several placements, in groups with rounds of their own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    nullcontext,
)
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from asyncnn.devices import OWN_PROCESS, DeviceSettings
from asyncnn.runtime.device import Device
from asyncnn.runtime.opening_devices import open_device
from asyncnn.tools.bench.environment import (
    CpuPair,
    PeerMissingError,
    cpu_pairs,
    installed_versions,
    pinned,
)
from asyncnn.tools.bench.report import (
    MICROSECONDS,
    BenchReport,
    Goal,
    Measured,
    ReportTable,
    documented,
    judge,
    noted,
)
from asyncnn.tools.bench.rounds import (
    P99,
    Call,
    Figure,
    Figures,
    Order,
    Started,
    measure,
)

W = TypeVar("W")

BATCH_US = 20_000.0
HERE = CpuPair(0, 0)

Starting: TypeAlias = AbstractAsyncContextManager[Any] | Awaitable[Any]
"""Gives what is measured once it is entered or awaited."""

Start: TypeAlias = "Callable[[Place], Starting]"


class Place:
    """Where contenders start, and what they have open there.

    ``cpus`` matter to those with another process. ``refusals`` say who is not measured.
    """

    def __init__(self, stack: AsyncExitStack, cpus: CpuPair = HERE) -> None:
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
        self,
        settings: DeviceSettings = OWN_PROCESS,
        cache_dir: Path | None = None,
        name: str | None = "accelerated",
    ) -> Device:
        """Open a device."""
        opened = open_device(name, settings=settings, cache_dir=cache_dir)
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


StartAll: TypeAlias = Callable[[W, Place], Awaitable[Started]]
"""Starts all contenders of a workload."""


class Group(NamedTuple):
    """Contenders that are measured in the same rounds, ``beside`` something else.

    The other fields are as in `measure`.
    """

    contenders: Mapping[str, Start]
    batch_us: float = BATCH_US
    per: int = 1
    pause_s: float = 0.0
    beside: Callable[[CpuPair], AbstractContextManager[object]] = nullcontext

    async def measured(
        self, rounds: int, cpus: CpuPair, refusals: dict[str, str]
    ) -> Figures:
        """Start and measure; note peers that are missing."""
        async with AsyncExitStack() as stack:
            place, started = Place(stack, cpus), Started()
            for name, start in self.contenders.items():
                with noted(refusals, name, errors=PeerMissingError):
                    started[name] = await place.opened(start(place))
            with self.beside(cpus):
                return await measure(
                    started,
                    rounds=rounds,
                    batch_us=self.batch_us,
                    per=self.per,
                    pause_s=self.pause_s,
                    p99=True,
                )


def called(call: Call) -> Start:
    """Return what starts a contender that needs nothing but its call."""

    async def start(place: Place) -> Call:
        return call

    return start


def on_cpu(make: Callable[..., Starting], *args: object) -> Start:
    """Return what starts a contender by ``make`` with the other process's CPU."""
    return lambda place: make(place.cpu, *args)


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
    start: StartAll[W], workload: W, rounds: int
) -> tuple[Figures, dict[str, str]]:
    """Start contenders of a workload, measure them, and say why others were not."""
    async with AsyncExitStack() as stack:
        place = Place(stack)
        started = await start(workload, place)
        return await measure(started, rounds=rounds), place.refusals


def apart_and_together() -> Iterator[tuple[str, CpuPair]]:
    """Place the other process on another CPU, if there is one, then on the same."""
    for cpus in cpu_pairs():
        with pinned(cpus.client):
            yield str(cpus), cpus


class PlacedBench(NamedTuple):
    """Contenders that are measured in more than one placement; called to measure.

    The table has a row for each contender and each goal, and a column for each
    placement. ``goals`` hold where two processes have a CPU each, and ``together``
    where they share one, if that makes a difference. Peers may be ``constants``, or
    be of ``packages`` that may be missing.
    """

    titles: Mapping[str, str]
    groups: Sequence[Group] | Mapping[str, Start]
    goals: Sequence[Goal]
    together: Sequence[Goal] | None = None
    packages: Sequence[str] = ()
    notes: Sequence[str] = ()
    fields: Mapping[str, Any] = {}
    title: str = MICROSECONDS
    places: Callable[[], Iterator[tuple[str, CpuPair]]] = apart_and_together
    time: Callable[[Measured, str], str] = Measured.time
    constants: Mapping[str, float] = {}

    @property
    def _groups(self) -> Sequence[Group]:
        return [Group(g)] if isinstance(g := self.groups, Mapping) else g

    def __call__(self, order: Order) -> BenchReport:
        """Measure groups one after the other, in each placement."""
        return self.report(order.rounds, self.measured(order))

    def measured(self, order: Order) -> list[Measured]:
        """Return what was measured in each placement."""
        return [self.placed(where, cpus, order) for where, cpus in self.places()]

    def placed(self, where: str, cpus: CpuPair, order: Order) -> Measured:
        """Measure in one placement."""
        refusals: dict[str, str] = {}
        figures: Figures = {}
        for group in self._groups:
            # A loop of its own: threads keep the placement that they were started in.
            measured = group.measured(order.rounds, cpus, refusals)
            figures |= asyncio.run(measured)
        return self.judged(where, figures, cpus.is_apart, refusals, order.gates)

    def judged(
        self,
        where: str,
        figures: Figures,
        is_apart: bool,
        refusals: dict[str, str],
        gates: bool = False,
    ) -> Measured:
        """Hold figures, percentiles among them, against the goals of a placement."""
        medians = {name: f for name, f in figures.items() if not name.endswith(P99)}
        p99_us = {n: figures[n + P99].us for n in medians if n + P99 in figures}
        goals = self.goals if is_apart or self.together is None else self.together
        known = dict(medians)
        for figure in [*medians.values()][:1]:
            rounds = len(figure.round_medians_us)
            known |= {n: Figure((us,) * rounds) for n, us in self.constants.items()}
        return Measured(
            name=where,
            figures=medians,
            verdicts=judge(goals, known, gates=gates),
            refusals=refusals,
            facts={"p99_us": p99_us, "is_apart": is_apart},
        )

    def report(self, rounds: int, placements: Sequence[Measured]) -> BenchReport:
        """Return the report on placements."""
        times = [
            (title, *(self.time(each, name) for each in placements))
            for name, title in self.titles.items()
        ]
        goals = [
            (
                f"{goal.figure} / {goal.peer}",
                *(each.cell(goal.figure, goal.peer) for each in placements),
            )
            for goal in self.goals
        ]
        headings = ("", *(each.name for each in placements))
        reasons = {n: why for each in placements for n, why in each.refusals.items()}
        refused = [f"{n} was not measured: {why}" for n, why in reasons.items()]
        return BenchReport(
            documented(
                rounds,
                installed_versions(*self.packages),
                placements=[each.record("placement") for each in placements],
                **self.fields,
            ),
            [ReportTable(self.title, headings, (times, goals))],
            [*self.notes, *refused],
            {
                title: {p.name: p.us[name] for p in placements if name in p.us}
                for name, title in self.titles.items()
            },
        )
