"""What ``asyncnn loadgen compare`` reports: rates, latencies, and goals for them."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import msgspec

from asyncnn.deadlines import format_duration
from asyncnn.tools.bench.environment import Environment
from asyncnn.tools.bench.report import Outcome, ReportTable, Row

THREADSAFE, AWAITED, REMOTE, BURST = "threadsafe", "awaited", "remote", "burst"
EXECUTOR, TWO_THREADS, TO_THREAD = "executor", "executor_2", "to_thread"
CEILING = "threads"
AT_ONCE, AT_ONCE_BY_LOOP = "at_once", "at_once_by_loop"
BLOCKING, BURST_BY_LOOP = "burst_blocking", "burst_by_loop"

TITLES = {
    THREADSAFE: "asyncnn, launched by LoadGen's thread",
    AWAITED: "asyncnn, awaited",
    BURST: "asyncnn, driver process, bursts",
    REMOTE: "asyncnn, driver process, awaited",
    EXECUTOR: "LiteRT, executor of one thread",
    TWO_THREADS: "LiteRT, executor of two threads",
    TO_THREAD: "ONNX Runtime, asyncio.to_thread",
    CEILING: "LiteRT, two threads and a queue, no loop",
    AT_ONCE: "answers at once, same thread",
    BLOCKING: "asyncnn, burst, same thread",
    AT_ONCE_BY_LOOP: "answers at once, through the loop",
    BURST_BY_LOOP: "asyncnn, burst, through the loop",
}

SINGLE, OFFLINE, TINY = "SingleStream", "Offline", "tiny"
SERVER_20, SERVER_40 = "Server, 20 x", "Server, 40 x"
BOUNDS = {SERVER_20: 20, SERVER_40: 40}
"""Bounds of the 99th percentile, in multiples of what the model takes by itself."""

RATE, P50, P90, P99 = "rate", "p50_us", "p90_us", "p99_us"


class SystemGoal(msgspec.Struct, frozen=True):
    """A figure of ``system`` divided by ``peer``'s, at least or at most this."""

    section: str
    system: str
    peer: str
    figure: str
    limit: float
    at_least: bool = False


GOALS = (
    SystemGoal(SERVER_20, THREADSAFE, EXECUTOR, RATE, 1.6, at_least=True),
    SystemGoal(SERVER_20, THREADSAFE, TO_THREAD, RATE, 2.3, at_least=True),
    SystemGoal(SERVER_40, THREADSAFE, EXECUTOR, RATE, 1.4, at_least=True),
    SystemGoal(SERVER_40, THREADSAFE, TO_THREAD, RATE, 1.5, at_least=True),
    SystemGoal(SINGLE, THREADSAFE, EXECUTOR, P50, 0.85),
    SystemGoal(SINGLE, THREADSAFE, EXECUTOR, P90, 0.95),
    SystemGoal(OFFLINE, THREADSAFE, EXECUTOR, RATE, 2.0, at_least=True),
    SystemGoal(OFFLINE, THREADSAFE, TWO_THREADS, RATE, 1.2, at_least=True),
    SystemGoal(TINY, BLOCKING, AT_ONCE, P50, 3.0),
    SystemGoal(TINY, BURST_BY_LOOP, AT_ONCE_BY_LOOP, P50, 1.5),
)


class PassFigures(msgspec.Struct, frozen=True):
    """What one pass has found of a system, by the names of figures."""

    rate: float = 0.0
    p50_us: float = 0.0
    p90_us: float = 0.0
    p99_us: float = 0.0

    def of(self, figure: str) -> float:
        """Return the figure of that name."""
        value: float = getattr(self, figure)
        return value


class SystemVerdict(msgspec.Struct, frozen=True):
    """A goal and the median over the passes of the ratio, None if there was none."""

    goal: SystemGoal
    ratio: float | None
    met: bool


