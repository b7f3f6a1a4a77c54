"""A device of replicas, on a cluster without Ray: what users of the HAL see."""

import asyncio
import time
from typing import Any

import numpy as np
import pytest

import asyncnn
from asyncnn import DriverDiedError, Priority
from asyncnn.callbacks import ExecutionFuture, launched
from asyncnn.hal.types import DEFAULT_OPTIONS, ErrorStatus
from asyncnn.runtime.cluster_settings import DispatchSettings
from tests.cluster.fake_cluster import FakeCluster, fake_device
from tests.networks import AT_ONCE, FOREVER, addition, counting_up
from tests.waits import cancelled, until


def begun(cluster: FakeCluster) -> int:
    return sum(actor.begun for actor in cluster.actors)


def runs_of(cluster: FakeCluster) -> int:
    return sum(len(actor.host._tasks) for actor in cluster.actors)


@pytest.mark.parametrize("path", ["async", "sync", "fenced"])
async def test_results_are_those_of_the_device(path: Any) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    async with fake_device(replicas=2) as (device, _):
        prepared = await device.prepare(addition(2, 3))
        inputs = {info.name: x for info in prepared.inputs}
        out = np.empty_like(x)
        results = await prepared.run(inputs, path=path, out=[out], measure=True)
        assert np.array_equal(results[0], x + x)
        assert results[0] is out


async def test_bursts_and_fenced_chains_work() -> None:
    x = np.ones((2, 3), np.float32)
    async with fake_device(replicas=2) as (device, _):
        prepared = await device.prepare(addition(2, 3))
        first, second = (info.name for info in prepared.inputs)
        async with prepared.burst() as burst:
            assert (await burst.run([x, x]))[0].max() == 2
        run = prepared.run_fenced({first: x, second: x})
        after = prepared.run_fenced(
            {first: run.outputs[0], second: x}, wait_for=[run], timeout=20
        )
        assert (await after)[0].max() == 3


async def test_a_cancelled_run_stops_on_the_far_side() -> None:
    async with fake_device() as (device, cluster):
        prepared = await device.prepare(counting_up())
        running = asyncio.ensure_future(prepared.run([FOREVER], loop_timeout=600))
        await until(lambda: runs_of(cluster))
        await cancelled(running)
        await until(lambda: not runs_of(cluster))
        (seen,) = await device.hal.replica_statistics()  # type: ignore[attr-defined]
        assert seen.executions.running == 0
        assert (await prepared.run([AT_ONCE]))[0] == 0


async def test_a_deadline_ends_a_run_where_it_is() -> None:
    async with fake_device() as (device, cluster):
        prepared = await device.prepare(counting_up())
        with pytest.raises(asyncnn.MissedDeadlineError):
            await prepared.run([FOREVER], timeout=0.05, loop_timeout=600)
        await until(lambda: not runs_of(cluster))
        with pytest.raises(asyncnn.MissedDeadlineError):
            await prepared.run([AT_ONCE], timeout=-1)


async def test_urgent_runs_pass_others_that_fill_the_replica() -> None:
    async with fake_device() as (device, cluster):
        low = await device.prepare(counting_up(), priority=Priority.LOW)
        high = await device.prepare(counting_up(), priority=Priority.HIGH)
        filling = [
            asyncio.ensure_future(low.run([FOREVER], loop_timeout=600))
            for _ in range(20)
        ]
        await until(lambda: runs_of(cluster))
        assert (await high.run([AT_ONCE], timeout=20))[0] == 0
        assert begun(cluster) < len(filling)  # the others wait here
        for each in filling:
            await cancelled(each)


async def test_what_a_lost_replica_has_begun_ends_once_and_the_rest_goes_on() -> None:
    async with fake_device() as (device, cluster):
        prepared = await device.prepare(counting_up())
        first = asyncio.ensure_future(prepared.run([FOREVER], loop_timeout=600))
        await until(lambda: runs_of(cluster))
        waiting = [asyncio.ensure_future(prepared.run([AT_ONCE])) for _ in range(9)]
        await until(lambda: device.hal.dispatcher.waiting)  # type: ignore[attr-defined]
        cluster.actors[0].die()
        with pytest.raises(DriverDiedError, match="may have run"):
            await first
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert any(not isinstance(each, Exception) for each in ended)
        assert all(
            isinstance(each, DriverDiedError)
            for each in ended
            if isinstance(each, Exception)
        )
        assert (await prepared.run([AT_ONCE]))[0] == 0


