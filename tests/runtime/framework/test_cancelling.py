"""What is cancelled in a framework ends once, and is no failure of a device."""

import asyncio
import errno

import pytest

import asyncnn
from asyncnn.hal.errors import DeviceUnavailableError, ResourceExhaustedTransientError
from asyncnn.hal.interfaces import IPreparedModel, IPreparedModelCallback
from asyncnn.hal.types import (
    ErrorStatus,
    ExecutionOptions,
    ExecutionPreference,
    MeasureTiming,
    Request,
)
from asyncnn.runtime.device import Device
from asyncnn.runtime.framework.stepping import SteppedRun
from asyncnn.runtime.framework.steps import OnCpu
from asyncnn.tools.bench.made_models import dense
from asyncnn.tools.stress.place import PATHS, run_by_callback
from tests.preparing import launch_preparation
from tests.runtime.framework.crippled import Fault
from tests.runtime.framework.mixed import inputs, mixed
from tests.runtime.framework.test_failing import framework_with
from tests.waits import until


class Preparing(IPreparedModelCallback):
    """Keeps the statuses that it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[ErrorStatus] = []

    def notify_1_3(
        self, status: ErrorStatus, prepared_model: IPreparedModel | None
    ) -> None:
        self.told.append(status)


def launch(device: Device) -> Preparing:
    """Launch a preparation, whose task has not begun yet."""
    callback = Preparing()
    status = launch_preparation(
        device.hal, mixed().model, callback, preference=ExecutionPreference.LOW_POWER
    )
    assert status is ErrorStatus.NONE
    return callback


async def test_a_preparation_that_is_given_up_at_once_is_reported() -> None:
    async with framework_with(Fault.NONE) as (device, _):
        callback = launch(device)
        callback.die()
        await until(lambda: bool(callback.told))
        assert callback.told == [ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT]


async def test_a_preparation_that_closing_meets_at_its_begin_is_reported() -> None:
    async with framework_with(Fault.NONE) as (device, _):
        callback = launch(device)
    assert callback.told == [ErrorStatus.DEVICE_UNAVAILABLE]


@pytest.mark.parametrize("way", ["die", "close"])
async def test_a_run_that_is_given_up_as_the_cpu_is_to_prepare_ends(way: str) -> None:
    async with framework_with(Fault.EXECUTING) as (device, _):
        prepared = await device.prepare(mixed())
        task = asyncio.create_task(prepared.run(inputs()))
        await asyncio.sleep(0)  # it has failed by now, and the task has not begun
        (run,) = device.hal._host.active
        assert run._task is not None
        getattr(run, way)()
        async with asyncio.timeout(20):
            await device.hal._host.wait_idle()
        error = {
            "die": ResourceExhaustedTransientError,
            "close": DeviceUnavailableError,
        }
        with pytest.raises(error[way]):
            await task


async def test_a_run_ends_whatever_the_cpu_raises_as_it_prepares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def failing(_: OnCpu) -> IPreparedModel:
        raise ZeroDivisionError("of nobody's making")

    monkeypatch.setattr(OnCpu, "prepare", failing)
    async with framework_with(Fault.EXECUTING) as (device, _):
        prepared = await device.prepare(mixed())
        async with asyncio.timeout(20):
            with pytest.raises(asyncnn.GeneralFailureError, match="nobody's making"):
                await prepared.run(inputs())


@pytest.mark.parametrize("refuses", [set(), {asyncnn.OperationType.QUANTIZE}])
async def test_a_fenced_run_that_is_cancelled_is_not_left_to_the_cpu(
    refuses: set[asyncnn.OperationType],
) -> None:
    async with framework_with(Fault.NONE, refuses=refuses) as (device, _):
        prepared = await device.prepare(mixed())
        gate, source = asyncnn.fences.SyncFence.pair()
        run = prepared.run_fenced(inputs(), wait_for=[gate])
        source.signal()
        run.cancel()
        with pytest.raises(ResourceExhaustedTransientError):
            await run
        assert not (await device.statistics()).fallbacks
        assert not any(member.health.has_failed for member in device.hal.members)


async def test_all_who_wait_for_the_end_of_executions_learn_of_it() -> None:
    async with framework_with(Fault.NONE) as (device, _):
        host = device.hal._host
        execution = SteppedRun(
            *((await device.prepare(mixed())).hal, Request((), (), ())),
            *(ExecutionOptions(), lambda outcome: None),
        )
        closers = [asyncio.create_task(host.wait_idle()) for _ in range(2)]
        await asyncio.sleep(0)
        execution.close()
        async with asyncio.timeout(20):
            await asyncio.gather(*closers)


@pytest.mark.parametrize("path", [*PATHS, "callback"])
async def test_what_is_pending_when_a_framework_is_closed_ends_as_of_any_device(
    path: str,
) -> None:
    long = dense(12, 256, 48)

    async def run() -> ErrorStatus:
        if path == "callback":
            return (await run_by_callback(prepared, {"x": long.input()}))[0]
        async with prepared.runner(path) as run:  # type: ignore[arg-type]
            await run([long.input()])
        return ErrorStatus.NONE

    async with asyncnn.open_devices("sample-float-fast") as device:
        prepared = await device.prepare(long.build())
        tasks = [asyncio.create_task(run()) for _ in range(16)]
        await until(lambda: bool(device.hal._host.active))
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    closed = {ErrorStatus.DEVICE_UNAVAILABLE}
    told = {getattr(end, "status", end) for end in ends} - {ErrorStatus.NONE}
    assert told == closed


async def test_calls_of_a_closed_framework_keep_nothing() -> None:
    async with framework_with(Fault.NONE) as (device, _):
        prepared = await device.prepare(mixed())
        await device.hal.aclose()
        for _ in range(3):
            prepared.hal.execute_fenced(
                *(Request((), (), ()), (), MeasureTiming.NO, None, None, None)
            )
            assert prepared.hal.cause_of_death().__traceback__ is None


class Unwatchable(asyncnn.fences.SyncFence):
    """A fence of another process, where descriptors have run out."""

    def add_done_callback(self, callback: object) -> None:
        raise OSError(errno.EMFILE, "there are no more descriptors")


async def test_a_fence_that_cannot_be_watched_fails_the_run_and_leaves_nothing() -> (
    None
):
    async with framework_with(Fault.NONE, has_fences=False) as (device, _):
        prepared = await device.prepare(mixed())
        gate, _source = Unwatchable.pair()
        run = prepared.run_fenced(inputs(), wait_for=[gate])
        with pytest.raises(ResourceExhaustedTransientError):
            await run
        assert not device.hal._host.active
