"""Runs LoadGen on systems under test, and reads its verdict from its own log.

`run_all` does so for one scenario on each transport and path.
"""

import asyncio
import json
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from asyncnn.extensions import Extension
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.input_files import call_abandonable, in_one
from asyncnn.offload import start_thread
from asyncnn.runtime.model import NamedModel
from asyncnn.tools.conformance.suite import opened_by
from asyncnn.tools.loadgen import LoadGenVerdict, Scenario, Settings, loadgen_module
from asyncnn.tools.loadgen.library import AnswerAccuracy, Library
from asyncnn.tools.loadgen.systems import Answers, LoopSystem, System
from asyncnn.tools.loadgen.ways import (
    SERVED,
    QueryWay,
    latency_s,
    served_model,
    system_of,
)
from asyncnn.tools.samples import Tolerance

_DETAIL_LOG = "mlperf_log_detail.txt"
_MARK = ":::MLLOG "
_HELD = {"Offline": 32, "MultiStream": 8}
"""Answers that are given together; elsewhere each counts by itself."""

_LEAVING_S = 2.0
"""How long a run that was interrupted may take to end by itself."""

_CALLS = 64
"""Of a server at a time: it refuses more than it has room for."""

_THREAD = "loadgen"


async def judged(
    system: System, library: Library, settings: Settings, folder: Path | None = None
) -> LoadGenVerdict:
    """Run LoadGen on a thread until it ends; its logs are written to ``folder``.

    If this is cancelled, queries are answered without being executed from then on, for
    LoadGen to come to an end; that may take as long as its schedule is.

    :raises AsyncnnError: if an execution fails.
    """
    loadgen = loadgen_module()
    answers = Answers(
        loadgen,
        1 if settings.accuracy else _HELD.get(settings.scenario, 1),
        keeps_data=settings.accuracy,
    )
    system.begin(answers)
    with log_folder(folder) as logs:
        of_run = loadgen, system, len(library), settings, logs
        await _ended(partial(_conducted, *of_run), answers)
        if answers.failure is not None:
            raise answers.failure
        return read_verdict(logs, settings)


async def _ended(conduct: Callable[[], None], answers: Answers) -> None:
    """Call ``conduct`` on a thread of its own and wait; stop if this is cancelled."""
    outcome: Future[None] = Future()

    def run() -> None:
        try:
            conduct()
        except BaseException as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(None)

    start_thread(threading.Thread(target=run, name=_THREAD, daemon=True))
    end = asyncio.wrap_future(outcome)
    try:
        await asyncio.shield(end)
    except asyncio.CancelledError:
        answers.is_stopped = True
        await asyncio.wait([end], timeout=_LEAVING_S)
        raise


def _conducted(
    loadgen: Any, system: System, count: int, settings: Settings, folder: Path
) -> None:
    """Have LoadGen run once, with ``count`` samples."""
    logs = loadgen.LogSettings()
    logs.enable_trace = False
    logs.log_output.outdir = str(folder)
    logs.log_output.copy_summary_to_stdout = False
    sut = loadgen.ConstructSUT(system.issue, _nothing_held)
    qsl = loadgen.ConstructQSL(count, count, _loaded, _loaded)
    try:
        made = test_settings(loadgen, settings)
        loadgen.StartTestWithLogSettings(sut, qsl, made, logs, "")
    finally:
        loadgen.DestroyQSL(qsl)
        loadgen.DestroySUT(sut)


def is_running() -> bool:
    """Return whether LoadGen goes on with a run that nobody waits for any more."""
    return any(thread.name == _THREAD for thread in threading.enumerate())


def _nothing_held() -> None:
    """Do nothing when LoadGen asks for queries that are held back: none are."""


def _loaded(indexes: Sequence[int]) -> None:
    """Do nothing when samples are to be loaded or unloaded: all of them are there."""


def test_settings(loadgen: Any, settings: Settings) -> Any:
    """Return LoadGen's own `TestSettings`."""
    made = loadgen.TestSettings()
    made.scenario = getattr(loadgen.TestScenario, settings.scenario)
    modes = loadgen.TestMode
    made.mode = modes.AccuracyOnly if settings.accuracy else modes.PerformanceOnly
    made.min_query_count = settings.queries
    made.min_duration_ms = round(settings.seconds * 1000)
    if settings.target_qps is not None:
        made.server_target_qps = settings.target_qps
        made.offline_expected_qps = settings.target_qps
    if settings.latency_bound_s is not None:
        made.server_target_latency_ns = round(settings.latency_bound_s * 1e9)
    if settings.expected_s is not None:
        made.single_stream_expected_latency_ns = max(
            1, round(settings.expected_s * 1e9)
        )
        each = made.multi_stream_samples_per_query
        expected_ns = settings.expected_s * 1e9 * each
        made.multi_stream_expected_latency_ns = max(1, round(expected_ns))
    return made


