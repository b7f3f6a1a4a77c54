"""Fenced execution by the HAL's rules: what goes well, and what is refused."""

import asyncio
import gc
import threading
import time
import weakref

import numpy as np
import pytest

from asyncnn.callbacks import ExecutionFuture
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.fences import SyncFence
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.interfaces import IDevice
from asyncnn.hal.types import NO_TIMING, ErrorStatus
from asyncnn.runtime.device import Device
from tests.devices.fencing import (
    NO,
    UNFINISHED,
    YES,
    Launched,
    accustom,
    counting_request,
    refused,
    sum_request,
)
from tests.devices.test_execution import X, Y, prepare, request_for
from tests.networks import FOREVER, addition, counting_up
from tests.waits import until


async def test_it_executes_without_fences(device: IDevice) -> None:
    prepared = await prepare(device, addition(4))
    for _ in range(5):
        request, z = sum_request()
        assert await Launched(prepared, request).end() is ErrorStatus.NONE
        np.testing.assert_array_equal(z, X + Y)


async def test_it_begins_when_the_last_fence_has_signalled(device: IDevice) -> None:
    prepared = await prepare(device, addition(4))
    await accustom(prepared)
    (first, first_source), (second, second_source) = SyncFence.pair(), SyncFence.pair()
    request, z = sum_request()
    run = Launched(prepared, request, [first, second, first])
    first_source.signal()
    await asyncio.sleep(0.005)
    assert run.info == UNFINISHED
    assert run.fence.status is None
    assert not z.any()
    second_source.signal()
    assert await run.end() is ErrorStatus.NONE
    np.testing.assert_array_equal(z, X + Y)


async def test_a_chain_of_two_has_fences_that_exist(device: IDevice) -> None:
    prepared = await prepare(device, addition(4))
    gate, source = SyncFence.pair()
    first = Launched(prepared, sum_request()[0], [gate])
    second = Launched(prepared, sum_request()[0], [first.fence])
    third = Launched(prepared, sum_request()[0], [second.fence.duplicate()])
    source.signal()
    assert await third.end() is ErrorStatus.NONE
    done = Launched(prepared, sum_request()[0], [first.fence, second.fence])
    assert done.fence is not None
    assert await done.end() is ErrorStatus.NONE
    assert done.fence.handle().fds[0] > 0


async def test_an_execution_that_is_over_has_no_fence() -> None:
    async with ReferenceDevice(DeviceSettings(inline_below_us=1e9)) as device:
        prepared = await prepare(device, addition(4))
        await accustom(prepared)
        await asyncio.sleep(0.001)  # what came before has used up its turn of the loop
        request, z = sum_request()
        run = Launched(prepared, request, measure=YES)
        assert run.fence is None
        status, launched, fenced = run.info
        assert status is ErrorStatus.NONE
        assert launched == fenced != NO_TIMING
        np.testing.assert_array_equal(z, X + Y)


async def test_waiting_takes_no_thread(device: IDevice) -> None:
    prepared = await prepare(device, addition(4))
    await accustom(prepared)
    gate, source = SyncFence.pair()
    before = threading.active_count()
    runs = [Launched(prepared, sum_request()[0], [gate]) for _ in range(100)]
    assert threading.active_count() == before
    source.signal()
    for run in runs:
        assert await run.end() is ErrorStatus.NONE


async def test_the_fence_may_be_closed_after_the_call(device: IDevice) -> None:
    prepared = await prepare(device, addition(4))
    gate, source = SyncFence.pair()
    run = Launched(prepared, sum_request()[0], [gate])
    gate.close()
    source.signal()
    assert await run.end() is ErrorStatus.NONE


async def test_it_waits_for_a_descriptor_of_another_maker(device: IDevice) -> None:
    prepared = await prepare(device, addition(4))
    gate, source = SyncFence.pair()
    foreign = SyncFence.from_fd(gate.fileno())
    run = Launched(prepared, sum_request()[0], [foreign])
    await asyncio.sleep(0.002)
    assert run.info == UNFINISHED
    source.signal()
    assert await run.end() is ErrorStatus.NONE


