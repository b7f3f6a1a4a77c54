"""``asyncnn bench accelerated``: the accelerated device beside LiteRT and ONNX Runtime.

What it costs to cut LiteRT's graphs, to await, cancel, share and serve them. Each is a
section of the report, with its contenders, the models that it suits, and limits.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeAlias

import msgspec

from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.tools.bench import accelerated_contenders as contenders
from asyncnn.tools.bench.accelerated_contenders import Measure, Measured
from asyncnn.tools.bench.environment import (
    ALL_CPUS,
    ONE_CPU,
    describe_environment,
    installed_versions,
    placement,
)
from asyncnn.tools.bench.litert import LITERT
from asyncnn.tools.bench.measured_models import (
    Candidate,
    candidates,
    every,
    first_servable,
    heavy,
    heavy_floats,
    long_ones,
    longest,
    model_files,
    servable,
    the_addition,
)
from asyncnn.tools.bench.onnx_models import ONNX, PACKAGES
from asyncnn.tools.bench.report import (
    Bars,
    Cell,
    Goal,
    Report,
    Table,
    Verdict,
    judge,
    ratio_cell,
    refusal_notes,
    verdict_cell,
)
from asyncnn.tools.bench.rounds import MIN_ROUNDS, Figure
from asyncnn.tools.bench.surrounding_contenders import (
    CONNECTED,
    HALVES,
    SECONDS,
    WHOLE,
    measure_beside,
    measure_framework,
    measure_starting,
)
from asyncnn.tools.other_runtimes import litert_version

Progress: TypeAlias = Callable[[Sequence[str]], Iterable[str]]


class Limits(NamedTuple):
    """The largest ratio of a figure to a peer's that is wanted, and the gate.

    They hold for models that LiteRT takes ``above_us`` to ``below_us`` for. A ratio
    whose limits are infinite is only shown.
    """

    figure: str
    peer: str
    goal: float
    gate: float
    above_us: float = 0.0
    below_us: float = inf

    def goal_of(self, *, gates: bool) -> Goal:
        """Return the goal, or the gate."""
        return Goal(self.figure, self.peer, self.gate if gates else self.goal)


Picks: TypeAlias = Callable[[Sequence[Candidate]], Sequence[Candidate]]


class Section(NamedTuple):
    """What is measured, in microseconds or else in the title's unit, and on what."""

    title: str
    cpus: str
    contenders: Mapping[str, str]
    limits: Sequence[Limits]
    picks: Picks
    measure: Measure


_ALONE = Section(
    "one run at a time, microseconds",
    ONE_CPU,
    {
        contenders.DEVICE: "device",
        contenders.AWAITED: "awaited",
        contenders.BOUND: "bound once",
        contenders.INLINE: "inline",
        LITERT: "LiteRT",
        contenders.ONE_THREAD: "one thread",
        contenders.EXECUTOR: "executor",
        ONNX: "ONNX",
        contenders.TO_THREAD: "to_thread",
    },
    (
        Limits(contenders.DEVICE, LITERT, 1.03, 1.08, above_us=200),
        Limits(contenders.AWAITED, LITERT, 1.20, inf, above_us=150, below_us=200),
        Limits(contenders.AWAITED, LITERT, 1.10, 1.20, above_us=200, below_us=400),
        Limits(contenders.AWAITED, LITERT, 1.20, inf, above_us=400, below_us=500),
        Limits(contenders.AWAITED, LITERT, 1.03, 1.08, above_us=2000),
        Limits(contenders.INLINE, LITERT, 1.02, 1.05, above_us=50, below_us=100),
        *(
            Limits(contenders.AWAITED, contenders.EXECUTOR, *limits)
            for limits in (
                (0.15, 0.25, 0, 10),
                (1.0, inf, 10, 50),
                (0.8, inf, 50, 200),
                (0.75, 0.85, 200, 400),
                (0.8, inf, 400, 500),
                (1.0, inf, 500, inf),
            )
        ),
        Limits(contenders.BOUND, contenders.EXECUTOR, 0.2, inf, below_us=10),
        Limits(
            contenders.BOUND, contenders.EXECUTOR, 0.75, inf, above_us=50, below_us=500
        ),
        Limits(contenders.AWAITED, contenders.TO_THREAD, inf, inf),
    ),
    every,
    contenders.measure_alone,
)
"""LiteRT itself gives the time by which the limits of a model are chosen."""