_RULES = {
    "result_min_duration_met": "the run was too short",
    "result_min_queries_met": "there were too few queries",
    "result_perf_constraints_met": "latencies exceed the bound",
    "early_stopping_met": "too few queries for that share of late ones",
}

_RATES = {
    Scenario.SERVER: "result_completed_samples_per_sec",
    Scenario.OFFLINE: "result_samples_per_second",
    Scenario.SINGLE_STREAM: "result_qps_with_loadgen_overhead",
}


def read_verdict(folder: Path, settings: Settings) -> LoadGenVerdict:
    """Read what LoadGen has logged in ``folder``.

    :raises InvalidArgumentError: if there is no such log.
    """
    log: dict[str, Any] = {}
    errors: list[str] = []
    for line in (folder / _DETAIL_LOG).read_text().splitlines():
        if line.startswith(_MARK):
            entry = json.loads(line.removeprefix(_MARK))
            log[entry["key"]] = entry["value"]
            if entry["metadata"]["is_error"]:
                errors.append(str(entry["value"]))
    if settings.accuracy:
        return LoadGenVerdict(
            scenario=settings.scenario, valid=not errors, reasons=tuple(errors)
        )
    reasons = [rule for key, rule in _RULES.items() if log.get(key) is False]
    each = "_per_query" if settings.scenario is Scenario.MULTI_STREAM else ""

    def percentile(number: str) -> float:
        return float(log.get(f"result_{number}_percentile{each}_latency_ns", 0)) / 1000

    queries = int(log.get("result_query_count", 0))
    rate = float(log.get(_RATES.get(settings.scenario, ""), 0.0))
    if settings.scenario is Scenario.MULTI_STREAM:
        mean_ns = float(log.get("result_mean_query_latency_ns", 0.0))
        samples = float(log.get("effective_samples_per_query", 0.0))
        rate = samples * 1e9 / mean_ns if mean_ns else 0.0
    return LoadGenVerdict(
        scenario=settings.scenario,
        valid=log.get("result_validity") == "VALID" and not errors,
        reasons=(*reasons, *errors),
        queries=queries,
        rate=rate,
        target_qps=settings.target_qps,
        p50_us=percentile("50.00"),
        p90_us=percentile("90.00"),
        p99_us=percentile("99.00"),
    )


@contextmanager
def log_folder(folder: Path | None) -> Iterator[Path]:
    """Have a folder for logs, or one that goes with the block.

    :raises InvalidArgumentError: if it cannot be written to.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="asyncnn-loadgen-") as made:
            yield Path(made)
        return
    check_log_folder(folder)
    yield folder


def check_log_folder(folder: Path) -> None:
    """Make ``folder`` if it is not there, and try to write to it.

    :raises InvalidArgumentError: if that fails; LoadGen itself would end the process.
    """
    call_abandonable(f"writing to {folder}", in_one(_try_to_write, folder))


def _try_to_write(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidArgumentError(
            f"logs cannot be written to {folder}: {error.strerror}"
        ) from None


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
        way = QueryWay(transport, path)
        async with _reached(options, way) as reached:
            name, version, alone_s, system = reached
            settings = _settings(options, alone_s)
            reports.append(await _run(options, way, settings, system))
    return JudgedRunReport(
        options.model, name, version, all(r.verdict.valid for r in reports), (*reports,)
    )


@asynccontextmanager
async def _reached(
    options: JudgedRunOptions, way: QueryWay
) -> AsyncIterator[tuple[str, str, float, System]]:
    """Go a way: to what device of which version, how long a run takes, the system."""
    named, library = options.named, options.library
    if way.transport.startswith(SERVED):
        served = served_model(way.transport, named, library)
        async with served as (server, version, execute):
            alone_s = await latency_s(partial(execute, 0))
            calls = LoopSystem([execute] * _CALLS)
            async with calls.serving() as system:
                yield server, version, alone_s, system
        return
    extensions = options.extensions, options.extension_places
    async with opened_by(way.transport, options.device, *extensions) as device:
        prepared = await device.prepare(named)
        alone_s = await latency_s(prepared.reusable(list(library.inputs[0])).run)
        async with system_of(prepared, library, way, options.scenario) as system:
            yield device.name, device.version, alone_s, system


async def _run(
    options: JudgedRunOptions, way: QueryWay, settings: Settings, system: System
) -> WayReport:
    folder = options.log_dir
    if folder is not None and len(options.ways) > 1:
        folder = folder / f"{way.transport}-{way.path}"
    accuracy = None
    with log_folder(folder) as logs:
        verdict = await judged(system, options.library, settings, logs)
        if options.accuracy:
            accuracy = options.library.accuracy(logs, Tolerance())
    kept = None if folder is None else str(folder)
    return WayReport(way.transport, way.path, verdict, accuracy, kept)


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
