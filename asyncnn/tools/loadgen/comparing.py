"""The work behind ``asyncnn loadgen compare``: systems in turn, pass after pass.

All systems get as many queries of the same samples. Passes are interleaved: each of
them has a turn of every system. The rate of a Server scenario is searched, among those
that LoadGen calls valid, in as many steps for each; a run that is not valid is tried
once more, as anything on the machine may have disturbed it.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path

import msgspec
from msgspec.structs import replace

from asyncnn.hal.errors import AsyncnnError
from asyncnn.interpreter_hooks import building_large, freezing_allowed
from asyncnn.runtime.model_file import load
from asyncnn.tools.bench.environment import describe_environment, installed_versions
from asyncnn.tools.bench.made_models import tiny_addition
from asyncnn.tools.bench.measured_models import litert_us
from asyncnn.tools.bench.rounds import rotated
from asyncnn.tools.conformance.suite import REMOTE, opened_by
from asyncnn.tools.loadgen import LoadGenVerdict, Scenario, Settings, ways
from asyncnn.tools.loadgen import comparison_report as report
from asyncnn.tools.loadgen.judge import judged
from asyncnn.tools.loadgen.library import Library
from asyncnn.tools.loadgen.systems import System

_STEP, _STEPS = 0.95, 5
"""Rates that are tried: powers of the one, below a highest one; searched so often."""

_ATTEMPTS = 2
_SOME = 300
"""Queries that show about how fast a system is."""

Announce = Callable[[Sequence[str]], Iterable[str]]


class SystemsComparison(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared: models by name, sections, systems, and how thoroughly."""

    models: dict[str, Path]
    sections: tuple[str, ...]
    systems: tuple[str, ...] = ()
    device: str = "accelerated"
    queries: int = 3000
    passes: int = 3
    rounds: int = 5

    def systems_in(self, section: str) -> list[str]:
        """Return the systems that are measured in a section."""
        found = report.systems_of(section)
        return [each for each in found if not self.systems or each in self.systems]


async def compared(
    comparison: SystemsComparison, announce: Announce = iter
) -> report.SystemsReport:
    """Measure everything.

    :raises AsyncnnError: if a model cannot be loaded, or an execution fails.
    """
    refusals: dict[str, str] = {}
    sections: list[report.ComparedSection] = []
    subjects = [
        (f"{name}: {section}", name, section)
        for section in comparison.sections
        for name in (("addition",) if section == report.TINY else comparison.models)
    ]
    by_title = {title: (name, section) for title, name, section in subjects}
    for title in announce(list(by_title)):
        name, section = by_title[title]
        subject = _Subject(comparison, name, section, refusals)
        sections.append((await subject.measured()).judged())
    return report.SystemsReport(
        describe_environment(**installed_versions("ai-edge-litert", "onnxruntime")),
        version("mlcommons-loadgen"),
        tuple(sections),
        refusals,
    )


