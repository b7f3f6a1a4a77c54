"""Requests that are built once and executed again and again."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import numpy as np
import pytest

from asyncnn import (
    Device,
    DeviceUnavailableError,
    PreparedModel,
    ReusableExecution,
    shared_array,
)
from asyncnn.fences import SyncFence
from asyncnn.hal.errors import (
    GeneralFailureError,
    InvalidArgumentError,
    MissedDeadlinePersistentError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.types import ErrorStatus
from asyncnn.runtime.opening_devices import open_device
from tests.mappings import mapped_pools
from tests.networks import FOREVER, addition, chain, counting_up
from tests.places import PLACES, device_at
from tests.waits import cancelled

ONE = np.ones(4, np.float32)
PATHS = ("async", "sync", "fenced")


device = device_at(*PLACES)


class Making:
    """Makes executions that go one way."""

    def __init__(self, path: str, open_bursts: AsyncExitStack) -> None:
        self.path = path
        self._open_bursts = open_bursts

    async def __call__(
        self, prepared: PreparedModel, *inputs: object, **options: object
    ) -> ReusableExecution:
        if self.path != "burst":
            return prepared.reusable(*inputs, path=self.path, **options)
        burst = await self._open_bursts.enter_async_context(prepared.burst())
        return burst.reusable(*inputs, **options)


@pytest.fixture(params=[*PATHS, "burst"])
async def make(request: pytest.FixtureRequest, device: Device) -> AsyncIterator[Making]:
    async with AsyncExitStack() as open_bursts:
        yield Making(request.param, open_bursts)


async def test_arrays_are_written_and_read_in_place(
    device: Device, make: Making
) -> None:
    execution = await make(await device.prepare(addition(4)))
    x, y, z = execution.input("x"), execution.input(1), execution.output()
    for k in range(5):
        x[...], y[...] = k, 10
        outputs = await execution.run()
        assert outputs["z"] is z is execution.output("z")
        assert np.array_equal(z, np.full(4, 10 + k))
    assert await execution.run() is outputs


async def test_arrays_of_the_caller_are_used_where_they_are(
    device: Device, make: Making
) -> None:
    prepared = await device.prepare(addition(4))
    x, y, z = (shared_array(4) for _ in range(3))
    execution = await make(prepared, [x, y], out=[z])
    assert execution.input("x") is x
    assert execution.output("z") is z
    x[...], y[...] = 1, 2
    await execution.run()
    assert np.array_equal(z, 3 * ONE)


async def test_one_output_is_the_next_ones_input(device: Device, make: Making) -> None:
    prepared = await device.prepare(chain(1, 4))
    first = await make(prepared)
    second = await make(prepared, first.output())
    for _ in range(3):
        await first.run()
        await second.run()
    assert np.array_equal(second.output(), 2 * ONE)


async def test_timing_is_measured_on_request(device: Device, make: Making) -> None:
    execution = await make(await device.prepare(addition(4)))
    outputs = await execution.run(measure=True)
    assert outputs.timing.on_device_ns <= outputs.timing.in_driver_ns < 10**10
    assert (await execution.run()).timing is None


async def test_a_run_after_a_fenced_one_tells_its_own_timing(
    device: Device, make: Making
) -> None:
    execution = await make(await device.prepare(addition(4)))
    await execution.run()
    assert (await execution.run_fenced(measure=True)).timing is not None
    assert (await execution.run()).timing is None


async def test_the_request_is_built_once(
    device: Device, make: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution = await make(await device.prepare(addition(4)))
    built: list[object] = []
    monkeypatch.setattr(
        "asyncnn.runtime.requests.RequestBuilder.__call__",
        lambda *arguments: built.append(arguments),
    )
    for _ in range(3):
        await execution.run()
        await execution.run_fenced()
    assert built == []


async def test_a_deadline_is_kept(device: Device, make: Making) -> None:
    execution = await make(await device.prepare(addition(4)))
    with pytest.raises(MissedDeadlinePersistentError):
        await execution.run(timeout=0)
    await execution.run(timeout=60)


async def test_outputs_of_open_shape_find_their_space(
    device: Device, make: Making
) -> None:
    x = shared_array((700, 3))
    x[...] = 1
    execution = await make(await device.prepare(addition(0, 3)), [x, x])
    if make.path == "fenced":  # which reports no shapes
        with pytest.raises(InvalidArgumentError):
            await execution.run()
        return
    with pytest.raises(InvalidArgumentError, match="run first"):
        execution.output()
    for _ in range(2):
        outputs = await execution.run()
        assert np.array_equal(outputs["z"], 2 * x)
        assert execution.output() is outputs["z"]
    with pytest.raises(InvalidArgumentError, match="output z has no fixed shape"):
        execution.run_fenced()


async def test_inputs_of_open_shape_have_to_be_given(
    device: Device, make: Making
) -> None:
    with pytest.raises(InvalidArgumentError, match="input x has no fixed shape"):
        await make(await device.prepare(addition(0, 3)))


@pytest.mark.parametrize("which", ["w", 2, -1])
async def test_there_are_no_arrays_but_the_models(
    device: Device, which: str | int
) -> None:
    execution = (await device.prepare(addition(4))).reusable()
    with pytest.raises(InvalidArgumentError, match="no input"):
        execution.input(which)
    with pytest.raises(InvalidArgumentError, match="no output"):
        execution.output(which)


async def test_there_are_no_paths_but_the_hals(device: Device) -> None:
    prepared = await device.prepare(addition(4))
    with pytest.raises(InvalidArgumentError, match="no path 'burst'"):
        prepared.reusable(path="burst")


async def test_a_burst_takes_no_memory_of_this_process_alone(device: Device) -> None:
    async with (await device.prepare(addition(4))).burst() as burst:
        with pytest.raises(InvalidArgumentError, match="this process alone"):
            burst.reusable([ONE, ONE])
        with pytest.raises(InvalidArgumentError, match="this process alone"):
            burst.reusable(out=np.empty(4, np.float32))


async def test_device_managed_buffers_are_arguments_but_no_arrays(
    device: Device,
) -> None:
    prepared = await device.prepare(chain(1, 4))
    buffer = await device.buffer_for(prepared.input(), prepared.output())
    writing = prepared.reusable([ONE], out=[buffer])
    reading = prepared.reusable([buffer])
    assert await writing.run() == {}
    assert np.array_equal((await reading.run())["z"], 3 * ONE)
    with pytest.raises(InvalidArgumentError, match="device-managed"):
        reading.input()
    with pytest.raises(InvalidArgumentError, match="device-managed"):
        writing.output()
    async with prepared.burst() as burst:
        with pytest.raises(InvalidArgumentError, match="do not know device-managed"):
            burst.reusable([buffer])
        with pytest.raises(InvalidArgumentError, match="do not know device-managed"):
            await burst.run([buffer])


class TestOneAtATime:
    async def test_a_second_run_is_refused_and_the_first_goes_on(
        self, device: Device, make: Making
    ) -> None:
        execution = await make(await device.prepare(chain(1000, 64, 64)))
        first = asyncio.ensure_future(execution.run())
        await asyncio.sleep(0)
        with pytest.raises(GeneralFailureError, match="has not returned"):
            await execution.run()
        with pytest.raises(GeneralFailureError, match="has not returned"):
            execution.run_fenced()
        assert ((await first)["z"] == 1000).all()
        await execution.run_fenced()

    async def test_a_run_is_refused_until_a_fenced_one_has_ended(
        self, device: Device, make: Making
    ) -> None:
        execution = await make(await device.prepare(addition(4)))
        gate, source = SyncFence.pair()
        launched = execution.run_fenced([gate])
        with pytest.raises(GeneralFailureError, match="has not returned"):
            await execution.run()
        with pytest.raises(GeneralFailureError, match="has not returned"):
            execution.run_fenced()
        source.signal()
        await launched
        await execution.run()

    async def test_a_run_is_refused_until_all_fenced_ones_have_ended(
        self, device: Device
    ) -> None:
        execution = (await device.prepare(addition(4))).reusable()
        gate, source = SyncFence.pair()
        first = execution.run_fenced([gate])
        second = execution.run_fenced([first])
        second.cancel()
        with pytest.raises(ResourceExhaustedTransientError):
            await second
        with pytest.raises(GeneralFailureError, match="has not returned"):
            await execution.run()
        source.signal()
        await first
        await execution.run()

    async def test_fences_keep_launches_apart(self, device: Device) -> None:
        prepared = await device.prepare(chain(1, 4))
        there, back = shared_array(4), shared_array(4)
        steps = [prepared.reusable(a, out=b) for a, b in ((there, back), (back, there))]
        run = steps[0].run_fenced()
        for k in range(1, 40):
            run = steps[k % 2].run_fenced([run])
        await run
        assert np.array_equal(there, 40 * ONE)

    async def test_a_cancelled_run_may_be_repeated(
        self, device: Device, make: Making
    ) -> None:
        execution = await make(await device.prepare(counting_up()))
        execution.input()[:] = FOREVER
        task = asyncio.ensure_future(execution.run())
        await asyncio.sleep(0.002)
        await cancelled(task)
        execution.input()[:] = -5
        assert (await execution.run())["z"] == 0

    async def test_a_failed_run_may_be_repeated(self, device: Device) -> None:
        execution = (await device.prepare(addition(4))).reusable()
        gate, source = SyncFence.pair()
        launched = execution.run_fenced([gate])
        launched.cancel()
        with pytest.raises(ResourceExhaustedTransientError):
            await launched
        failed = SyncFence.failed(ErrorStatus.DEVICE_UNAVAILABLE, "unplugged")
        with pytest.raises(GeneralFailureError, match="unplugged"):
            await execution.run_fenced([failed])
        await execution.run()
        source.signal()


async def test_a_closed_device_fails_it() -> None:
    async with open_device() as device:
        execution = (await device.prepare(addition(4))).reusable()
        await execution.run()
    with pytest.raises(DeviceUnavailableError):
        await execution.run()


async def test_memory_goes_with_the_last_reference(
    device: Device, make: Making
) -> None:
    prepared = await device.prepare(addition(2**15))  # small arrays share memory
    gc.collect()
    before = mapped_pools()
    execution = await make(prepared)
    assert mapped_pools() >= before + 3
    del execution
    gc.collect()
    assert mapped_pools() <= before + 3 * (make.path == "burst")