SECTIONS = {
    "alone": _ALONE,
    "tiny": Section(
        "an addition of four floats, microseconds",
        ONE_CPU,
        {
            contenders.AWAITED: "awaited",
            contenders.TO_THREAD: "asyncio.to_thread(np.add)",
        },
        (Limits(contenders.AWAITED, contenders.TO_THREAD, 0.3, 0.3),),
        the_addition,
        contenders.measure_tiny,
    ),
    "preparing": Section(
        "preparing, microseconds",
        ONE_CPU,
        {
            contenders.PREPARED: "device.prepare",
            contenders.CREATED: "interpreter created",
        },
        (
            Limits(contenders.PREPARED, contenders.CREATED, 6.0, 6.0, below_us=2000),
            Limits(contenders.PREPARED, contenders.CREATED, 2.0, 3.0, above_us=2000),
        ),
        every,
        contenders.measure_preparing,
    ),
    "cached": Section(
        "preparing float models with 1 MB of weights, binding included, microseconds",
        ONE_CPU,
        {contenders.CACHED: "from the cache", contenders.ANEW: "anew"},
        (Limits(contenders.CACHED, contenders.ANEW, 0.15, 0.3),),
        heavy_floats,
        contenders.measure_cached,
    ),
    "memory": Section(
        "private memory of a process with a prepared model, KiB",
        ALL_CPUS,
        {
            contenders.DEVICE: "device",
            LITERT: "LiteRT",
            contenders.FIRST: "first with a cache",
            contenders.SECOND: "second",
        },
        (
            Limits(contenders.DEVICE, LITERT, 1.1, 1.5),
            Limits(contenders.SECOND, contenders.FIRST, 0.3, 0.5),
        ),
        heavy,
        contenders.measure_memory,
    ),
    "cancelling": Section(
        "until the lane is free, 95th percentile, microseconds",
        ALL_CPUS,
        {
            contenders.CANCELLED: "cancelled",
            contenders.DEADLINE: "deadline",
            contenders.CANCELLED + contenders.PROCESSOR: "cancelled, CPU",
            contenders.DEADLINE + contenders.PROCESSOR: "deadline, CPU",
            contenders.PART: "longest part",
        },
        (
            Limits(contenders.CANCELLED, contenders.PART, 1.2, 2.0),
            Limits(contenders.DEADLINE, contenders.PART, 1.2, 2.0),
        ),
        long_ones,
        contenders.measure_cancelling,
    ),
    "priorities": Section(
        "HIGH beside LOW, which saturates the device, 99th percentile, microseconds",
        ALL_CPUS,
        {
            contenders.SATURATED: "HIGH, saturated",
            contenders.IDLE: "HIGH, idle",
            contenders.IDLE_AND_PART: "idle and a part of LOW",
        },
        (Limits(contenders.SATURATED, contenders.IDLE_AND_PART, 1.5, 2.0),),
        longest,
        contenders.measure_priorities,
    ),
    "framework": Section(
        "through a framework, in one partition and in two, microseconds",
        ALL_CPUS,
        {contenders.AWAITED: "device", WHOLE: "whole model", HALVES: "two partitions"},
        (
            Limits(WHOLE, contenders.AWAITED, 1.03, 1.05, above_us=200),
            Limits(HALVES, contenders.AWAITED, inf, inf),
        ),
        every,
        measure_framework,
    ),
    "serving": Section(
        "served at a concurrency of 8 and 64, microseconds for each request",
        ALL_CPUS,
        contenders.SERVING,
        (
            Limits(f"{contenders.ONE_LANE}_8", f"{contenders.EXECUTOR}_8", 0.8, inf),
            *(
                Limits(
                    f"{contenders.AWAITED}_{count}",
                    f"{peer}_{count}",
                    1 / goal,
                    1 / gate,
                )
                for count in contenders.CONCURRENCIES
                for peer, goal, gate in (
                    (contenders.EXECUTOR, 1 / 0.52, 1.5),
                    (contenders.TO_THREAD, 2.5, 2.0),
                )
            ),
        ),
        servable,
        contenders.measure_serving,
    ),
    "driver": Section(
        "through a driver process, microseconds",
        ALL_CPUS,
        {
            contenders.BURST: "by burst",
            contenders.REMOTE: "awaited",
            contenders.AWAITED: "awaited in this process",
        },
        (
            Limits(contenders.BURST, contenders.AWAITED, 1.05, 1.10),
            Limits(contenders.BURST, contenders.REMOTE, 1.0, inf),
        ),
        long_ones,
        contenders.measure_driver,
    ),
    "beside": Section(
        "awaited while the loop is busy in pieces of 90 us, microseconds",
        ALL_CPUS,
        {contenders.AWAITED: "awaited", contenders.EXECUTOR: "executor"},
        (Limits(contenders.AWAITED, contenders.EXECUTOR, 0.75, inf),),
        servable,
        measure_beside,
    ),
    "starting": Section(
        "from starting a process, or a driver, to the first result, milliseconds",
        ALL_CPUS,
        {
            contenders.DEVICE: "device",
            LITERT: "LiteRT",
            CONNECTED: "connect",
            SECONDS: "a second",
        },
        (
            Limits(contenders.DEVICE, LITERT, 2.0, inf),
            Limits(CONNECTED, SECONDS, 0.5, inf),
        ),
        first_servable,
        measure_starting,
    ),
    "heartbeat": Section(
        "lag of the loop, 99th percentile, microseconds",
        ALL_CPUS,
        {contenders.BUSY: "serving at full load", contenders.IDLE: "idle"},
        (Limits(contenders.BUSY, contenders.IDLE, 1.5, 3.0),),
        first_servable,
        contenders.measure_heartbeat,
    ),
}
"""Sections by name, in the order in which they are measured."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of one model in one section.

    ``rounds`` are figures by contender, ``values`` their medians, ``ratios`` are by the
    names of both contenders, as ``device / litert``. ``refusals`` say who was not
    measured.
    """

    model: str
    rounds: dict[str, tuple[float, ...]]
    values: dict[str, float]
    ratios: dict[str, float]
    verdicts: tuple[Verdict, ...]
    refusals: dict[str, str] = {}

    def cell(self, limits: Limits) -> Cell:
        """Return the cell of the ratio of a figure to its peer."""
        pair = f"{limits.figure} / {limits.peer}"
        cell = verdict_cell(self.verdicts, limits.figure, limits.peer)
        if cell == "-" and pair in self.ratios:
            return ratio_cell(f"{self.ratios[pair]:.3f}", "", None)
        return cell

    def value(self, contender: str) -> str:
        """Return a figure as text, a dash for none."""
        value = self.values.get(contender)
        if value is None:
            return "-"
        return f"{value:.0f}" if value >= 1000 else f"{value:.1f}"


