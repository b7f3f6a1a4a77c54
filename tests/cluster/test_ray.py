"""A device on a cluster of Ray that is started here: actors are other processes.

ASYNCNN_CLUSTER_RUNS sets how many runs are under way, one after the other, as an
actor's process is killed.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio
import ray

import asyncnn
from asyncnn import Priority
from asyncnn.cluster import ClusterSettings
from tests.local_ray import require_ray
from tests.networks import AT_ONCE, FOREVER, addition, counting_up
from tests.waits import cancelled, until

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.alone,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore"),  # Ray leaves files to the collector
]

RUNS = int(os.environ.get("ASYNCNN_CLUSTER_RUNS", "400"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def device() -> AsyncIterator[asyncnn.Device]:
    require_ray()
    settings = ClusterSettings(replicas=2, cpus=0.5)
    opening = asyncnn.open_device("ray://local", replicas=settings, device="reference")
    async with opening as opened:
        yield opened
        processes = await pids(opened)
    assert not ray.is_initialized()
    for pid in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def until_running(device: asyncnn.Device, count: int) -> None:
    """Wait until the replicas say that they have so many runs under way."""
    async with asyncio.timeout(20):
        while True:
            seen = await device.hal.replica_statistics()  # type: ignore[attr-defined]
            if sum(each.executions.running for each in seen) == count:
                return


async def pids(device: asyncnn.Device) -> list[int]:
    links = device.hal.links.values()  # type: ignore[attr-defined]
    asked = "__ray_call__", lambda host: os.getpid()
    return [await link.call(*asked) for link in links if link.is_up]


@pytest.mark.parametrize("elements", [256, 300_000, 2_000_000])
async def test_results_are_those_of_the_device_here(
    device: asyncnn.Device, elements: int
) -> None:
    model = addition(elements)
    x = np.random.default_rng(1).random(elements, np.float32)
    prepared = await device.prepare(model)
    async with asyncnn.open_device("reference") as local:
        expected = await (await local.prepare(model)).run([x, x])
    for _ in range(3):
        assert np.array_equal((await prepared.run([x, x]))[0], expected[0])


async def test_loops_of_actors_come_before_other_processes(
    device: asyncnn.Device,
) -> None:
    links = device.hal.links.values()  # type: ignore[attr-defined]
    for link in links:
        assert await link.call("__ray_call__", lambda _: os.nice(0)) == 0


async def test_a_cancelled_run_stops_on_its_node(device: asyncnn.Device) -> None:
    prepared = await device.prepare(counting_up())
    running = asyncio.ensure_future(prepared.run([FOREVER], loop_timeout=600))
    await until_running(device, 1)
    await cancelled(running)
    await until_running(device, 0)


async def test_deadlines_and_priorities_hold_there(device: asyncnn.Device) -> None:
    low = await device.prepare(counting_up(), priority=Priority.LOW)
    high = await device.prepare(counting_up(), priority=Priority.HIGH)
    filling = [
        asyncio.ensure_future(low.run([FOREVER], loop_timeout=600)) for _ in range(8)
    ]
    assert (await high.run([AT_ONCE], timeout=30))[0] == 0
    with pytest.raises(asyncnn.MissedDeadlineError):
        await high.run([FOREVER], timeout=0.2, loop_timeout=600)
    for each in filling:
        await cancelled(each)
    await until_running(device, 0)


async def test_each_run_ends_once_while_an_actor_is_killed(
    device: asyncnn.Device,
) -> None:
    prepared = await device.prepare(addition(64))
    x, ended = np.ones(64, np.float32), Counter[str]()
    before = await pids(device)

    async def one() -> None:
        try:
            found = await prepared.run([x, x], timeout=30)
            assert np.array_equal(found[0], x + x)
            ended["result"] += 1
        except asyncnn.AsyncnnError as error:
            ended[error.status.name] += 1

    running = [asyncio.ensure_future(one()) for _ in range(RUNS)]
    await until(lambda: ended["result"] > RUNS // 8, 60)
    os.kill(before[0], signal.SIGKILL)
    await asyncio.gather(*running)
    assert sum(ended.values()) == RUNS
    assert set(ended) <= {"result", "DEVICE_UNAVAILABLE"}
    assert ended["result"] > RUNS // 2
    links = device.hal.links.values()  # type: ignore[attr-defined]
    ready = device.hal.dispatcher.replicas.values()  # type: ignore[attr-defined]
    await until(lambda: all(e.is_up for e in links) and all(r.ready for r in ready), 60)
    assert len({*before, *await pids(device)}) == 3
    await asyncio.gather(*(one() for _ in range(20)))
    assert sum(ended.values()) == RUNS + 20