class ComparedSection(msgspec.Struct, frozen=True):
    """A scenario: what each pass has found of every system, None for no valid run."""

    name: str
    model: str
    bound_us: float
    queries: int
    passes: dict[str, list[PassFigures | None]]
    verdicts: tuple[SystemVerdict, ...] = ()

    def figure(self, system: str, name: str) -> float | None:
        """Return the median over the passes; None if no run of one was valid."""
        found = self.passes.get(system, ())
        values = [each.of(name) for each in found if each is not None]
        return median(values) if values else None

    def judged(self) -> "ComparedSection":
        """Return the section with the verdicts on its goals."""
        verdicts = [self._verdict(goal) for goal in GOALS if goal.section == self.name]
        has = [v for v in verdicts if {v.goal.system, v.goal.peer} <= {*self.passes}]
        return msgspec.structs.replace(self, verdicts=tuple(has))

    def _verdict(self, goal: SystemGoal) -> SystemVerdict:
        ratios = []
        pairs = zip(
            self.passes.get(goal.system, ()),
            self.passes.get(goal.peer, ()),
            strict=False,
        )
        for mine, theirs in pairs:
            if mine is not None and theirs is not None and theirs.of(goal.figure):
                ratios.append(mine.of(goal.figure) / theirs.of(goal.figure))
        if not ratios:
            return SystemVerdict(goal, None, False)
        ratio = median(ratios)
        met = ratio >= goal.limit if goal.at_least else ratio <= goal.limit
        return SystemVerdict(goal, ratio, met)


class SystemsReport(msgspec.Struct, frozen=True):
    """The JSON document of ``asyncnn loadgen compare``."""

    environment: Environment
    loadgen: str
    sections: tuple[ComparedSection, ...]
    refusals: dict[str, str]

    @property
    def met(self) -> bool:
        """Whether every goal was met whose systems were measured."""
        return all(v.met for section in self.sections for v in section.verdicts)

    def tables(self) -> Iterator[ReportTable]:
        """Yield a table of figures for each section, and one of all goals."""
        for section in self.sections:
            headings = ("", "samples/s", "p50, us", "p90, us", "p99, us", "valid")
            rows = [tuple(_row(section, system)) for system in section.passes]
            yield ReportTable(_title(section), headings, [rows])
        goals = [
            _goal_row(section, verdict)
            for section in self.sections
            for verdict in section.verdicts
        ]
        if goals:
            yield ReportTable(
                "goals, median of the ratios of passes", _GOAL_HEADINGS, [goals]
            )

    def notes(self) -> Iterator[str]:
        """Yield who was not measured, and why."""
        for system, reason in self.refusals.items():
            yield f"{TITLES.get(system, system)} was not measured: {reason}"


_GOAL_HEADINGS = ("", "scenario", "beside", "figure", "ratio", "goal")


def _title(section: ComparedSection) -> str:
    bound = format_duration(section.bound_us) if section.bound_us else ""
    limit = bound and f", p99 below {bound}"
    return f"{section.model}: {section.name}{limit}, {section.queries:,} queries"


def _row(section: ComparedSection, system: str) -> Iterator[str]:
    yield TITLES[system]
    for name in (RATE, P50, P90, P99):
        value = section.figure(system, name)
        digits = 0 if value is not None and value > 100 else 1
        yield "-" if value is None else f"{value:,.{digits}f}"
    found = section.passes[system]
    yield f"{sum(each is not None for each in found)} of {len(found)}"


def _goal_row(section: ComparedSection, verdict: SystemVerdict) -> Row:
    goal, ratio = verdict.goal, verdict.ratio
    sign = ">=" if goal.at_least else "<="
    return (
        section.model,
        section.name,
        f"{goal.system} / {goal.peer}",
        goal.figure,
        Outcome("-" if ratio is None else f"{ratio:.2f}", verdict.met),
        f"{sign} {goal.limit:g}",
    )


_TINY = AT_ONCE, BLOCKING, AT_ONCE_BY_LOOP, BURST_BY_LOOP


def systems_of(section: str) -> Sequence[str]:
    """Return the systems that a section has."""
    return _TINY if section == TINY else [name for name in TITLES if name not in _TINY]


SECTIONS: Mapping[str, tuple[str, ...]] = {
    "SingleStream": (SINGLE,),
    "Server": (SERVER_20, SERVER_40),
    "Offline": (OFFLINE,),
    "tiny": (TINY,),
}
"""The sections by what the command line calls them."""
