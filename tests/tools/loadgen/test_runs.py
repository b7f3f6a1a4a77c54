"""LoadGen with every system: all queries are answered, and nothing is left over."""

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncnn
from asyncnn import oip
from asyncnn.hal.errors import AsyncnnError, GeneralFailureError, InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.tools.conformance.suite import opened_by
from asyncnn.tools.loadgen import Scenario, Settings, ways
from asyncnn.tools.loadgen.judge import JudgedRunOptions, judged, run_all
from asyncnn.tools.loadgen.library import Library
from asyncnn.tools.loadgen.systems import BlockingSystem, System
from asyncnn.tools.loadgen.ways import PATHS, TRANSPORTS, QueryWay, system_of
from asyncnn.tools.samples import Tolerance
from tests.networks import addition
from tests.waits import cancelled

pytestmark = pytest.mark.usefixtures("_installed")

NAMED = addition(4)
SAMPLES = [[np.full(4, k, np.float32), np.ones(4, np.float32)] for k in range(6)]
RIGHT = [{"z": np.full(4, k + 1, np.float32)} for k in range(6)]


@pytest.fixture
def _installed() -> None:
    pytest.importorskip("mlperf_loadgen")


def settings(scenario: Scenario, **more: Any) -> Settings:
    return Settings(
        scenario=scenario,
        queries=more.pop("queries", 70),
        seconds=0,
        target_qps=2000,
        latency_bound_s=5,
        expected_s=1e-5,
        **more,
    )


@pytest.mark.parametrize("scenario", Scenario)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_every_way_answers_rightly(
    scenario: Scenario, transport: str, tmp_path: Path
) -> None:
    library = Library(NAMED, SAMPLES, goldens=RIGHT)
    async with opened_by(transport, "reference") as device:
        prepared = await device.prepare(NAMED)
        for path in PATHS:
            way = QueryWay(transport, path)
            async with system_of(prepared, library, way, scenario) as system:
                verdict = await judged(system, library, settings(scenario), tmp_path)
                queries = 1 if scenario is Scenario.OFFLINE else 70
                assert verdict.queries >= queries
                assert verdict.rate > 0 < verdict.p50_us <= verdict.p99_us
                judging = settings(scenario, accuracy=True)
                await judged(system, library, judging, tmp_path)
                found = library.accuracy(tmp_path, Tolerance())
                assert (found.right, found.answers) == (6, 6), str(way)
        if transport == "inprocess":
            done = device.hal.statistics().executions  # type: ignore[attr-defined]
            assert done.queued == done.running == 0


