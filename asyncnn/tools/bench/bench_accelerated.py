"""``asyncnn bench accelerated``: the accelerated device beside LiteRT and ONNX Runtime.

What it costs to cut LiteRT's graphs, to await, cancel, share and serve them. Each is a
section of the report, with its contenders, the models that it suits, and goals.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.tools.bench import accelerated_contenders as contenders
from asyncnn.tools.bench import environment, measured_models, report
from asyncnn.tools.bench.benches import Place, Started, measure_workload
from asyncnn.tools.bench.noop import tiny_addition
from asyncnn.tools.bench.onnx_models import PACKAGES
from asyncnn.tools.bench.rounds import MIN_ROUNDS, Figures, Progress
from asyncnn.tools.other_runtimes import litert_version

Picks: TypeAlias = Callable[
    [Sequence[measured_models.ModelCandidate]], Sequence[measured_models.ModelCandidate]
]


class Section(NamedTuple):
    """What is measured, in microseconds or else in the title's unit, and on what."""

    title: str
    cpus: str
    contenders: Mapping[str, str]
    goals: Sequence[report.Goal]
    picks: Picks
    start: Callable[[measured_models.ModelCandidate, Place], Awaitable[Started]]


SECTIONS = {
    "alone": Section(
        "one run at a time, microseconds",
        environment.ONE_CPU,
        {
            "device": "device",
            "awaited": "awaited",
            "bound": "bound once",
            "inline": "inline",
            "litert": "LiteRT",
            "one_thread": "one thread",
            "executor": "executor",
            "onnx": "ONNX",
            "to_thread": "to_thread",
        },
        (
            report.Goal("device", "litert", 1.03, 1.08, above_us=200),
            report.Goal("awaited", "litert", 1.20, inf, above_us=150, below_us=200),
            report.Goal("awaited", "litert", 1.10, 1.20, above_us=200, below_us=400),
            report.Goal("awaited", "litert", 1.20, inf, above_us=400, below_us=500),
            report.Goal("awaited", "litert", 1.03, 1.08, above_us=2000),
            report.Goal("inline", "litert", 1.02, 1.05, above_us=50, below_us=100),
            report.Goal("awaited", "executor", 0.15, 0.25, below_us=10),
            report.Goal("awaited", "executor", 1.0, inf, above_us=10, below_us=50),
            report.Goal("awaited", "executor", 0.8, inf, above_us=50, below_us=200),
            report.Goal("awaited", "executor", 0.75, 0.85, above_us=200, below_us=400),
            report.Goal("awaited", "executor", 0.8, inf, above_us=400, below_us=500),
            report.Goal("awaited", "executor", 1.0, inf, above_us=500),
            report.Goal("bound", "executor", 0.2, inf, below_us=10),
            report.Goal("bound", "executor", 0.75, inf, above_us=50, below_us=500),
            report.Goal("awaited", "to_thread", inf, inf),
        ),
        list,
        contenders.alone,
    ),
    "tiny": Section(
        "an addition of four floats, microseconds",
        environment.ONE_CPU,
        {"awaited": "awaited", "to_thread": "asyncio.to_thread(np.add)"},
        (report.Goal("awaited", "to_thread", 0.3, 0.3),),
        lambda models: [measured_models.ModelCandidate("ADD [4]", tiny_addition())],
        contenders.tiny,
    ),
    "preparing": Section(
        "preparing, microseconds",
        environment.ONE_CPU,
        {"prepared": "device.prepare", "created": "interpreter created"},
        (
            report.Goal("prepared", "created", 6.0, 6.0, below_us=2000),
            report.Goal("prepared", "created", 2.0, 3.0, above_us=2000),
        ),
        list,
        contenders.preparing,
    ),
    "cached": Section(
        "preparing float models with 1 MB of weights, binding included, microseconds",
        environment.ONE_CPU,
        {"cached": "from the cache", "anew": "anew"},
        (report.Goal("cached", "anew", 0.15, 0.3),),
        measured_models.heavy_floats,
        contenders.cached,
    ),
    "memory": Section(
        "private memory of a process with a prepared model, KiB",
        environment.ALL_CPUS,
        {
            "device": "device",
            "litert": "LiteRT",
            "first": "first with a cache",
            "second": "second",
        },
        (
            report.Goal("device", "litert", 1.1, 1.5),
            report.Goal("second", "first", 0.3, 0.5),
        ),
        measured_models.heavy,
        contenders.memory,
    ),
    "cancelling": Section(
        "until the lane is free, 95th percentile, microseconds",
        environment.ALL_CPUS,
        {
            "cancelled": "cancelled",
            "deadline": "deadline",
            "cancelled_cpu": "cancelled, CPU",
            "deadline_cpu": "deadline, CPU",
            "part": "measured_models.longest part",
        },
        (
            report.Goal("cancelled", "part", 1.2, 2.0),
            report.Goal("deadline", "part", 1.2, 2.0),
        ),
        measured_models.long_ones,
        contenders.cancelling,
    ),
    "priorities": Section(
        "HIGH beside LOW, which saturates the device, 99th percentile, microseconds",
        environment.ALL_CPUS,
        {
            "saturated": "HIGH, saturated",
            "idle": "HIGH, idle",
            "idle_and_part": "idle and a part of LOW",
        },
        (report.Goal("saturated", "idle_and_part", 1.5, 2.0),),
        measured_models.longest,
        contenders.priorities,
    ),
    "framework": Section(
        "through a framework, in one partition and in two, microseconds",
        environment.ALL_CPUS,
        {"awaited": "device", "whole": "whole model", "halves": "two partitions"},
        (
            report.Goal("whole", "awaited", 1.03, 1.05, above_us=200),
            report.Goal("halves", "awaited", inf, inf),
        ),
        list,
        contenders.framework,
    ),
    "serving": Section(
        "served at a concurrency of 8 and 64, microseconds for each request",
        environment.ALL_CPUS,
        {
            f"{name}_{count}": f"{title}, {count}"
            for count in contenders.CONCURRENCIES
            for name, title in (
                ("awaited", "device"),
                ("one_lane", "one lane"),
                ("one_thread", "one thread"),
                ("executor", "executor"),
                ("to_thread", "ONNX, to_thread"),
            )
        },
        (
            report.Goal("one_lane_8", "executor_8", 0.8, inf),
            *(
                report.Goal(f"awaited_{count}", f"{peer}_{count}", goal, gate)
                for count in contenders.CONCURRENCIES
                for peer, goal, gate in (
                    ("executor", 0.52, 1 / 1.5),
                    ("to_thread", 1 / 2.5, 1 / 2.0),
                )
            ),
        ),
        measured_models.servable,
        contenders.serving,
    ),
    "driver": Section(
        "through a driver process, microseconds",
        environment.ALL_CPUS,
        {
            "burst": "by burst",
            "remote": "awaited",
            "awaited": "awaited in this process",
        },
        (
            report.Goal("burst", "awaited", 1.05, 1.10),
            report.Goal("burst", "remote", 1.0, inf),
        ),
        measured_models.long_ones,
        contenders.driver,
    ),
    "beside": Section(
        "awaited while the loop is busy in pieces of 90 us, microseconds",
        environment.ALL_CPUS,
        {"awaited": "awaited", "executor": "executor"},
        (report.Goal("awaited", "executor", 0.75, inf),),
        measured_models.servable,
        contenders.beside,
    ),
    "starting": Section(
        "from starting a process, or a driver, to the first result, milliseconds",
        environment.ALL_CPUS,
        {
            "device": "device",
            "litert": "LiteRT",
            "connected": "connect",
            "a second": "a second",
        },
        (
            report.Goal("device", "litert", 2.0, inf),
            report.Goal("connected", "a second", 0.5, inf),
        ),
        measured_models.first_servable,
        contenders.starting,
    ),
    "heartbeat": Section(
        "lag of the loop, 99th percentile, microseconds",
        environment.ALL_CPUS,
        {"busy": "serving at full load", "idle": "idle"},
        (report.Goal("busy", "idle", 1.5, 3.0),),
        measured_models.first_servable,
        contenders.heartbeat,
    ),
}
"""Sections by name, in the order in which they are measured.

In the first, LiteRT itself gives the time by which the limits of a model are chosen.
"""


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
    verdicts: tuple[report.GoalVerdict, ...]
    refusals: dict[str, str] = {}

    def cell(self, goal: report.Goal) -> report.Cell:
        """Return the cell of the ratio of a figure to its peer."""
        pair = f"{goal.figure} / {goal.peer}"
        cell = report.verdict_cell(self.verdicts, goal.figure, goal.peer)
        if cell == "-" and pair in self.ratios:
            return report.ratio_cell(f"{self.ratios[pair]:.3f}", "", None)
        return cell

    def value(self, contender: str) -> str:
        """Return a figure as text, a dash for none."""
        return report.figure_text(self.values.get(contender))