class AcceleratedReport(Report, frozen=True, kw_only=True):
    """The JSON document of ``asyncnn bench accelerated --json``.

    ``sections`` are measurements, ``placements`` say where they were made.
    ``refusals`` are of models that cannot be imported.
    """

    sections: dict[str, tuple[Measurement, ...]]
    placements: dict[str, str]
    refusals: dict[str, str]

    @property
    def where(self) -> str:
        """That each section says it."""
        return "placed as each section says"

    def outcomes(self) -> Iterator[bool]:
        """Yield those of every section."""
        for measured in self.sections.values():
            for each in measured:
                yield from (verdict.met for verdict in each.verdicts)

    def tables(self) -> Iterator[Table]:
        """Yield, for each section that has models, tables of figures and of ratios."""
        for name, measured in self.sections.items():
            if not measured:
                continue
            section = SECTIONS[name]
            figures = [
                (each.model, *map(each.value, section.contenders)) for each in measured
            ]
            headings = ("", *section.contenders.values())
            yield Table(f"{name}: {section.title}", headings, [figures])
            pairs = {(each.figure, each.peer): each for each in section.limits}
            ratios = [
                (each.model, *map(each.cell, pairs.values())) for each in measured
            ]
            headings = ("", *(f"{figure} / {peer}" for figure, peer in pairs))
            yield Table(f"{name}: ratios", headings, [ratios])

    def notes(self) -> Iterator[str]:
        """Yield where sections were measured, and who was left out, and why."""
        for model, reason in self.refusals.items():
            yield f"{model} cannot be imported: {reason}"
        for name, measured in self.sections.items():
            where = self.placements.get(name)
            yield f"{name}: {where if measured else 'no model suits it'}"
        for name, measured in self.sections.items():
            refusals = {each.model: each.refusals for each in measured}
            for note in refusal_notes(refusals, SECTIONS[name].contenders):
                yield f"{name}: {note}"

    def bars(self) -> Bars:
        """Return a group for each model that runs alone."""
        titles = _ALONE.contenders
        return {
            each.model: {titles[name]: value for name, value in each.values.items()}
            for each in self.sections.get("alone", ())
        }


