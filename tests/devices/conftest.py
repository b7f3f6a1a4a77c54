"""Devices that the same behaviour is expected of, and the calls that carry it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from asyncnn.callbacks import ExecutionFuture, ExecutionResult
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.hal.interfaces import IDevice, IPreparedModel
from asyncnn.hal.types import ErrorStatus, MeasureTiming, Request
from asyncnn.runtime.device import Device
from tests.places import REGIONS, WAYS, kind_at, placed


@pytest.fixture(params=[*WAYS, "accelerated", *REGIONS])
async def device(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[IDevice]:
    """A device in this process or behind a socket.

    The reference device runs on its lane only, or inline whenever it can; the others on
    their two lanes only. Where its name says so, models are regions.
    """
    with kind_at(request.param) as kind:
        limit = {"inline": 1e9, "remote": 50.0}.get(request.param, 0.0)
        lanes = None if kind is ReferenceDevice else 2
        opening = kind(DeviceSettings(inline_below_us=limit, lanes=lanes))
        async with placed(request.param, opening, tmp_path) as device:
            yield device


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