class AcceleratedReport(report.BenchReport, frozen=True, kw_only=True):
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

    def tables(self) -> Iterator[report.ReportTable]:
        """Yield, for each section that has models, tables of figures and of ratios."""
        for name, measured in self.sections.items():
            if not measured:
                continue
            section = SECTIONS[name]
            figures = [
                (each.model, *map(each.value, section.contenders)) for each in measured
            ]
            headings = ("", *section.contenders.values())
            yield report.ReportTable(f"{name}: {section.title}", headings, [figures])
            pairs = {(each.figure, each.peer): each for each in section.goals}
            ratios = [
                (each.model, *map(each.cell, pairs.values())) for each in measured
            ]
            headings = ("", *(f"{figure} / {peer}" for figure, peer in pairs))
            yield report.ReportTable(f"{name}: ratios", headings, [ratios])

    def notes(self) -> Iterator[str]:
        """Yield where sections were measured, and who was left out, and why."""
        for model, reason in self.refusals.items():
            yield f"{model} cannot be imported: {reason}"
        for name, measured in self.sections.items():
            where = self.placements.get(name)
            yield f"{name}: {where if measured else 'no model suits it'}"
        for name, measured in self.sections.items():
            refusals = {each.model: each.refusals for each in measured}
            for note in report.refusal_notes(refusals, SECTIONS[name].contenders):
                yield f"{name}: {note}"

    def bars(self) -> report.Bars:
        """Return a group for each model that runs alone."""
        titles = SECTIONS["alone"].contenders
        return {
            each.model: {titles[name]: value for name, value in each.values.items()}
            for each in self.sections.get("alone", ())
        }


