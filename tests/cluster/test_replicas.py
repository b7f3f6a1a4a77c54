"""Replicas of a device: connecting to a cluster for them, and as many as are needed."""

import asyncio
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncnn
from asyncnn.cluster import links
from asyncnn.runtime.cluster_settings import ClusterSettings, DispatchSettings
from tests.cluster.fake_cluster import FakeActor, FakeCluster, FakeRay, fake_device
from tests.cluster.test_device import begun, gate
from tests.networks import AT_ONCE, FOREVER, addition, counting_up
from tests.waits import cancelled, until


async def test_opens_at_once_share_a_connection_to_one_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray, settings = FakeRay(), ClusterSettings(cpus=0.3)
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = f"ray://127.0.0.1:{server.getsockname()[1]}"
        async with links.Cluster(where, settings):
            assert ray.is_on
    with pytest.raises(asyncnn.NoDriverError, match=r"refused.*RAY_AUTH_MODE"):
        await links.Cluster(where, settings).__aenter__()
    assert not ray.is_on
    both = [links.Cluster("ray://local", settings) for _ in range(2)]
    await asyncio.gather(*(each.__aenter__() for each in both))
    await both[0].__aexit__()
    with pytest.raises(asyncnn.NoDriverError, match=r"connected to ray://10.0.0.1:"):
        await links.Cluster("ray://10.0.0.2:6379", settings).__aenter__()
    for same in ("ray://auto", "ray://10.0.0.1:6379"):
        async with links.Cluster(same, settings):
            pass
    greedy = ClusterSettings(cpus=(os.cpu_count() or 1) - 0.2)
    with pytest.raises(asyncnn.NoDriverError, match=r"all devices .* ask for .* CPUs"):
        await links.Cluster("ray://local", greedy).__aenter__()
    assert ray.is_on
    await both[1].__aexit__()
    assert not ray.is_on


def nice_of_lanes() -> set[int]:
    """Return by how much the threads of lanes are nicer than this one."""
    own, lane = os.getpriority(os.PRIO_PROCESS, 0), "asyncnn-lane"
    lanes = {t.native_id or 0 for t in threading.enumerate() if t.name == lane}
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().startswith(lane):  # a native one
            lanes.add(int(task.name))
    return {os.getpriority(os.PRIO_PROCESS, number) - own for number in lanes}


@pytest.mark.parametrize("name", ["reference", "accelerated"])
async def test_lanes_have_the_nice_value_that_is_asked_for(name: str) -> None:
    settings = asyncnn.devices.DeviceSettings(lane_nice=1, inline_below_us=0)
    async with asyncnn.open_device(name, settings=settings) as device:
        prepared = await device.prepare(addition(300_000))
        x = np.ones(300_000, np.float32)
        for _ in range(3):
            await prepared.run([x, x])
        assert nice_of_lanes() == {1}


async def test_the_loop_of_an_actor_comes_before_what_computes() -> None:
    async with fake_device() as (device, cluster):
        prepared = await device.prepare(counting_up())
        running = asyncio.ensure_future(prepared.run([FOREVER], loop_timeout=600))
        await until(lambda: begun(cluster) and nice_of_lanes())
        assert nice_of_lanes() == {4}
        await cancelled(running)


async def test_replicas_come_while_runs_wait_and_go_where_they_are_not_needed() -> None:
    asked = {"most_replicas": 3, "grow_after": 0.1, "shrink_after": 0.2}
    async with fake_device(**asked) as (device, cluster):
        hal: Any = device.hal
        prepared = await device.prepare(counting_up())
        running = [
            asyncio.ensure_future(prepared.run([FOREVER], loop_timeout=600))
            for _ in range(9)
        ]
        replicas = hal.dispatcher.replicas
        await until(lambda: begun(cluster) == len(running))
        assert len(replicas) == 3
        for each in running:
            await cancelled(each)
        await until(lambda: len(replicas) == 1)
        await until(lambda: sum(actor.is_gone for actor in cluster.actors) == 2)
        assert (await prepared.run([AT_ONCE], timeout=20))[0] == 0
    assert len(cluster.actors) == 3


async def test_a_replica_that_has_not_come_is_given_up_where_it_is_not_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = {"most_replicas": 2, "grow_after": 0.1, "shrink_after": 0.2}
    make = FakeCluster.actor

    def late(cluster: FakeCluster, device: str) -> FakeActor:
        actor = make(cluster, device)
        if len(cluster.actors) > 1:
            gate(actor, "open")
        return actor

    monkeypatch.setattr(FakeCluster, "actor", late)
    async with fake_device(**asked) as (device, cluster):
        prepared = await device.prepare(counting_up())
        running = [
            asyncio.ensure_future(prepared.run([FOREVER], loop_timeout=600))
            for _ in range(9)
        ]
        await until(lambda: len(cluster.actors) == 2)
        for each in running:
            await cancelled(each)
        await until(lambda: cluster.actors[1].is_gone)
        assert (await prepared.run([AT_ONCE], timeout=20))[0] == 0
    assert len(cluster.actors) == 2


async def test_a_device_has_time_to_open_connecting_included(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", FakeRay())  # type: ignore[arg-type]
    settings = ClusterSettings(open_timeout=0.001)
    with pytest.raises(asyncnn.NoDriverError, match=r"not started within 0.001 s"):
        async with asyncnn.open_device("ray://local", replicas=settings):
            pass


@pytest.mark.parametrize(
    "given",
    [
        {"hang_after": 0},
        {"grow_after": 0},
        {"replicas": 3, "most_replicas": 2},
        {"dispatch": DispatchSettings(ahead_ns=-1)},
        {"dispatch": DispatchSettings(patience_ns=-1)},
    ],
)
def test_times_that_make_no_sense_are_refused(given: Any) -> None:
    with pytest.raises(asyncnn.InvalidArgumentError):
        ClusterSettings(**given)
