"""Which device is opened where no name is given: one rule for every way to open."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from asyncnn.devices.litert import engine
from asyncnn.devices.litert.engine import Engine
from asyncnn.hal.errors import (
    EngineUnavailableError,
    InvalidArgumentError,
    NoDriverError,
)
from asyncnn.runtime.device import Device
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.service.process import running_driver
from tests.devices.test_accelerated import X, layers

pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")

Way = Callable[[Path], AbstractAsyncContextManager[Device]]


@asynccontextmanager
async def driver_by_api(path: Path) -> AsyncIterator[Device]:
    async with (
        running_driver(path / "driver") as driver,
        connect(driver.path) as device,
    ):
        yield device


@asynccontextmanager
async def driver_by_command(path: Path) -> AsyncIterator[Device]:
    address = path / "driver"
    command = [sys.executable, "-m", "asyncnn", "serve", "--socket", str(address)]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
    assert process.stdout is not None
    try:
        assert await process.stdout.readline()
        async with connect(address) as device:
            yield device
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


WAYS: dict[str, Way] = {
    "open_device": lambda path: open_device(),
    "isolated": lambda path: open_device(isolated=True),
    "connect": lambda path: connect(),
    "supervised": lambda path: connect(supervised=True),
    "running_driver": driver_by_api,
    "serve": driver_by_command,
}


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASYNCNN_DEVICE")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    return WAYS[request.param]


async def works(device: Device) -> None:
    outputs = await (await device.prepare(layers(2))).run(X)
    np.testing.assert_array_equal(outputs["y"], X / 4)


async def test_every_way_to_open_gives_the_fastest(way: Way, tmp_path: Path) -> None:
    async with way(tmp_path) as device:
        assert "LiteRT" in device.version
        await works(device)


async def test_the_environment_names_another_for_every_way(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASYNCNN_DEVICE", "reference")
    async with way(tmp_path) as device:
        assert "LiteRT" not in device.version


@pytest.mark.parametrize("way", ["connect", "isolated", "serve"])
async def test_a_driver_without_the_engine_has_the_reference_one(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ai_edge_litert.py").write_text("raise ImportError('it is broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with WAYS[way](tmp_path) as device:
        assert "LiteRT" not in device.version
        await works(device)


async def test_without_its_engine_the_accelerated_one_is_not_opened(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> Engine:
        raise EngineUnavailableError("ai-edge-litert is not installed")

    monkeypatch.setattr(engine, "load_engine", missing)
    with caplog.at_level("INFO", "asyncnn.devices.own_devices"):
        async with open_device() as device:
            assert device.name in ("onnxruntime", "reference")
            await works(device)
    assert "LiteRT is not used: ai-edge-litert is not" in caplog.text
    with pytest.raises(EngineUnavailableError, match="is not installed"):
        async with open_device("accelerated"):
            pass


async def test_the_environment_may_name_any_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ASYNCNN_DEVICE", "sample-minimal")
    async with open_device() as device:
        assert device.name == "sample-minimal"
    monkeypatch.setenv("ASYNCNN_DEVICE", "none-such")
    with pytest.raises(InvalidArgumentError, match="ASYNCNN_DEVICE: there is no"):
        async with open_device():
            pass


@pytest.mark.parametrize("name", ["accelerated", "reference"])
async def test_a_driver_of_ones_own_has_the_one_named(name: str) -> None:
    async with connect(device=name) as device:
        assert ("LiteRT" in device.version) is (name == "accelerated")
        assert device.name.startswith(f"remote:{name}-")
        await works(device)


async def test_a_driver_of_ones_own_takes_no_unknown_device() -> None:
    for name in ("none-such", "framework"):
        known = "known: reference, auto, accelerated, onnxruntime"
        words = f"start: there is no device '{name}'.*{known}"
        with pytest.raises(NoDriverError, match=words):
            async with connect(device=name):
                pass
    with pytest.raises(InvalidArgumentError, match="has its device already"):
        async with connect("/tmp/none", device="reference"):
            pass
