"""``asyncnn bench threads``: the accelerated device beside `asyncio.to_thread`.

What an application notices: how long it waits, alone and among others, what stopping a
run gives back, what a crash and several processes cost. The peers are what one writes
without a device: a thread of the event loop's default executor around an interpreter of
LiteRT, one for each thread, or around a session of ONNX Runtime, with one thread each.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

from asyncnn.tools.bench.environment import (
    ALL_CPUS,
    describe_environment,
    installed_versions,
    placement,
)
from asyncnn.tools.bench.onnx_models import PACKAGES
from asyncnn.tools.bench.report import (
    Cell,
    Goal,
    Measured,
    SingleReport,
    Table,
    Verdict,
    judge,
    refusal_notes,
    verdict_cell,
)
from asyncnn.tools.bench.rounds import FEW_ROUNDS, Figure
from asyncnn.tools.bench.thread_contenders import (
    ASYNCNN,
    LITERT_THREAD,
    ONNX_THREAD,
    Files,
    measure_alone,
    measure_crash,
    measure_memory,
    measure_serving,
    measure_stopping,
    measure_urgent,
    model_pair,
)
from asyncnn.tools.other_runtimes import litert_version

Progress: TypeAlias = Callable[[Sequence[str]], Iterable[str]]

TITLES = {
    ASYNCNN: "asyncnn",
    LITERT_THREAD: "to_thread, LiteRT",
    ONNX_THREAD: "to_thread, ONNX Runtime",
}

GOALS = tuple(Goal(ASYNCNN, peer, 1.0) for peer in (LITERT_THREAD, ONNX_THREAD))
"""They hold for every row: a device that is slower than a thread helps nobody."""


class Rows(NamedTuple):
    """Figures that are measured together: titles and units by the name of the figure.

    ``measure`` takes the models' files, the rounds and where to note who refuses, and
    returns by figure and contender a value of each round.
    """

    titles: Mapping[str, tuple[str, str]]
    measure: Callable[
        [Files, int, dict[str, str]],
        Coroutine[Any, Any, Mapping[str, Mapping[str, Sequence[float]]]],
    ]


SECTIONS = {
    "alone": Rows({"alone": ("one run, median", "us")}, measure_alone),
    "serving": Rows(
        {"serving": ("64 tasks at once, time for each request", "us")}, measure_serving
    ),
    "urgent": Rows(
        {"urgent": ("an urgent run beside 16 long ones, 99th percentile", "ms")},
        measure_urgent,
    ),
    "stopping": Rows(
        {
            "cancelled": (
                "after a cancel, until the thread is free, 95th percentile",
                "ms",
            ),
            "deadline": (
                "after a missed deadline, until the thread is free, 95th percentile",
                "ms",
            ),
        },
        measure_stopping,
    ),
    "crash": Rows(
        {"crash": ("after a crash of the engine, until the next result", "ms")},
        measure_crash,
    ),
    "memory": Rows(
        {"memory": ("four processes with a model of 17 MB", "MiB")}, measure_memory
    ),
}
"""What is measured together, by name, in the order in which it is."""

CRASH_NOTE = "a crash in a thread of the application ends the application: no figure"


class ThreadsRow(Measured, frozen=True, kw_only=True):
    """A figure of all contenders, in its ``unit``, smaller is better."""

    title: str
    unit: str
    verdicts: tuple[Verdict, ...]
    refusals: dict[str, str]

    def cells(self) -> tuple[Cell, ...]:
        """Return the cells of the table."""
        ratios = (verdict_cell(self.verdicts, g.figure, g.peer) for g in GOALS)
        return (f"{self.title}, {self.unit}", *map(self.time, TITLES), *ratios)


class ThreadsReport(SingleReport, frozen=True, kw_only=True):
    """The JSON document of ``asyncnn bench threads --json``: rows by figure."""

    TITLE: ClassVar[str] = "beside a thread of the application; smaller is better"

    rows: dict[str, ThreadsRow]

    def outcomes(self) -> Iterator[bool]:
        """Yield those of every row."""
        for row in self.rows.values():
            yield from (verdict.met for verdict in row.verdicts)

    def tables(self) -> Iterator[Table]:
        """Yield the one table."""
        headings = ("", *TITLES.values(), "/ LiteRT", "/ ONNX Runtime")
        yield Table(self.TITLE, headings, [[row.cells() for row in self.rows.values()]])

    def notes(self) -> Iterator[str]:
        """Yield who was not measured, and why."""
        if "crash" in self.rows:
            yield CRASH_NOTE
        refusals = {row.title: row.refusals for row in self.rows.values()}
        yield from refusal_notes(refusals, TITLES)


def bench(*, rounds: int = FEW_ROUNDS, progress: Progress = iter) -> ThreadsReport:
    """Measure on models that are made for it, wherever the system puts the threads.

    :raises PeerMissingError: if LiteRT is not installed.
    """
    peers = {"litert": litert_version(), **installed_versions(*PACKAGES)}
    rows: dict[str, ThreadsRow] = {}
    with model_pair() as files, placement(ALL_CPUS) as where:
        for name in progress(list(SECTIONS)):
            section = SECTIONS[name]
            refusals: dict[str, str] = {}
            measured = asyncio.run(section.measure(files, rounds, refusals))
            for figure, (title, unit) in section.titles.items():
                rows[figure] = _row(title, unit, measured[figure], refusals)
    return ThreadsReport(
        environment=describe_environment(**peers),
        rounds=rounds,
        placement=where,
        rows=rows,
    )


def _row(
    title: str,
    unit: str,
    measured: Mapping[str, Sequence[float]],
    refusals: dict[str, str],
) -> ThreadsRow:
    figures = {name: Figure(tuple(values)) for name, values in measured.items()}
    return ThreadsRow(
        title=title,
        unit=unit,
        figures=figures,
        verdicts=judge(GOALS, figures),
        refusals=refusals,
    )
