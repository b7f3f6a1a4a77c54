"""Runs of regions end when they are to: cancelled, late, closed, forked or at exit."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import asyncnn
from asyncnn import Device, PreparedModel
from asyncnn.devices import DeviceSettings
from asyncnn.hal.errors import DeviceUnavailableError, ForkedError, MissedDeadlineError
from asyncnn.hal.types import Priority
from asyncnn.runtime.opening_devices import open_device
from asyncnn.service import Supervision
from tests.devices.conftest import until_running
from tests.devices.onnxruntime.conftest import opened
from tests.devices.onnxruntime.graphs import (
    ENDLESS,
    F32,
    looping,
    port,
    region,
    relu,
    turned,
    turns,
)
from tests.forks import in_child
from tests.mappings import children
from tests.waits import cancelled

ON_EACH = pytest.mark.parametrize(
    "device", ["inprocess", "driver", "provider"], indirect=True
)

LONG_S = 30.0
"""No run is waited for longer: it would never end by itself."""


async def works(prepared: PreparedModel) -> None:
    async with asyncio.timeout(LONG_S):
        outputs = await prepared.run(turns(3))
    np.testing.assert_allclose(outputs["y0"], turned(3), rtol=1e-6)


async def prepared_for(device: Device, shapes: str) -> PreparedModel:
    """Prepare a model that runs as long as it is told: a job, or of open shapes."""
    model = looping()
    if shapes == "open":
        blob = model.model.pools[0]
        assert blob.buffer is not None
        ends = [port(np.int64, 1), port(F32, 0, 0)]
        model = region(bytes(blob.buffer), ends, [port(F32, 0, 0)])
    return await device.prepare(model)


@ON_EACH
@pytest.mark.parametrize(
    ("shapes", "path"),
    [
        *(("fixed", path) for path in ("async", "sync", "fenced")),
        *(("open", path) for path in ("async", "sync")),  # the HAL has no such fenced
    ],
)
async def test_a_cancelled_run_ends_and_its_lane_is_free(
    device: Device, shapes: str, path: str
) -> None:
    prepared = await prepared_for(device, shapes)
    for _ in range(4):  # more than there are lanes
        run = asyncio.ensure_future(prepared.run(turns(ENDLESS), path=path))
        await until_running(device)
        await cancelled(run)
    await works(prepared)
    await until_running(device, is_running=False)


@ON_EACH
async def test_a_run_of_lengths_that_another_model_has_run_is_cancelled(
    device: Device,
) -> None:
    await works(await prepared_for(device, "open"))
    prepared = await prepared_for(device, "open")
    run = asyncio.ensure_future(prepared.run(turns(ENDLESS)))
    await until_running(device)
    await cancelled(run)
    await until_running(device, is_running=False)


@ON_EACH
@pytest.mark.parametrize(
    ("shapes", "path"),
    [
        *(("fixed", path) for path in ("async", "sync", "fenced")),
        *(("open", path) for path in ("async", "sync")),  # the HAL has no such fenced
    ],
)
async def test_a_run_ends_at_its_deadline(
    device: Device, shapes: str, path: str
) -> None:
    prepared = await prepared_for(device, shapes)
    for _ in range(3):
        with pytest.raises(MissedDeadlineError):
            await prepared.run(turns(ENDLESS), timeout=0.05, path=path)
        await works(prepared)
    await until_running(device, is_running=False)


async def test_outputs_of_a_run_that_is_late_are_as_they_were(device: Device) -> None:
    prepared = await prepared_for(device, "fixed")
    out = np.full((64, 64), -1, F32)
    with pytest.raises(MissedDeadlineError):
        await prepared.run(turns(ENDLESS), timeout=0.05, out=[out])
    await works(prepared)
    assert (out == -1).all()


@pytest.mark.parametrize("shapes", ["fixed", "open"])
async def test_a_burst_is_cancelled_and_goes_on(device: Device, shapes: str) -> None:
    prepared = await prepared_for(device, shapes)
    async with prepared.burst() as burst:
        await burst.run(turns(2))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(burst.run(turns(ENDLESS)), 0.1)
        async with asyncio.timeout(LONG_S):
            outputs = await burst.run(turns(5))
        np.testing.assert_allclose(outputs["y0"], turned(5), rtol=1e-6)


@pytest.mark.parametrize("shapes", ["fixed", "open"])
async def test_a_flag_of_the_last_run_does_not_end_the_next(
    device: Device, shapes: str
) -> None:
    prepared = await prepared_for(device, shapes)
    for number in range(100):
        run = asyncio.ensure_future(prepared.run(turns(50)))
        await asyncio.sleep(0)
        if number % 2:
            await asyncio.sleep(0.0005)
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        await works(prepared)


async def test_low_runs_make_way_and_share_no_session() -> None:
    async with open_device(
        "onnxruntime", settings=DeviceSettings(inline_below_us=0, lanes=1)
    ) as device:
        low = await device.prepare(looping(), priority=Priority.LOW)
        high = await device.prepare(looping(), priority=Priority.HIGH)
        for prepared in low, high:
            await works(prepared)
            await works(prepared)
        run = asyncio.ensure_future(low.run(turns(ENDLESS)))
        await until_running(device)
        for _ in range(5):
            await works(high)
        assert not run.done()
        await cancelled(run)


async def test_a_device_that_closes_ends_what_runs() -> None:
    async with opened("inprocess") as device:
        prepared = await device.prepare(looping())
        await works(prepared)
        runs = [asyncio.ensure_future(prepared.run(turns(ENDLESS))) for _ in range(3)]
        await until_running(device)
    for run in runs:
        with pytest.raises(DeviceUnavailableError):
            await run


async def test_models_may_go_while_they_run(device: Device) -> None:
    prepared = await device.prepare(looping())
    run = asyncio.ensure_future(prepared.run(turns(ENDLESS)))
    await until_running(device)
    del prepared
    await cancelled(run)
    other = await device.prepare(relu(2))
    assert (await other.run([np.array([-1, 1], F32)]))["y0"].tolist() == [0, 1]


async def test_a_forked_child_refuses_and_the_parent_goes_on() -> None:
    async with opened("inprocess") as device:
        prepared = await device.prepare(looping())
        await works(prepared)
        run = asyncio.ensure_future(prepared.run(turns(ENDLESS)))
        await until_running(device)

        def use() -> str:
            try:
                asyncio.run(asyncio.wait_for(prepared.run(turns(1)), LONG_S))
            except ForkedError:
                return "forked"
            return "ran"

        assert await in_child(use) == "forked"
        await cancelled(run)
        await works(prepared)


PROGRAM = """
import asyncio, sys, threading, time
from tests.devices.onnxruntime.graphs import looping, turns, ENDLESS
from asyncnn import open_device
from asyncnn.devices import DeviceSettings

