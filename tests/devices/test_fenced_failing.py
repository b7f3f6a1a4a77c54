"""Fenced execution by the HAL's rules: failures, deadlines, cancellation."""

import asyncio
import gc
import time

import numpy as np
import pytest

from asyncnn.devices import ReferenceDevice
from asyncnn.fences import SyncFence
from asyncnn.hal.interfaces import IDevice
from asyncnn.hal.types import ErrorStatus
from tests.devices.fencing import (
    MISSED,
    UNFINISHED,
    YES,
    Launched,
    accustom,
    counting_request,
    numbered,
    refused,
    sum_request,
)
from tests.devices.test_execution import X, prepare, request_for
from tests.engine.test_control_flow import while_model
from tests.networks import AT_ONCE, FOREVER, addition, counting_up, picking


class TestFailure:
    async def test_a_fence_that_fails_makes_all_that_follow_fail(
        self, device: IDevice
    ) -> None:
        prepared = await prepare(device, addition(4))
        await accustom(prepared)
        gate, source = SyncFence.pair()
        request, z = sum_request()
        runs = [Launched(prepared, request, [gate])]
        for _ in range(400):
            runs.append(Launched(prepared, request, [runs[-1].fence]))
        source.fail(ErrorStatus.DEVICE_UNAVAILABLE, "the camera is unplugged")
        assert await runs[-1].end() is ErrorStatus.GENERAL_FAILURE
        for run in runs:
            assert run.info == UNFINISHED
            # What the owner said of the error does not travel with a descriptor.
            assert run.fence.reason in (
                "what it waited for failed: the camera is unplugged",
                "what it waited for failed: DEVICE_UNAVAILABLE",
            )
        assert not z.any()

    async def test_an_execution_that_fails_has_a_failed_fence(
        self, device: IDevice
    ) -> None:
        prepared = await prepare(device, picking(4))
        index, z = np.zeros(4, np.int32), np.zeros(4, np.float32)
        for _ in range(4):
            index[:] = 0
            good = Launched(prepared, request_for([X, index], [z]))
            assert await good.end() is ErrorStatus.NONE
            index[:] = 4
            run = Launched(prepared, request_for([X, index], [z]))
            follower = None
            if run.fence.status is None:
                request = request_for([X, index], [np.zeros_like(z)])
                follower = Launched(prepared, request, [run.fence])
            assert await run.end() is ErrorStatus.GENERAL_FAILURE
            if follower is not None:
                assert await follower.end() is ErrorStatus.GENERAL_FAILURE
                assert "GATHER" in follower.fence.reason

    async def test_a_lost_source_is_a_failure(self, device: IDevice) -> None:
        prepared = await prepare(device, addition(4))
        gate, source = SyncFence.pair()
        run = Launched(prepared, sum_request()[0], [gate])
        del source
        gc.collect()
        assert await run.end() is ErrorStatus.GENERAL_FAILURE

    async def test_closing_the_device_fails_what_is_under_way(self) -> None:
        gate, source = SyncFence.pair()
        async with ReferenceDevice() as device:
            prepared = await prepare(device, counting_up())
            running = Launched(prepared, counting_request(FOREVER))
            after = Launched(prepared, counting_request(FOREVER), [running.fence])
            gated = Launched(prepared, counting_request(FOREVER), [gate])
            await asyncio.sleep(0.002)
        for run in (running, after, gated):
            assert await run.end() is ErrorStatus.DEVICE_UNAVAILABLE
        source.signal()
        status = refused(prepared, counting_request(FOREVER))
        assert status is ErrorStatus.DEVICE_UNAVAILABLE

    async def test_an_endless_loop_misses_its_deadline(self, device: IDevice) -> None:
        prepared = await prepare(device, numbered(while_model((3,), endless=True)))
        i, x = np.zeros(1, np.int32), np.zeros(3, np.float32)
        request = request_for([i, x, i], [np.empty_like(i), np.empty_like(x)])
        run = Launched(prepared, request, loop_timeout=1_000_000)
        assert await run.end() in MISSED


class TestDeadline:
    async def test_the_deadline_covers_the_waiting(self, device: IDevice) -> None:
        prepared = await prepare(device, addition(4))
        gate, source = SyncFence.pair()
        soon = time.monotonic_ns() + 100_000_000
        run = Launched(prepared, sum_request()[0], [gate], YES, soon)
        follower = Launched(prepared, sum_request()[0], [run.fence])
        assert await run.end() is ErrorStatus.MISSED_DEADLINE_TRANSIENT
        assert time.monotonic_ns() >= soon
        assert await follower.end() is ErrorStatus.GENERAL_FAILURE
        assert "deadline" in follower.fence.reason
        source.signal()

    async def test_the_duration_counts_from_the_last_fence(
        self, device: IDevice
    ) -> None:
        prepared = await prepare(device, counting_up())
        gate, source = SyncFence.pair()
        patient = Launched(
            prepared, counting_request(AT_ONCE - 50), [gate], duration=60_000_000_000
        )
        hasty = Launched(
            prepared, counting_request(FOREVER), [gate], duration=1_000_000
        )
        await asyncio.sleep(0.01)
        assert hasty.fence.status is None
        source.signal()
        assert await hasty.end() in MISSED
        assert await patient.end() is ErrorStatus.NONE

    async def test_the_earlier_of_deadline_and_duration_counts(
        self, device: IDevice
    ) -> None:
        prepared = await prepare(device, addition(4))
        far = 2**63 - 1
        for deadline, duration in ((far, 0), (far, 60_000_000_000), (far, None)):
            run = Launched(
                prepared,
                sum_request()[0],
                [SyncFence.signalled()],
                deadline=deadline,
                duration=duration,
            )
            if duration == 0:
                assert await run.end() in MISSED
            else:
                assert await run.end() is ErrorStatus.NONE


class TestCancelling:
    @pytest.mark.parametrize("runs", [False, True])
    async def test_it_ends_and_so_does_what_follows(
        self, device: IDevice, runs: bool
    ) -> None:
        prepared = await prepare(device, counting_up())
        gate, source = SyncFence.pair()
        run = Launched(prepared, counting_request(FOREVER), [gate])
        after = Launched(prepared, counting_request(AT_ONCE), [run.fence])
        if runs:
            source.signal()
            await asyncio.sleep(0.005)
        run.callback.cancel()
        assert await run.end() is ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
        assert await after.end() is ErrorStatus.GENERAL_FAILURE
        run.callback.cancel()
        source.signal()

    async def test_one_that_is_over_stays_as_it_was(self, device: IDevice) -> None:
        prepared = await prepare(device, addition(4))
        for _ in range(3):
            run = Launched(prepared, sum_request()[0])
            assert await run.end() is ErrorStatus.NONE
            run.callback.cancel()
            assert run.info[0] is ErrorStatus.NONE