class TestLaunch:
    async def test_a_malformed_request_is_refused(self, device: IDevice) -> None:
        prepared = await prepare(device, addition(4))
        request = request_for([X], [np.empty(4, np.float32)])
        assert refused(prepared, request) is ErrorStatus.INVALID_ARGUMENT

    async def test_a_measure_that_is_no_enumerator_is_refused(
        self, device: IDevice
    ) -> None:
        prepared = await prepare(device, addition(4))
        status = refused(prepared, sum_request()[0], measure=7)  # type: ignore[arg-type]
        assert status is ErrorStatus.INVALID_ARGUMENT

    @pytest.mark.parametrize("rows", [0, 2])
    async def test_an_output_of_unknown_or_no_size_is_refused(
        self, device: IDevice, rows: int
    ) -> None:
        prepared = await prepare(device, addition(0, 2))
        x = np.zeros((rows, 2), np.float32)
        request = request_for([x, x], [np.empty(4, np.float32)], dimensions=(rows, 2))
        assert refused(prepared, request) is ErrorStatus.INVALID_ARGUMENT

    async def test_an_output_that_is_too_short_is_refused(
        self, device: IDevice
    ) -> None:
        prepared = await prepare(device, addition(4))
        request = request_for([X, Y], [np.empty(4, np.float32)])
        await Launched(prepared, request).end()
        short = request_for([X, Y], [np.empty(3, np.float32)])
        assert refused(prepared, short) is ErrorStatus.INVALID_ARGUMENT

    async def test_an_empty_fence_is_refused(self, device: IDevice) -> None:
        prepared = await prepare(device, addition(4))
        status = refused(prepared, sum_request()[0], [None])  # type: ignore[list-item]
        assert status is ErrorStatus.INVALID_ARGUMENT

    async def test_a_fence_that_has_failed_is_refused(self, device: IDevice) -> None:
        prepared = await prepare(device, addition(4))
        failed = SyncFence.failed(ErrorStatus.DEVICE_UNAVAILABLE)
        status = refused(prepared, sum_request()[0], [SyncFence.signalled(), failed])
        assert status is ErrorStatus.INVALID_ARGUMENT

    async def test_a_closed_fence_is_refused(self, device: IDevice) -> None:
        prepared = await prepare(device, addition(4))
        fence, _ = SyncFence.pair()
        fence.close()
        status = refused(prepared, sum_request()[0], [fence])
        assert status is ErrorStatus.INVALID_ARGUMENT

    async def test_a_passed_deadline_is_refused(self, device: IDevice) -> None:
        prepared = await prepare(device, addition(4))
        status = refused(prepared, sum_request()[0], deadline=time.monotonic_ns())
        assert status is ErrorStatus.MISSED_DEADLINE_PERSISTENT

    async def test_there_is_a_limit_to_those_under_way(self) -> None:
        async with ReferenceDevice(DeviceSettings(max_waiting=2)) as device:
            prepared = await prepare(device, addition(4))
            gate, source = SyncFence.pair()
            runs = [Launched(prepared, sum_request()[0], [gate]) for _ in range(2)]
            status = refused(prepared, sum_request()[0], [gate])
            assert status is ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
            source.signal()
            for run in runs:
                assert await run.end() is ErrorStatus.NONE
            assert await Launched(prepared, sum_request()[0]).end() is ErrorStatus.NONE

    def test_that_limit_is_positive(self) -> None:
        with pytest.raises(InvalidArgumentError, match="max_waiting is 0"):
            DeviceSettings(max_waiting=0)

    async def test_a_scheduler_that_others_have_filled_refuses_it(self) -> None:
        settings = DeviceSettings(max_pending=1, inline_below_us=0)
        async with ReferenceDevice(settings) as device:
            slow = await prepare(device, counting_up())
            callback = ExecutionFuture()
            request = counting_request(FOREVER)
            slow.execute_1_3(request, NO, None, None, callback)
            run = Launched(slow, request)
            assert await run.end() is ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
            callback.die()

    async def test_more_than_the_scheduler_takes_wait_for_one_another(self) -> None:
        settings = DeviceSettings(max_pending=2, inline_below_us=0)
        async with ReferenceDevice(settings) as device:
            prepared = await prepare(device, addition(4))
            gate, source = SyncFence.pair()
            runs = [Launched(prepared, sum_request()[0], [gate]) for _ in range(20)]
            source.signal()
            for run in runs:
                assert await run.end() is ErrorStatus.NONE


class TestTiming:
    @pytest.mark.parametrize("is_gated", [False, True])
    async def test_both_timings_are_there_if_asked_for(
        self, device: IDevice, is_gated: bool
    ) -> None:
        prepared = await prepare(device, addition(4))
        for _ in range(3):
            gate, source = SyncFence.pair()
            run = Launched(prepared, sum_request()[0], [gate] * is_gated, YES)
            await asyncio.sleep(0.03)  # a driver may be told of it late
            source.signal()
            assert await run.end() is ErrorStatus.NONE
            _, launched, fenced = run.info
            assert launched.time_on_device == fenced.time_on_device
            assert fenced.time_on_device <= fenced.time_in_driver
            assert fenced.time_in_driver <= launched.time_in_driver < 100 * 10**6
            if is_gated:
                waited = launched.time_in_driver - fenced.time_in_driver
                assert waited >= 1000

    async def test_nothing_is_measured_unasked(self, device: IDevice) -> None:
        prepared = await prepare(device, addition(4))
        for _ in range(3):
            run = Launched(prepared, sum_request()[0])
            assert await run.end() is ErrorStatus.NONE
            assert run.info == (ErrorStatus.NONE, NO_TIMING, NO_TIMING)


async def test_callbacks_of_what_has_ended_are_called_soon(device: IDevice) -> None:
    async with Device("tested", device) as opened:
        run = (await opened.prepare(addition(4))).run_fenced([X, Y])
        await run
        called: list[object] = []
        run.add_done_callback(called.append)
        assert not called
        await asyncio.sleep(0)
        assert called == [run]


async def test_what_has_ended_holds_nothing(device: IDevice) -> None:
    prepared = await prepare(device, addition(4))
    gate, source = SyncFence.pair()
    await accustom(prepared)
    gc.collect()
    gc.disable()
    try:
        request, _ = sum_request()
        pools = [weakref.ref(pool) for pool in request.pools]
        ended = Launched(prepared, request, [gate])
        dropped = weakref.ref(Launched(prepared, request, [gate]).fence)
        del request
        source.signal()
        assert await ended.end() is ErrorStatus.NONE
        await until(lambda: dropped() is None)
        await until(lambda: [pool() for pool in pools] == [None] * len(pools))
    finally:
        gc.enable()


async def test_the_loop_gets_its_turns_while_a_long_chain_runs() -> None:
    async with ReferenceDevice(DeviceSettings(inline_below_us=1e9)) as device:
        prepared = await prepare(device, addition(4))
        await accustom(prepared)
        gate, source = SyncFence.pair()
        run = Launched(prepared, sum_request()[0], [gate])
        for _ in range(2000):
            run = Launched(prepared, sum_request()[0], [run.fence])
        source.signal()
        turns = 0
        while run.fence.status is None:
            await asyncio.sleep(0)
            turns += 1
        assert turns > 10
        assert await run.end() is ErrorStatus.NONE