async def main():
    settings = DeviceSettings(inline_below_us=0)
    device = await open_device("onnxruntime", settings=settings).__aenter__()
    prepared = await device.prepare(looping())
    await prepared.run(turns(1))
    await prepared.run(turns(1))
    runs = [asyncio.ensure_future(prepared.run(turns(ENDLESS))) for _ in range(3)]
    while not (await device.statistics()).executions.running:
        await asyncio.sleep(0.001)
    return device, prepared, runs

loop = asyncio.new_event_loop()
kept = loop.run_until_complete(main())
print("ending", flush=True)
sys.exit(3)
"""


@pytest.mark.parametrize("pure", ["0", "1"])
def test_a_process_ends_in_the_middle_of_runs(pure: str) -> None:
    root = Path(__file__).parents[3]
    program = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(PROGRAM)]
    ended = subprocess.run(
        program,
        cwd=root,
        env={**os.environ, "ASYNCNN_PURE_JOB": pure},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 3, ended.stderr.decode()
    assert ended.stdout == b"ending\n"


async def test_a_driver_that_dies_in_a_run_is_started_anew() -> None:
    before = children()
    supervised = Supervision(wait=LONG_S)
    async with asyncnn.connect(device="onnxruntime", supervised=supervised) as device:
        prepared = await device.prepare(looping())
        await works(prepared)
        run = asyncio.ensure_future(prepared.run(turns(ENDLESS), timeout=LONG_S))
        await until_running(device)
        (pid,) = children() - before
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(DeviceUnavailableError):
            await run
        await works(prepared)


def test_python_lanes_do_the_same(tmp_path: Path) -> None:
    """Without what is compiled: cancels, deadlines and undeclared shapes."""
    root = Path(__file__).parents[3]
    tests = [
        f"{__file__}::test_a_cancelled_run_ends_and_its_lane_is_free",
        f"{__file__}::test_a_run_ends_at_its_deadline",
        f"{__file__}::test_a_flag_of_the_last_run_does_not_end_the_next",
    ]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "inprocess", *tests],
        cwd=root,
        env={**os.environ, "ASYNCNN_PURE_JOB": "1"},
        capture_output=True,
        timeout=110,
        check=False,
    )
    assert not ended.returncode, ended.stdout.decode()


def test_nothing_of_the_module_is_imported() -> None:
    program = """
        import asyncio, sys
        from asyncnn import open_device
        async def main():
            async with open_device("onnxruntime"):
                pass
        asyncio.run(main())
        assert "onnxruntime" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)
