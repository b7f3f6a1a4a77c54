"""The device that computes nothing keeps the rules, or figures would say nothing."""

import asyncio

import numpy as np
import pytest

from asyncnn.callbacks import ExecutionFuture, IExecutionCallback
from asyncnn.fences import FenceSource, SyncFence
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.interfaces import IDevice, IPreparedModel
from asyncnn.hal.types import (
    ErrorStatus,
    ExecutionPreference,
    MeasureTiming,
    Model,
    OutputShape,
    Request,
)
from asyncnn.runtime.device import Device
from asyncnn.runtime.opening_devices import open_device
from asyncnn.runtime.requests import RequestBuilder
from asyncnn.tools.bench.made_models import tiny_addition
from asyncnn.tools.bench.noop import NoOpDevice
from tests.networks import addition
from tests.preparing import prepared_by

SUM = addition(4)
NONE = ErrorStatus.NONE


async def prepare(
    model: Model, preference: int = ExecutionPreference.LOW_POWER
) -> IPreparedModel:
    return await prepared_by(NoOpDevice(), model, preference=preference)


def request(*arrays: np.ndarray) -> Request:
    return RequestBuilder(SUM.inputs, SUM.outputs)(arrays[:2], arrays[2:])


X = np.ones(4, np.float32)


def test_it_is_a_device() -> None:
    assert isinstance(NoOpDevice(), IDevice)


async def test_it_succeeds_and_computes_nothing() -> None:
    prepared = await prepare(SUM.model)
    z = np.full(4, 7, np.float32)
    callback = ExecutionFuture()
    mine = request(X, X, z)
    assert prepared.execute_1_3(mine, MeasureTiming.NO, None, None, callback) is NONE
    result = await callback
    assert (result.status, result.output_shapes) == (NONE, (OutputShape((4,), True),))
    assert set(z) == {7}


async def test_one_who_takes_no_early_result_is_told_later() -> None:
    class Late(IExecutionCallback):
        told: object = None

        def notify_1_3(self, status: ErrorStatus, *_: object) -> None:
            self.told = status
            done.set_result(None)

    done = asyncio.get_running_loop().create_future()
    callback = Late()
    prepared = await prepare(SUM.model)
    prepared.execute_1_3(request(X, X, X), MeasureTiming.NO, None, None, callback)
    assert callback.told is None
    await done
    assert callback.told is NONE


async def test_what_is_wrong_is_refused() -> None:
    prepared = await prepare(SUM.model)
    good = request(X, X, X.copy())
    for wrong, measure in (
        (Request(good.inputs[:1], good.outputs, good.pools), 0),
        (Request(good.inputs, good.outputs, good.pools[:2]), 0),
        (good, 2),
    ):
        callback = ExecutionFuture()
        status = prepared.execute_1_3(wrong, measure, None, None, callback)  # type: ignore[arg-type]
        assert status is ErrorStatus.INVALID_ARGUMENT
        assert (await callback).status is status
    status = prepared.execute_1_3(good, MeasureTiming.NO, None, None, None)
    assert status is ErrorStatus.INVALID_ARGUMENT


async def test_models_are_validated() -> None:
    with pytest.raises(InvalidArgumentError):
        await prepare(SUM.model, preference=99)
    main = SUM.model.main
    broken = Model(main=type(main)(main.operands, main.operations, (99,), (0,)))
    with pytest.raises(InvalidArgumentError):
        await prepare(broken)
    device = NoOpDevice()
    supported = await device.get_supported_operations_1_3(SUM.model)
    assert supported == (NONE, (True,))
    supported = await device.get_supported_operations_1_3(broken)
    assert supported == (ErrorStatus.INVALID_ARGUMENT, ())


class TestFencedExecution:
    async def launch(self, *wait_for: SyncFence) -> SyncFence | None:
        async with NoOpDevice() as hal:
            model = await Device("no-op", hal).prepare(addition(4))
            run = model.run_fenced([np.ones(4, np.float32)] * 2, wait_for=wait_for)
            return run.fence

    async def test_it_waits_for_its_fences(self) -> None:
        gates: list[tuple[SyncFence, FenceSource]]
        gates = [SyncFence.pair() for _ in range(2)]
        fence = await self.launch(*[fence for fence, _ in gates])
        assert fence is not None
        assert fence.status is None
        for _, source in gates:
            source.signal()
        await fence.wait(20)

    async def test_it_waits_for_nothing_that_is_over(self) -> None:
        for wait_for in ((), (SyncFence.signalled(),)):
            fence = await self.launch(*wait_for)
            assert fence is None or fence.status is ErrorStatus.NONE

    async def test_a_request_is_validated(self) -> None:
        async with NoOpDevice() as hal:
            model = await Device("no-op", hal).prepare(addition(4))
            refused = model.hal.execute_fenced(
                Request((), (), ()), (), MeasureTiming.NO, None, None, None
            )
        assert refused == (ErrorStatus.INVALID_ARGUMENT, None, None)


async def test_the_tiny_model_adds() -> None:
    x, y = np.arange(4, dtype=np.float32), np.full(4, 0.5, np.float32)
    async with open_device() as device:
        prepared = await device.prepare(tiny_addition())
        outputs = await prepared.run([x, y])
    np.testing.assert_array_equal(outputs["sum"], x + y)
