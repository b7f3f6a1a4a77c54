"""Devices that the same behaviour is expected of, and the calls that carry it."""

from collections.abc import AsyncIterator

import pytest

from asyncnn.callbacks import ExecutionFuture, ExecutionResult
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.hal.interfaces import IDevice, IPreparedModel
from asyncnn.hal.types import MeasureTiming, Request


@pytest.fixture(params=["lane", "inline"])
async def device(request: pytest.FixtureRequest) -> AsyncIterator[IDevice]:
    """A reference device that runs on its lane only, or inline whenever it can."""
    limit = {"lane": 0.0, "inline": 1e9}[request.param]
    async with ReferenceDevice(DeviceSettings(inline_below_us=limit)) as device:
        yield device


class Caller:
    """Executes by one path; launch status and result must agree."""

    def __init__(self, path: str) -> None:
        self.path = path

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
        prepared.execute_1_3(request, measure, deadline, loop_timeout, callback)
        return await callback


@pytest.fixture(params=["async", "sync"])
def execute(request: pytest.FixtureRequest) -> Caller:
    return Caller(request.param)