def judge_section(
    name: str, candidate: Candidate, measured: Measured, *, gates: bool = False
) -> Measurement:
    """Derive medians, ratios and verdicts; a figure without its peer has none."""
    rounds, refusals = measured
    section = SECTIONS[name]
    figures = {each: Figure(values) for each, values in rounds.items()}
    litert_us = figures[LITERT].us if name == "alone" and LITERT in figures else None
    us = candidate.us if litert_us is None else litert_us
    pairs = {
        (each.figure, each.peer)
        for each in section.limits
        if each.figure in figures and each.peer in figures
    }
    chosen = [
        each.goal_of(gates=gates)
        for each in section.limits
        if each.goal < inf and each.above_us <= us <= each.below_us
    ]
    return Measurement(
        model=candidate.name,
        rounds=rounds,
        values={each: median(values) for each, values in rounds.items()},
        ratios={
            f"{figure} / {peer}": figures[figure].ratio_to(figures[peer])
            for figure, peer in sorted(pairs)
        },
        verdicts=judge(chosen, figures),
        refusals=refusals,
    )


def bench(
    folder: Path | None = None,
    *,
    pattern: str = "*",
    mobilenet: bool | None = None,
    rounds: int = MIN_ROUNDS,
    gates: bool = False,
    section: Sequence[str] | None = None,
    progress: Progress = iter,
) -> AcceleratedReport:
    """Measure the models of a folder, see `model_files`.

    :param gates: judge by what any machine has to reach, not by what is wanted.
    :param section: names of `SECTIONS`; all if there are none.
    :raises PeerMissingError: if LiteRT is not installed.
    :raises InvalidArgumentError: if there is no such folder, model or section.
    """
    chosen = _chosen(section or (), SECTIONS)
    peers = {"litert": litert_version(), **installed_versions(*PACKAGES)}
    measured: dict[str, list[Measurement]] = {name: [] for name in chosen}
    placements: dict[str, str] = {}
    refusals: dict[str, str] = {}
    with model_files(folder, pattern, mobilenet=mobilenet) as paths:
        found = candidates(paths, refusals)
        turns = [
            (name, each) for name in chosen for each in SECTIONS[name].picks(found)
        ]
        labels = [f"{name}: {each.name}" for name, each in turns]
        for (name, each), _ in zip(turns, progress(labels), strict=True):
            with placement(SECTIONS[name].cpus) as where:
                result = _measured(SECTIONS[name], each, rounds)
            placements[name] = where
            measured[name].append(judge_section(name, each, result, gates=gates))
    return AcceleratedReport(
        environment=describe_environment(**peers),
        rounds=rounds,
        sections={name: tuple(each) for name, each in measured.items()},
        placements=placements,
        refusals=refusals,
    )


def _measured(section: Section, candidate: Candidate, rounds: int) -> Measured:
    """Measure a model; one that nobody could measure has the reason for everybody."""
    try:
        return asyncio.run(section.measure(candidate, rounds))
    except AsyncnnError as error:
        return {}, dict.fromkeys(section.contenders, str(error))


def _chosen(names: Sequence[str], known: Iterable[str]) -> list[str]:
    """Return those of the known sections that were named; all if none was.

    :raises InvalidArgumentError: if there is no such section.
    """
    known = list(known)
    for name in names:
        if name not in known:
            raise InvalidArgumentError(
                f"there is no section {name!r}", hint=f"known: {', '.join(known)}"
            )
    return [name for name in known if not names or name in names]