@pytest.mark.parametrize("name", ["sum", "none", ""])
async def test_a_model_of_a_server_is_asked_by_its_protocol(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "sum.asyncnn"
    asyncnn.save(NAMED, path)
    async with asyncnn.open_device("reference") as device:
        repository = oip.Repository(device, [oip.NamedFile("sum", "1", path)])
        await repository.load_all()
        async with oip.rpc_served(repository, oip.Address.of(":0")) as address:
            options = JudgedRunOptions(
                model=str(path),
                extensions=(),
                extension_places=(),
                device=None,
                target_qps=None,
                latency_bound_s=5,
                log_dir=None,
                named=NAMED,
                library=Library(NAMED, SAMPLES, goldens=RIGHT),
                ways=((f"grpc://{address}/{name}", "async"),),
                scenario=Scenario.OFFLINE,
                queries=1,
                seconds=0,
                accuracy=True,
            )
            if name != "sum":
                with pytest.raises(AsyncnnError, match="no model"):
                    await run_all(options)
                return
            (run,) = (await run_all(options)).runs
            assert run.accuracy is not None
            assert (run.accuracy.right, run.accuracy.answers) == (6, 6)


async def test_verdicts_and_logs_are_loadgens_own(tmp_path: Path) -> None:
    library = Library(NAMED, SAMPLES)
    async with ways.at_once_system(by_loop=False) as system:
        verdict = await judged(
            system, library, settings(Scenario.SINGLE_STREAM), tmp_path
        )
        few = settings(Scenario.MULTI_STREAM, queries=10)
        invalid = await judged(system, library, few)
    assert verdict.valid
    assert not verdict.reasons
    summary = (tmp_path / "mlperf_log_summary.txt").read_text()
    assert "Result is : VALID" in summary
    assert f"90.0th percentile latency (ns) : {verdict.p90_us * 1000:.0f}" in summary
    assert not (tmp_path / "mlperf_log_trace.json").read_text()
    assert not invalid.valid
    assert invalid.reasons == ("too few queries for that share of late ones",)


async def test_a_bound_that_is_not_met_is_invalid() -> None:
    library = Library(NAMED, SAMPLES)
    async with ways.at_once_system(by_loop=True) as system:
        hopeless = Settings(
            scenario=Scenario.SERVER,
            queries=100,
            seconds=0,
            target_qps=2000,
            latency_bound_s=1e-9,
        )
        verdict = await judged(system, library, hopeless)
    assert not verdict.valid
    assert "latencies exceed the bound" in verdict.reasons


@pytest.mark.parametrize("number", [1, 2])
async def test_what_users_write_is_judged_alike(
    number: int, shared: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ai_edge_litert")
    pytest.importorskip("onnxruntime")
    from asyncnn.runtime.model_file import load

    file = shared / "models" / "hello_world_float.tflite"
    named = load(file)
    library = Library.random(named, 5)
    systems = {
        1: ways.executor_system(file, library, 2),
        2: ways.threads_system(file, library, 2),
    }
    async with opened_by("inprocess", "reference") as device:
        prepared = await device.prepare(named)
        outputs = [await prepared.run(list(each)) for each in library.inputs]
    library = Library(named, library.inputs, goldens=[dict(each) for each in outputs])
    async with systems[number] as system:
        for scenario in (Scenario.SINGLE_STREAM, Scenario.OFFLINE):
            await judged(system, library, settings(scenario, accuracy=True), tmp_path)
            found = library.accuracy(tmp_path, Tolerance(rtol=1e-3, atol=1e-3))
            assert found.share == 1


@pytest.mark.parametrize("scenario", Scenario)
async def test_an_execution_that_fails_ends_the_run_with_its_error(
    scenario: Scenario,
) -> None:
    executed = []

    def fail(number: int) -> Sequence[Array]:
        executed.append(number)
        raise GeneralFailureError("no more today")

    library = Library(NAMED, SAMPLES)
    with pytest.raises(GeneralFailureError, match="no more today"):
        await judged(BlockingSystem(fail), library, settings(scenario))
    assert len(executed) == 1


@asynccontextmanager
async def _counted() -> AsyncIterator[None]:
    threads = {each.name for each in threading.enumerate()}
    descriptors = len(os.listdir("/proc/self/fd"))
    yield
    assert {each.name for each in threading.enumerate()} <= threads
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("path", PATHS)
async def test_nothing_is_left_over(path: str) -> None:
    library = Library(NAMED, SAMPLES)
    async with opened_by("inprocess", "reference") as device:
        prepared = await device.prepare(NAMED)
        await prepared.run(SAMPLES[0])

        async def once() -> None:
            way = QueryWay(path=path)
            async with system_of(prepared, library, way, Scenario.SERVER) as system:
                await judged(system, library, settings(Scenario.SERVER))

        await once()
        async with _counted():
            await once()


async def test_a_run_that_is_cancelled_stops_executing() -> None:
    library = Library(NAMED, SAMPLES)
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()
    executed = [0]

    def execute(number: int) -> Sequence[Array]:
        executed[0] += 1
        loop.call_soon_threadsafe(begun.set)
        return ()

    system: System = BlockingSystem(execute)
    run = asyncio.create_task(
        judged(
            system,
            library,
            Settings(
                scenario=Scenario.SERVER,
                queries=100,
                seconds=0.5,
                target_qps=100,
                latency_bound_s=1,
            ),
        )
    )
    await begun.wait()
    await cancelled(run)
    assert executed[0] < 90


async def test_a_report_tells_of_every_way(tmp_path: Path) -> None:
    options = JudgedRunOptions(
        model="addition",
        named=NAMED,
        extensions=(),
        extension_places=(),
        library=Library(NAMED, SAMPLES, labels=np.zeros(6, np.int64)),
        scenario=Scenario.OFFLINE,
        device="reference",
        ways=(("inprocess", "async"), ("remote", "burst")),
        target_qps=None,
        latency_bound_s=0.1,
        queries=50,
        seconds=0,
        accuracy=True,
        log_dir=tmp_path,
    )
    report = await run_all(options)
    assert report.valid
    assert [(each.transport, each.path) for each in report.runs] == [*options.ways]
    for each in report.runs:
        assert each.accuracy is not None
        assert (each.accuracy.metric, each.accuracy.share) == ("top-1", 1.0)
        logged = json.loads(
            (
                tmp_path / f"{each.transport}-{each.path}/mlperf_log_accuracy.json"
            ).read_text()
        )
        assert len(logged) == 6


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros(4)}, "input_0"),
        ({"input_0.x": np.zeros(3, np.float32)}, "sample"),
        ({"input_0.x": np.zeros(4), "input_0.y": np.zeros(4)}, "float64"),
    ],
)
def test_data_sets_that_do_not_fit_are_refused(
    arrays: dict[str, Array], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, allow_pickle=False, **arrays)
    with pytest.raises(InvalidArgumentError, match=message):
        Library.read(NAMED, path)