async def test_what_is_safe_runs_again_after_a_loss() -> None:
    async with fake_device(idempotent=True, replicas=2) as (device, cluster):
        prepared = await device.prepare(counting_up())
        slow = np.full(1, -2_000, np.float32)
        running = [
            asyncio.ensure_future(prepared.run([slow], loop_timeout=600))
            for _ in range(4)
        ]
        await until(lambda: runs_of(cluster) >= 2)
        cluster.actors[0].die(for_good=True)  # another is started in its place
        found = await asyncio.gather(*running)
        assert [float(each[0][0]) for each in found] == [0] * 4
        await until(lambda: len(cluster.actors) == 3)


async def test_a_replica_that_has_come_back_unnoticed_is_prepared_again() -> None:
    async with fake_device() as (device, cluster):
        prepared = await device.prepare(addition(1))
        cluster.actors[0].die()
        one = np.ones(1, np.float32)
        assert (await prepared.run([one, one], timeout=20))[0] == 2
        assert (await prepared.run([one, one], timeout=20))[0] == 2


async def test_runs_are_refused_where_too_many_wait() -> None:
    dispatch = DispatchSettings(window=1, max_waiting=1)
    async with fake_device(dispatch=dispatch) as (device, cluster):
        prepared = await device.prepare(counting_up())
        running = [
            asyncio.ensure_future(prepared.run([FOREVER], loop_timeout=600))
            for _ in range(2)
        ]
        await until(lambda: runs_of(cluster))
        with pytest.raises(asyncnn.ResourceExhaustedTransientError, match="wait"):
            await prepared.run([AT_ONCE])
        for each in running:
            await cancelled(each)


async def test_a_closed_device_ends_what_is_pending() -> None:
    async with fake_device() as (device, cluster):
        prepared = await device.prepare(counting_up())
        running = [
            asyncio.ensure_future(prepared.run([FOREVER], loop_timeout=600))
            for _ in range(9)
        ]
        await until(lambda: runs_of(cluster))
    for each in running:
        with pytest.raises(asyncnn.DeviceClosedError):
            await each
    with pytest.raises(asyncnn.DeviceUnavailableError):
        await prepared.run([AT_ONCE])


async def test_a_model_that_is_refused_is_refused_in_the_devices_words() -> None:
    async with fake_device(replicas=2) as (device, _):
        with pytest.raises(asyncnn.MissedDeadlineError):
            await device.prepare(addition(1), timeout=0)
        preparing = asyncio.ensure_future(device.prepare(addition(1)))
        await asyncio.sleep(0)
        await cancelled(preparing)


async def test_requests_of_the_hal_end_once_with_their_status() -> None:
    async with fake_device() as (device, _):
        prepared = await device.prepare(addition(1))
        built = prepared._target.build_request
        one, out = np.ones(1, np.float32), np.empty(1, np.float32)
        end = launched(prepared.hal, built([one, one], [out]), DEFAULT_OPTIONS)
        assert (await end).status is ErrorStatus.NONE
        assert out == 2
        late = ExecutionFuture()
        passed = time.monotonic_ns() - 1
        request = built([one, one], [out])
        status = prepared.hal.execute_1_3(request, 0, passed, None, late)
        assert status is ErrorStatus.NONE
        assert (await late).status is ErrorStatus.MISSED_DEADLINE_PERSISTENT
        assert prepared.hal.execute_1_3(request, 0, None, None, None) is (
            ErrorStatus.INVALID_ARGUMENT
        )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"replicas": 2}, "replicas are of a device on a cluster"),
        ({"name": "ray://nowhere"}, "no address of a cluster"),
    ],
)
async def test_what_is_no_cluster_is_refused(given: Any, message: str) -> None:
    with pytest.raises(asyncnn.InvalidArgumentError, match=message):
        async with asyncnn.open_device(**given):
            pass
