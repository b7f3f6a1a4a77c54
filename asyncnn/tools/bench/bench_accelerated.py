"""``asyncnn bench accelerated``: the accelerated device beside LiteRT and ONNX Runtime.

What it costs to cut LiteRT's graphs, to await, cancel, share and serve them. Each is a
section of the report, with its contenders, the models that it suits, and goals.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, NamedTuple

from asyncnn.hal.errors import AsyncnnError, require_known
from asyncnn.tools.bench import accelerated_contenders as contenders
from asyncnn.tools.bench import environment, measured_models, report
from asyncnn.tools.bench.benches import StartAll, measure_workload
from asyncnn.tools.bench.environment import ALL_CPUS, ONE_CPU
from asyncnn.tools.bench.made_models import tiny_addition
from asyncnn.tools.bench.measured_models import ModelCandidate
from asyncnn.tools.bench.report import Goal, Measured, Subjects
from asyncnn.tools.bench.rounds import Figures, Order
from asyncnn.tools.onnx_writer import PACKAGES
from asyncnn.tools.other_runtimes import litert_version


def _titles(words: str) -> dict[str, str]:
    """Return titles by name, as in ``name: title; name``; some are their own titles."""
    pairs = [each.strip().partition(": ") for each in words.split(";")]
    return {name: title or name for name, _, title in pairs}


class Section(NamedTuple):
    """What is measured, in microseconds or else in the title's unit, and on what.

    Rows are a ratio, its limit and gate, and from and to what LiteRT takes it holds.
    """

    title: str
    contenders: Mapping[str, str]
    rows: Sequence[tuple[Any, ...]]
    start: StartAll[ModelCandidate]
    picks: Callable[[Sequence[ModelCandidate]], Sequence[ModelCandidate]] = list
    cpus: str = ALL_CPUS

    @property
    def goals(self) -> list[Goal]:
        """Goals of the ratios."""
        return [Goal(*ratio.split(" / "), *limits) for ratio, *limits in self.rows]


_SERVED = _titles(
    "awaited: device; one_lane: one lane; one_thread: one thread; executor; "
    "to_thread: ONNX, to_thread"
)

SECTIONS = {
    "alone": Section(
        "one run at a time, microseconds",
        _titles(
            "device; awaited; bound: bound once; inline; litert: LiteRT; "
            "one_thread: one thread; executor; onnx: ONNX; to_thread"
        ),
        [
            ("device / litert", 1.03, 1.08, 200),
            ("awaited / litert", 1.2, inf, 150, 200),
            ("awaited / litert", 1.1, 1.2, 200, 400),
            ("awaited / litert", 1.2, inf, 400, 500),
            ("awaited / litert", 1.03, 1.08, 2000),
            ("inline / litert", 1.02, 1.05, 50, 100),
            ("awaited / executor", 0.15, 0.25, 0, 10),
            ("awaited / executor", 1.0, inf, 10, 50),
            ("awaited / executor", 0.8, inf, 50, 200),
            ("awaited / executor", 0.75, 0.85, 200, 400),
            ("awaited / executor", 0.8, inf, 400, 500),
            ("awaited / executor", 1.0, inf, 500),
            ("bound / executor", 0.2, inf, 0, 10),
            ("bound / executor", 0.75, inf, 50, 500),
            ("awaited / to_thread", inf, inf),
        ],
        contenders.alone,
        cpus=ONE_CPU,
    ),
    "tiny": Section(
        "an addition of four floats, microseconds",
        _titles("awaited; to_thread: asyncio.to_thread(np.add)"),
        [("awaited / to_thread", 0.3, 0.3)],
        contenders.tiny,
        lambda models: [ModelCandidate("ADD [4]", tiny_addition())],
        ONE_CPU,
    ),
    "preparing": Section(
        "preparing, microseconds",
        _titles("prepared: device.prepare; created: interpreter created"),
        [
            ("prepared / created", 6.0, 6.0, 0, 2000),
            ("prepared / created", 2.0, 3.0, 2000),
        ],
        contenders.preparing,
        cpus=ONE_CPU,
    ),
    "cached": Section(
        "preparing float models with 1 MB of weights, binding included, microseconds",
        _titles("cached: from the cache; anew"),
        [("cached / anew", 0.15, 0.3)],
        contenders.cached,
        lambda models: measured_models.floats(measured_models.heavy(models)),
        ONE_CPU,
    ),
    "memory": Section(
        "private memory of a process with a prepared model, KiB",
        _titles("device; litert: LiteRT; first: first with a cache; second"),
        [("device / litert", 1.1, 1.5), ("second / first", 0.3, 0.5)],
        contenders.memory,
        measured_models.heavy,
    ),
    "cancelling": Section(
        "until the lane is free, 95th percentile, microseconds",
        _titles(
            "cancelled; deadline; cancelled_cpu: cancelled, CPU; "
            "deadline_cpu: deadline, CPU; part: longest part"
        ),
        [("cancelled / part", 1.2, 2.0), ("deadline / part", 1.2, 2.0)],
        contenders.cancelling,
        measured_models.long_ones,
    ),
    "priorities": Section(
        "HIGH beside LOW, which saturates the device, 99th percentile, microseconds",
        _titles(
            "saturated: HIGH, saturated; idle: HIGH, idle; "
            "idle_and_part: idle and a part of LOW"
        ),
        [("saturated / idle_and_part", 1.5, 2.0)],
        contenders.priorities,
        lambda models: measured_models.long_ones(models)[-1:],
    ),
    "framework": Section(
        "through a framework, in one partition and in two, microseconds",
        _titles("awaited: device; whole: whole model; halves: two partitions"),
        [("whole / awaited", 1.03, 1.05, 200), ("halves / awaited", inf, inf)],
        contenders.framework,
    ),
    "serving": Section(
        "served at a concurrency of 8 and 64, microseconds for each request",
        {
            f"{name}_{count}": f"{title}, {count}"
            for count in contenders.CONCURRENCIES
            for name, title in _SERVED.items()
        },
        [
            ("one_lane_8 / executor_8", 0.8, inf),
            ("awaited_8 / executor_8", 0.52, 1 / 1.5),
            ("awaited_8 / to_thread_8", 1 / 2.5, 1 / 2.0),
            ("awaited_64 / executor_64", 0.52, 1 / 1.5),
            ("awaited_64 / to_thread_64", 1 / 2.5, 1 / 2.0),
        ],
        contenders.serving,
        measured_models.servable,
    ),
    "driver": Section(
        "through a driver process, microseconds",
        _titles("burst: by burst; remote: awaited; awaited: awaited in this process"),
        [("burst / awaited", 1.05, 1.10), ("burst / remote", 1.0, inf)],
        contenders.driver,
        measured_models.long_ones,
    ),
    "beside": Section(
        "awaited while the loop is busy in pieces of 90 us, microseconds",
        _titles("awaited; executor"),
        [("awaited / executor", 0.75, inf)],
        contenders.beside,
        measured_models.servable,
    ),
    "starting": Section(
        "from starting a process, or a driver, to the first result, milliseconds",
        _titles("device; litert: LiteRT; connected: connect; a second"),
        [("device / litert", 2.0, inf), ("connected / a second", 0.5, inf)],
        contenders.starting,
        lambda models: measured_models.servable(models)[-1:],
    ),
    "heartbeat": Section(
        "lag of the loop, 99th percentile, microseconds",
        _titles("busy: serving at full load; idle"),
        [("busy / idle", 1.5, 3.0)],
        contenders.heartbeat,
        lambda models: measured_models.servable(models)[-1:],
    ),
}
"""Sections by name, in the order in which they are measured.