def judge_section(
    name: str,
    candidate: measured_models.ModelCandidate,
    figures: Figures,
    refusals: dict[str, str],
    *,
    gates: bool = False,
) -> Measurement:
    """Derive medians, ratios and verdicts; a figure without its peer has none."""
    section = SECTIONS[name]
    litert_us = (
        figures[measured_models.LITERT].us
        if name == "alone" and measured_models.LITERT in figures
        else None
    )
    us = candidate.us if litert_us is None else litert_us
    pairs = {
        (each.figure, each.peer)
        for each in section.goals
        if each.figure in figures and each.peer in figures
    }
    chosen = [
        each
        for each in section.goals
        if each.limit < inf and each.above_us <= us <= each.below_us
    ]
    return Measurement(
        model=candidate.name,
        rounds={each: figure.round_medians_us for each, figure in figures.items()},
        values={each: figure.us for each, figure in figures.items()},
        ratios={
            f"{figure} / {peer}": figures[figure].ratio_to(figures[peer])
            for figure, peer in sorted(pairs)
        },
        verdicts=report.judge(chosen, figures, gates=gates),
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
    peers = {"litert": litert_version(), **environment.installed_versions(*PACKAGES)}
    measured: dict[str, list[Measurement]] = {name: [] for name in chosen}
    placements: dict[str, str] = {}
    refusals: dict[str, str] = {}
    with measured_models.model_files(folder, pattern, mobilenet=mobilenet) as paths:
        found = measured_models.candidates(paths, refusals)
        turns = [
            (name, each) for name in chosen for each in SECTIONS[name].picks(found)
        ]
        labels = [f"{name}: {each.name}" for name, each in turns]
        for (name, each), _ in zip(turns, progress(labels), strict=True):
            with environment.placement(SECTIONS[name].cpus) as where:
                result = asyncio.run(_measured(SECTIONS[name], each, rounds))
            placements[name] = where
            measured[name].append(judge_section(name, each, *result, gates=gates))
    return AcceleratedReport(
        environment=environment.describe_environment(**peers),
        rounds=rounds,
        sections={name: tuple(each) for name, each in measured.items()},
        placements=placements,
        refusals=refusals,
    )


async def _measured(
    section: Section, candidate: measured_models.ModelCandidate, rounds: int
) -> tuple[Figures, dict[str, str]]:
    """Measure a model; one that nobody could measure has the reason for everybody."""
    try:
        return await measure_workload(section.start, candidate, rounds)
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
