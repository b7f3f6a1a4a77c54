"""The work behind ``asyncnn loadgen MODEL``: one scenario, each transport and path."""

from pathlib import Path

import msgspec

from asyncnn.extensions import Extension
from asyncnn.runtime.model import NamedModel
from asyncnn.tools.loadgen import LoadGenVerdict, Scenario, Settings
from asyncnn.tools.loadgen.judge import judged, log_folder
from asyncnn.tools.loadgen.library import AnswerAccuracy, Library
from asyncnn.tools.loadgen.systems import System
from asyncnn.tools.loadgen.ways import QueryWay, latency_s, opened, system_of
from asyncnn.tools.samples import Tolerance

_OFFLINE_MARGIN = 4.0
"""How much faster Offline runs may be than one execution after the other."""

_FASTER = 0.5
"""Share of the time of an execution that LoadGen is to expect of a query."""


class JudgedRunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What ``asyncnn loadgen`` was asked to do. ``ways`` are transports and paths."""

    model: str
    named: NamedModel
    extensions: tuple[Extension, ...]
    extension_places: tuple[str, ...]
    library: Library
    scenario: Scenario
    device: str | None
    ways: tuple[tuple[str, str], ...]
    target_qps: float | None
    latency_bound_s: float
    queries: int
    seconds: float
    accuracy: bool
    log_dir: Path | None


class WayReport(msgspec.Struct, frozen=True):
    """What LoadGen says of one way, and how accurate its answers were, if asked."""

    transport: str
    path: str
    verdict: LoadGenVerdict
    accuracy: AnswerAccuracy | None = None
    logs: str | None = None


class JudgedRunReport(msgspec.Struct, frozen=True):
    """The JSON document of ``asyncnn loadgen MODEL --json``."""

    model: str
    device: str
    version: str
    valid: bool
    runs: tuple[WayReport, ...]


async def run_all(options: JudgedRunOptions) -> JudgedRunReport:
    """Run the scenario on every way.

    :raises AsyncnnError: if a device cannot be opened, or an execution fails.
    """
    reports: list[WayReport] = []
    name = version = ""
    for transport, path in options.ways:
        async with opened(
            options.device, transport, options.extensions, options.extension_places
        ) as device:
            name, version = device.name, device.version
            prepared = await device.prepare(options.named)
            way = QueryWay(transport, path)
            alone_s = await latency_s(prepared, options.library)
            settings = _settings(options, alone_s)
            async with system_of(
                prepared, options.library, way, options.scenario
            ) as system:
                reports.append(await _run(options, way, settings, system))
    return JudgedRunReport(
        options.model, name, version, all(r.verdict.valid for r in reports), (*reports,)
    )


async def _run(
    options: JudgedRunOptions, way: QueryWay, settings: Settings, system: System
) -> WayReport:
    folder = options.log_dir
    if folder is not None and len(options.ways) > 1:
        folder = folder / f"{way.transport}-{way.path}"
    if not options.accuracy:
        verdict = await judged(system, options.library, settings, folder)
        return WayReport(way.transport, way.path, verdict, logs=_told(folder))
    with log_folder(folder) as logs:
        verdict = await judged(system, options.library, settings, logs)
        accuracy = options.library.accuracy(logs, Tolerance())
    return WayReport(way.transport, way.path, verdict, accuracy, _told(folder))


def _told(folder: Path | None) -> str | None:
    return None if folder is None else str(folder)


def _settings(options: JudgedRunOptions, alone_s: float) -> Settings:
    """Return what LoadGen is given; what it is to expect follows from one run."""
    target_qps = options.target_qps
    if target_qps is None and options.scenario is Scenario.OFFLINE:
        target_qps = _OFFLINE_MARGIN / alone_s
    return Settings(
        scenario=options.scenario,
        queries=options.queries,
        seconds=options.seconds,
        target_qps=target_qps,
        latency_bound_s=options.latency_bound_s,
        expected_s=alone_s * _FASTER,
        accuracy=options.accuracy,
    )