In the first, LiteRT itself gives the time by which the limits of a model are chosen.
"""


def judge_section(
    name: str,
    candidate: ModelCandidate,
    figures: Figures,
    refusals: dict[str, str],
    *,
    gates: bool = False,
) -> Measured:
    """Derive ratios and verdicts; a figure without its peer has none."""
    goals, us = SECTIONS[name].goals, candidate.us
    if name == "alone" and measured_models.LITERT in figures:
        us = figures[measured_models.LITERT].us
    chosen = [
        each
        for each in goals
        if each.limit < inf and each.above_us <= us <= each.below_us
    ]
    pairs = sorted({(each.figure, each.peer) for each in goals})
    ratios = {
        f"{figure} / {peer}": figures[figure].ratio_to(figures[peer])
        for figure, peer in pairs
        if {figure, peer} <= figures.keys()
    }
    return Measured.judged(
        candidate.name, figures, chosen, refusals, gates, ratios=ratios
    )


def bench(order: Order) -> report.BenchReport:
    """Measure models, see `model_files`, in the sections that are named, or all.

    :raises PeerMissingError: if LiteRT is not installed.
    :raises InvalidArgumentError: if there is no such folder, model or section.
    """
    chosen = _chosen(order.section or ())
    peers = {"litert": litert_version(), **environment.installed_versions(*PACKAGES)}
    measured: dict[str, list[Measured]] = {name: [] for name in chosen}
    placements: dict[str, str] = {}
    refusals: dict[str, str] = {}
    with measured_models.model_files(order) as paths:
        found = measured_models.candidates(paths, refusals)
        turns = [
            (name, each) for name in chosen for each in SECTIONS[name].picks(found)
        ]
        labels = [f"{name}: {each.name}" for name, each in turns]
        for (name, each), _ in zip(turns, order.progress(labels), strict=True):
            with environment.placement(SECTIONS[name].cpus) as placements[name]:
                result = asyncio.run(_measured(SECTIONS[name], each, order.rounds))
            judged = judge_section(name, each, *result, gates=order.gates)
            measured[name].append(judged)
    return reported(order.rounds, measured, placements, refusals, peers)


async def _measured(
    section: Section, candidate: ModelCandidate, rounds: int
) -> tuple[Figures, dict[str, str]]:
    """Measure a model; one that nobody could measure has the reason for everybody."""
    try:
        return await measure_workload(section.start, candidate, rounds)
    except AsyncnnError as error:
        return {}, dict.fromkeys(section.contenders, str(error))


def reported(
    rounds: int,
    sections: Mapping[str, Sequence[Measured]],
    placements: Mapping[str, str],
    refusals: Mapping[str, str],
    peers: Mapping[str, str] | None = None,
) -> report.BenchReport:
    """Return the report; ``refusals`` are of models that cannot be imported."""
    notes = [f"{model} cannot be imported: {why}" for model, why in refusals.items()]
    for name, measured in sections.items():
        where = placements.get(name)
        notes.append(f"{name}: {where if measured else 'no model suits it'}")
    for name, measured in sections.items():
        refused = {each.name: each.refusals for each in measured}
        lines = report.refusal_notes(refused, SECTIONS[name].contenders)
        notes.extend(f"{name}: {note}" for note in lines)
    titles = SECTIONS["alone"].contenders
    return report.BenchReport(
        report.documented(
            rounds,
            peers,
            sections={
                name: [*map(_record, measured)] for name, measured in sections.items()
            },
            placements=placements,
            refusals=refusals,
        ),
        [t for name, each in sections.items() if each for t in _tables(name, each)],
        notes,
        {each.name: each.bars(titles) for each in sections.get("alone", ())},
        "placed as each section says",
    )


def _record(model: Measured) -> dict[str, Any]:
    figures = model.figures.items()
    return {
        "model": model.name,
        "rounds": {name: each.round_medians_us for name, each in figures},
        "values": model.us,
        **model.facts,
        "verdicts": model.verdicts,
        "refusals": model.refusals,
    }


def _tables(name: str, models: Sequence[Measured]) -> Iterator[report.ReportTable]:
    section = SECTIONS[name]
    figures = Subjects(section.contenders, {}, title=f"{name}: {section.title}")
    yield figures.table(models)
    cells = {
        f"{goal.figure} / {goal.peer}": partial(
            Measured.cell, figure=goal.figure, peer=goal.peer, always=True
        )
        for goal in section.goals
    }
    yield Subjects({}, cells, title=f"{name}: ratios").table(models)


def _chosen(names: Sequence[str]) -> list[str]:
    """Return the sections that were named; all if none was.

    :raises InvalidArgumentError: if there is no such section.
    """
    for name in names:
        require_known("section", name, SECTIONS)
    return [name for name in SECTIONS if not names or name in names]
