"""Devices that the same behaviour is expected of, and the calls that carry it."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from asyncnn.callbacks import ExecutionFuture, ExecutionResult
from asyncnn.devices import DeviceSettings, InProcessDevice, ReferenceDevice
from asyncnn.devices.accelerated import AcceleratedDevice
from asyncnn.devices.onnxruntime.onnx_device import OnnxRuntimeDevice
from asyncnn.extensions.regions import LITERT, ONNX
from asyncnn.hal.interfaces import IDevice, IPreparedModel
from asyncnn.hal.types import ErrorStatus, MeasureTiming, Request
from asyncnn.runtime.device import Device
from asyncnn.service import RemoteDevice, Server
from tests.networks import as_regions

REGIONS = {
    "accelerated regions": (AcceleratedDevice, LITERT),
    "onnxruntime regions": (OnnxRuntimeDevice, ONNX),
}
"""Devices with an engine, and whose regions the models of `networks` are there."""


@contextmanager
def regions_of(name: str) -> Iterator[type[InProcessDevice]]:
    """Let models be the regions that are meant by a name; return the kind of device."""
    kind, engine = REGIONS[name]
    package = "ai_edge_litert" if engine == LITERT else "onnxruntime"
    if find_spec(package) is None or find_spec("onnx") is None:
        pytest.skip(f"{package} or onnx is not installed")
    with as_regions(engine):
        yield kind


@pytest.fixture(params=["lane", "inline", "remote", "accelerated", *REGIONS])
async def device(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[IDevice]:
    """A device in this process or behind a socket.

    The reference device runs on its lane only, or inline whenever it can; the others on
    their two lanes only. Where its name says so, models are regions.
    """
    async with AsyncExitStack() as stack:
        kind = ReferenceDevice
        if request.param == "accelerated":
            pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
            kind = AcceleratedDevice
        elif request.param in REGIONS:
            kind = stack.enter_context(regions_of(request.param))
        limit = {"inline": 1e9, "remote": 50.0}.get(request.param, 0.0)
        lanes = None if kind is ReferenceDevice else 2
        settings = DeviceSettings(inline_below_us=limit, lanes=lanes)
        device = await stack.enter_async_context(kind(settings))
        if request.param != "remote":
            yield device
            return
        path = tmp_path / "driver.sock"
        async with Server(device, path), RemoteDevice(path) as remote:
            yield remote


class Caller:
    """Executes by one path; ``launched`` is what the last call returned at once."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.launched = ErrorStatus.NONE

    async def __call__(
        self,
        prepared: IPreparedModel,
        request: Request,
        measure: MeasureTiming = MeasureTiming.NO,
        deadline: int | None = None,
        loop_timeout: int | None = None,
    ) -> ExecutionResult:
        if self.path == "sync":
            return ExecutionResult(
                *await prepared.execute_synchronously_1_3(
                    request, measure, deadline, loop_timeout
                )
            )
        callback = ExecutionFuture()
        self.launched = prepared.execute_1_3(
            request, measure, deadline, loop_timeout, callback
        )
        return await callback


@pytest.fixture(params=["async", "sync"])
def execute(request: pytest.FixtureRequest) -> Caller:
    return Caller(request.param)


async def until_running(device: Device, is_running: bool = True) -> None:
    """Wait until a run is on a lane, or none is."""
    async with asyncio.timeout(30):
        while True:
            statistics = await device.statistics()
            if bool(statistics.executions.running) == is_running:
                return
            await asyncio.sleep(0.001)


def children() -> set[int]:
    """Return the processes that this one has started."""
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return {int(pid) for pid in path.read_text().split()}