class _Subject:
    """A model in a section."""

    def __init__(
        self,
        comparison: SystemsComparison,
        name: str,
        section: str,
        refusals: dict[str, str],
    ) -> None:
        self._comparison = comparison
        self._name, self._section = name, section
        self._is_single = section in (report.SINGLE, report.TINY)
        self._refusals = refusals
        self._path = comparison.models.get(name)
        self._named = tiny_addition() if self._path is None else load(self._path)
        ways.check_model(self._named)
        self._library = Library.random(self._named)
        self._own_s = (
            1e-6
            if self._path is None
            else litert_us(self._path, self._library.inputs[0]) * 1e-6
        )

    async def measured(self) -> report.ComparedSection:
        """Measure all passes."""
        comparison, section = self._comparison, self._section
        passes = comparison.rounds if self._is_single else comparison.passes
        bound_s = report.BOUNDS.get(section, 0) * self._own_s
        async with AsyncExitStack() as stack:
            # A full collection of all that this command has loaded takes 50 ms, which
            # would count against the system that it hits.
            stack.enter_context(freezing_allowed())
            with building_large():
                systems = await self._systems(stack)
            found: dict[str, list[report.PassFigures | None]] = {
                name: [] for name in systems
            }
            for number in range(passes):
                turns = rotated(list(systems), number)
                if bound_s:
                    each = await self._searched(systems, turns, bound_s)
                    for name, figures in each.items():
                        found[name].append(figures)
                    continue
                for name in turns:
                    settings = self._settings()
                    verdict = await judged(systems[name], self._library, settings)
                    found[name].append(_figures(verdict))
        return report.ComparedSection(
            section, self._name, bound_s * 1e6, comparison.queries, found
        )

    def _settings(self) -> Settings:
        is_offline = self._section == report.OFFLINE
        return Settings(
            scenario=Scenario.OFFLINE if is_offline else Scenario.SINGLE_STREAM,
            queries=self._comparison.queries,
            seconds=0,
            target_qps=10 / self._own_s,
            expected_s=self._own_s,
        )

    async def _searched(
        self, systems: dict[str, System], turns: Sequence[str], bound_s: float
    ) -> dict[str, report.PassFigures | None]:
        """Search the highest valid rate of every system, a step of each in turn."""
        searches = {}
        for name in turns:
            some = replace(self._settings(), scenario=Scenario.OFFLINE, queries=_SOME)
            verdict = await judged(systems[name], self._library, some)
            searches[name] = _Search(verdict.rate)
        for _ in range(_STEPS):
            for name in turns:
                search = searches[name]
                for _ in range(_ATTEMPTS):
                    settings = replace(
                        self._settings(),
                        scenario=Scenario.SERVER,
                        target_qps=search.rate,
                        latency_bound_s=bound_s,
                    )
                    verdict = await judged(systems[name], self._library, settings)
                    if verdict.valid:
                        break
                search.note(verdict)
        return {name: search.best for name, search in searches.items()}

    async def _systems(self, stack: AsyncExitStack) -> dict[str, System]:
        """Open all systems; note why others cannot be."""
        systems = {}
        for name in self._comparison.systems_in(self._section):
            try:
                system = await self._open(name, stack)
            except AsyncnnError as error:
                self._refusals[name] = str(error)
            else:
                systems[name] = system
        return systems

    async def _open(self, name: str, stack: AsyncExitStack) -> System:
        way, library = _WAYS.get(name), self._library
        path = self._path or Path()
        if way is None:
            openers: dict[str, Callable[[], ways.Serving]] = {
                report.AT_ONCE: partial(ways.at_once_system, by_loop=False),
                report.AT_ONCE_BY_LOOP: partial(ways.at_once_system, by_loop=True),
                report.EXECUTOR: partial(ways.executor_system, path, library, 1),
                report.TWO_THREADS: partial(ways.executor_system, path, library, 2),
                report.TO_THREAD: partial(ways.to_thread_system, self._named, library),
                report.CEILING: partial(ways.threads_system, path, library, 2),
            }
            entered = openers[name]()
        else:
            opening = opened_by(way.transport, self._comparison.device)
            device = await stack.enter_async_context(opening)
            prepared = await device.prepare(self._named)
            scenarios = Scenario.SERVER, Scenario.SINGLE_STREAM
            scenario = scenarios[self._is_single]
            entered = ways.system_of(prepared, library, way, scenario)
        system: System = await stack.enter_async_context(entered)
        return system


_WAYS = {
    report.THREADSAFE: ways.QueryWay(),
    report.AWAITED: ways.QueryWay(path="async"),
    report.BURST: ways.QueryWay(transport=REMOTE, path=ways.BURST),
    report.REMOTE: ways.QueryWay(transport=REMOTE, path="async"),
    report.BLOCKING: ways.QueryWay(transport=REMOTE, path=ways.BURST),
    report.BURST_BY_LOOP: ways.QueryWay(path=ways.BURST, by_loop=True),
}


class _Search:
    """Bisects the rates for the highest one that is valid."""

    def __init__(self, most: float) -> None:
        self._most = most * 1.1  # a queue that is never empty has its own costs
        self._low, self._high = 0, 2**_STEPS
        self.best: report.PassFigures | None = None

    @property
    def rate(self) -> float:
        """The rate to try next."""
        share: float = _STEP ** ((self._low + self._high) // 2)
        return self._most * share

    def note(self, verdict: LoadGenVerdict) -> None:
        """Go on above or below."""
        middle = (self._low + self._high) // 2
        if not verdict.valid:
            self._low = middle
            return
        self._high = middle
        figures = _figures(verdict)
        if figures is not None and (self.best is None or figures.rate > self.best.rate):
            self.best = figures


def _figures(verdict: LoadGenVerdict) -> report.PassFigures | None:
    if not verdict.valid:
        return None
    rate = verdict.target_qps if verdict.scenario == Scenario.SERVER else verdict.rate
    return report.PassFigures(
        rate or 0.0, verdict.p50_us, verdict.p90_us, verdict.p99_us
    )
