"""Whose a connection is, and what all connections of one user may have together."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from asyncnn import Device, PreparedModel
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.fences import SyncFence
from asyncnn.hal.errors import (
    AsyncnnError,
    InvalidArgumentError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.types import ErrorStatus
from asyncnn.memory.limits import Accounting, CommonBytes, MappingPolicy
from asyncnn.memory.shared import allocate
from asyncnn.runtime.opening_devices import connect
from asyncnn.service import Server, ServiceLimits, UserLimits, wire
from asyncnn.service.driver.quotas import Clients, Quota, started_at
from asyncnn.service.process import Peer
from tests.networks import addition, chain
from tests.qos.recorded import Recorded
from tests.service.raw import RawClient, execute
from tests.waits import until

OTHER_UID = 4711
MODEL = chain(2, 8)
TRANSIENT = ResourceExhaustedTransientError
X = np.zeros(8, np.float32)

T = TypeVar("T")


def clients(weights: Mapping[int, float] | None = None) -> Clients:
    return Clients(ServiceLimits(), UserLimits(), weights or {})


class TestProcesses:
    def test_are_told_by_when_they_started(self) -> None:
        assert started_at(os.getpid()) == started_at(os.getpid()) > 0
        assert started_at(2**22 + 1) == 0

    def test_may_be_called_anything(self, tmp_path: Path) -> None:
        program = tmp_path / "a) 1 (b"
        program.symlink_to("/bin/sleep")
        with subprocess.Popen([program, "60"]) as process:
            try:
                assert started_at(process.pid) >= started_at(os.getpid())
            finally:
                process.kill()

    def test_are_one_client_each(self, monkeypatch: pytest.MonkeyPatch) -> None:
        known, peer = clients(), Peer(os.getpid(), os.geteuid())
        client = known.client_of(peer)
        assert known.client_of(peer) is client
        assert known.client_of(Peer(1, peer.uid)) is not client
        monkeypatch.setattr("asyncnn.service.driver.quotas.started_at", lambda _: 1)
        assert known.client_of(peer) is not client

    def test_that_cannot_be_told_apart_are_taken_for_different_ones(self) -> None:
        known, unseen = clients(), Peer(0, OTHER_UID)
        assert known.client_of(unseen) is not known.client_of(unseen)

    def test_are_forgotten_when_they_have_gone(self) -> None:
        known, peer = clients(), Peer(os.getpid(), OTHER_UID)
        number = known.client_of(peer).number
        gc.collect()
        assert known.client_of(peer).number != number


class TestUsers:
    def test_have_all_clients_of_a_uid(self) -> None:
        known = clients()
        one, other = (known.client_of(Peer(pid, OTHER_UID)) for pid in (1, 2))
        assert one.user is other.user
        assert one.user is not known.client_of(Peer(3, OTHER_UID + 1)).user

    def test_have_weights(self) -> None:
        known = clients({OTHER_UID: 3.0, os.geteuid(): 2.0})
        assert known.client_of(Peer(1, OTHER_UID)).user.weight == 3.0
        assert known.client_of(Peer(1, os.geteuid())).user.weight == 2.0
        assert known.client_of(Peer(1, OTHER_UID + 1)).user.weight == 1.0

    @pytest.mark.parametrize("weight", [0.0, -1.0, float("inf"), float("nan")])
    def test_need_positive_weights(self, weight: float) -> None:
        with pytest.raises(InvalidArgumentError, match="weight"):
            clients({OTHER_UID: weight})


def test_a_quota_counts_what_lies_in_tables_that_exist() -> None:
    quota = Quota("things", "uid 7", 3, most_each=2, limit="max_things")
    one, other = quota.table(), quota.table()
    one.update({1: "a", 2: "b"})
    quota.check(one, more=0)
    quota.check(other, more=0)
    with pytest.raises(
        ResourceExhaustedTransientError, match=r"ServiceLimits\.max_things"
    ):
        quota.check(one)
    other[1] = "c"
    quota.check(other, more=0)
    with pytest.raises(
        ResourceExhaustedTransientError,
        match=r"things of uid 7.*UserLimits\.max_things",
    ):
        quota.check(other)
    del one[2]
    quota.check(one)
    one[2] = "b"
    del one
    gc.collect()
    quota.check(other)


def calls_of(function: Callable[[], object]) -> int:
    """Return how many functions are called, in Python and in C."""
    kinds: list[str] = []
    sys.setprofile(lambda frame, kind, argument: kinds.append(kind))
    try:
        function()
    finally:
        sys.setprofile(None)
    return sum(kind in ("call", "c_call") for kind in kinds)


@pytest.mark.parametrize("connections", [2, 200])
def test_to_check_a_quota_takes_as_long_for_any_number_of_connections(
    connections: int,
) -> None:
    quota = Quota("things", "uid 7", 1000, most_each=5, limit="max_things")
    tables = [quota.table() for _ in range(connections)]
    for table in tables:
        table[1] = "a"
        quota.check(table)
    assert calls_of(lambda: quota.check(tables[0])) < 20

    common = CommonBytes(2**20, "bytes of user 7", "UserLimits.max_bytes")
    parts = [Accounting(MappingPolicy(), common) for _ in range(connections)]
    copies = [np.zeros(100, np.uint8) for _ in parts]
    for part, copy in zip(parts, copies, strict=True):
        part.add_copy(copy)
    assert common.has_room(2**20 - 100 * connections)
    assert not common.has_room(2**20 - 100 * connections + 1)
    assert calls_of(lambda: common.has_room(1)) < 20
    copies.clear()
    del copy
    assert common.has_room(2**20)


@pytest.fixture
async def hal() -> AsyncIterator[ReferenceDevice]:
    async with ReferenceDevice(DeviceSettings(inline_below_us=0)) as device:
        yield device


@asynccontextmanager
async def two_processes(
    hal: ReferenceDevice, folder: Path, limits: UserLimits
) -> AsyncIterator[tuple[Device, Device]]:
    """Yield two devices of one driver, in what it takes for two processes."""
    path = folder / "driver.sock"
    async with (
        Server(hal, path, user_limits=limits),
        connect(path) as one,
        connect(path) as other,
    ):
        yield one, other


async def when_there_is_room(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call until it is not refused."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await call()
            except ResourceExhaustedTransientError:
                await asyncio.sleep(0.001)


async def run_by_burst(prepared: PreparedModel) -> None:
    async with prepared.burst() as burst:
        await burst.run([X])


@pytest.mark.usefixtures("as_processes")
class TestAProcessThatTakesAllOfItsUsersQuota:
    """Leaves nothing to the other ones until it gives something back."""

    async def test_of_models(self, hal: ReferenceDevice, tmp_path: Path) -> None:
        limits = UserLimits(max_prepared_models=3)
        async with two_processes(hal, tmp_path, limits) as (one, other):
            kept = [await one.prepare(MODEL) for _ in range(3)]
            with pytest.raises(TRANSIENT, match=r"UserLimits\.max_prepared_models"):
                await other.prepare(MODEL)
            kept.pop()
            await when_there_is_room(lambda: other.prepare(MODEL))

    async def test_of_buffers(self, hal: ReferenceDevice, tmp_path: Path) -> None:
        limits = UserLimits(max_buffers=3)
        async with two_processes(hal, tmp_path, limits) as (one, other):
            mine, theirs = await one.prepare(MODEL), await other.prepare(MODEL)
            kept = [await one.buffer_for(mine.input()) for _ in range(3)]
            with pytest.raises(TRANSIENT):
                await other.buffer_for(theirs.input())
            kept.pop()
            await when_there_is_room(lambda: other.buffer_for(theirs.input()))

    async def test_of_bursts(self, hal: ReferenceDevice, tmp_path: Path) -> None:
        limits = UserLimits(max_bursts=1)
        async with two_processes(hal, tmp_path, limits) as (one, other):
            mine, theirs = await one.prepare(MODEL), await other.prepare(MODEL)
            async with mine.burst():
                with pytest.raises(TRANSIENT):
                    await run_by_burst(theirs)
            await when_there_is_room(lambda: run_by_burst(theirs))

    async def test_of_executions(self, hal: ReferenceDevice, tmp_path: Path) -> None:
        limits = UserLimits(max_executions=3)
        async with two_processes(hal, tmp_path, limits) as (one, other):
            mine, theirs = await one.prepare(MODEL), await other.prepare(MODEL)
            gate = threading.Event()
            first = Recorded([], gate=gate)
            hal._parts().executions.submit(first)
            await until(first.started.is_set)
            running = [asyncio.create_task(mine.run([X])) for _ in range(3)]
            await until(lambda: hal.statistics().executions.queued == 3)
            with pytest.raises(TRANSIENT, match=r"UserLimits\.max_executions"):
                await theirs.run([X])
            gate.set()
            await asyncio.gather(*running)
            await theirs.run([X])

    async def test_of_fenced_executions(
        self, hal: ReferenceDevice, tmp_path: Path
    ) -> None:
        limits = UserLimits(max_fenced_executions=3)
        async with two_processes(hal, tmp_path, limits) as (one, other):
            mine, theirs = await one.prepare(MODEL), await other.prepare(MODEL)
            gate, source = SyncFence.pair()
            fenced = [mine.run_fenced([X], wait_for=[gate]) for _ in range(3)]
            await one.statistics()
            with pytest.raises(
                AsyncnnError, match=r"UserLimits\.max_fenced_executions"
            ):
                await theirs.run_fenced([X])
            source.signal()
            for each in fenced:
                await each


@pytest.fixture
async def raw(
    hal: ReferenceDevice, tmp_path: Path, as_processes: None
) -> AsyncIterator[list[RawClient]]:
    """Two clients of a user that may have four pools, of 64 KiB."""
    path = tmp_path / "driver.sock"
    limits = UserLimits(max_pools=4, max_pool_bytes=2**16)
    async with Server(hal, path, user_limits=limits):
        made = [await RawClient.connect(path).greet() for _ in range(2)]
        for client in made:
            await client.prepare(1, addition(4).model)
        yield made
        for client in made:
            client.close()


async def run(client: RawClient, pool: int) -> wire.Executed:
    places = ((0, 0, 16), (0, 16, 16), (0, 32, 16))
    return await client.execute(execute(1, 1, *places, pools=(pool,)))


async def test_pools_of_a_user_are_counted_together(raw: list[RawClient]) -> None:
    one, other = raw
    for number in range(10, 14):
        one.announce(number, allocate(4096))
    assert (await run(one, 13)).status == ErrorStatus.NONE
    other.announce(10, allocate(4096))
    answer = await run(other, 10)
    assert answer.status == ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
    assert "UserLimits.max_pools" in answer.reason
    one.send(wire.ForgetPools((10, 11)))
    assert (await run(one, 12)).status == ErrorStatus.NONE
    other.announce(11, allocate(4096))
    assert (await run(other, 11)).status == ErrorStatus.NONE


async def test_bytes_of_pools_of_a_user_are_counted_together(
    raw: list[RawClient],
) -> None:
    one, other = raw
    one.announce(10, allocate(3 * 2**14))
    assert (await run(one, 10)).status == ErrorStatus.NONE
    other.announce(10, allocate(2**15))
    answer = await run(other, 10)
    assert answer.status == ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
    assert "UserLimits.max_pool_bytes" in answer.reason
    other.announce(11, allocate(2**17))
    answer = await run(other, 11)
    assert answer.status == ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT
    assert "UserLimits.max_pool_bytes" in answer.reason
    other.announce(12, allocate(2**14))
    assert (await run(other, 12)).status == ErrorStatus.NONE
