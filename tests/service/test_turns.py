"""How the connections of one process share what is one process's."""

import asyncio
import time

import pytest

from asyncnn.service import ServiceLimits
from asyncnn.service.driver import turns as turns_module
from asyncnn.service.driver.quotas import DriverResources
from asyncnn.service.driver.turns import DecodingTurns, Readers, ReadingTurns
from asyncnn.service.process import Peer
from tests.waits import until


class Flood:
    """A connection on which there is always more to be read, or one of its bursts."""

    def __init__(self, turns: ReadingTurns, *, is_burst: bool = False) -> None:
        self.turns = turns
        self.take = turns.take_for_burst if is_burst else turns.take
        self.read = 0
        self.may_go_on = True
        if not is_burst:
            turns.opened()

    def readable(self) -> None:
        if self.take(self.proceed):
            self.read += 1

    def proceed(self) -> bool:
        if self.may_go_on:
            self.read += 1
        return self.may_go_on


@pytest.mark.parametrize("are_bursts", [False, True], ids=["connections", "bursts"])
async def test_a_flood_is_read_in_small_portions(are_bursts: bool) -> None:
    driver = Readers()
    floods = [Flood(ReadingTurns(driver))]
    turns = floods[0].turns
    floods += [Flood(turns, is_burst=are_bursts) for _ in range(199)]
    if are_bursts:  # the connection waits behind them
        floods.append(floods.pop(0))
    ReadingTurns(driver).opened()  # somebody else's
    for flood in floods:
        flood.readable()
    assert sum(flood.read for flood in floods) <= 8
    async with asyncio.timeout(20):
        while not all(flood.read for flood in floods):
            before = sum(flood.read for flood in floods)
            await asyncio.sleep(0)
            assert sum(flood.read for flood in floods) - before <= 8
    assert {flood.read for flood in floods} == {1}  # in order: nobody twice


BURDEN_S = 0.002
BURDENS = 40


class Burden(Flood):
    """Each of its packets keeps the loop busy, at once or by a task that it begins."""

    def __init__(
        self, turns: ReadingTurns, *, by_task: bool, is_burst: bool = False
    ) -> None:
        super().__init__(turns, is_burst=is_burst)
        self.by_task = by_task
        self.began: list[float] = []
        self.is_over = asyncio.Event()

    def readable(self) -> None:
        if self.take(self.proceed):
            self.handle()

    def proceed(self) -> bool:
        self.handle()
        return True

    def handle(self) -> None:
        if self.by_task:
            asyncio.get_running_loop().call_soon(self.compute)
        else:
            self.compute()
        self.readable()  # there always is another packet

    def compute(self) -> None:
        self.began.append(time.monotonic())
        if len(self.began) == BURDENS:
            self.is_over.set()
        until = time.thread_time() + BURDEN_S
        while time.thread_time() < until:
            pass


@pytest.mark.parametrize("by_task", [False, True], ids=["at once", "by a task"])
@pytest.mark.parametrize("is_burst", [False, True], ids=["connections", "a burst"])
async def test_a_flood_leaves_most_of_the_loop_to_others(
    by_task: bool, is_burst: bool
) -> None:
    driver = Readers()
    flood = Burden(ReadingTurns(driver), by_task=by_task, is_burst=is_burst)
    flood.turns.opened()
    ReadingTurns(driver).opened()  # somebody else's
    flood.readable()
    async with asyncio.timeout(20):
        await flood.is_over.wait()
    took = flood.began[-1] - flood.began[0]
    assert took >= 3 * BURDENS * BURDEN_S


async def test_what_others_do_on_the_loop_keeps_no_process_waiting_for_long() -> None:
    driver = Readers()
    floods = [Flood(ReadingTurns(driver))]
    floods += [Flood(floods[0].turns) for _ in range(19)]
    ReadingTurns(driver).opened()  # somebody else's
    for flood in floods:
        flood.readable()
    ends = time.thread_time() + 1
    while time.thread_time() < ends:  # somebody else's, in the same turn of the loop
        pass
    began = time.monotonic()
    await until(lambda: all(flood.read for flood in floods))
    assert time.monotonic() - began < 2  # and not 4


async def test_a_process_with_one_connection_is_read_whenever_it_is_readable() -> None:
    driver = Readers()
    single, other = Flood(ReadingTurns(driver)), Flood(ReadingTurns(driver))
    for _ in range(1000):
        single.readable()
        other.readable()
    assert single.read == other.read == 1000


async def test_a_process_with_one_connection_after_the_other_is_read_in_turns() -> None:
    driver = DriverResources(ServiceLimits())
    for client in range(10):  # of which nothing is left
        former = driver.of_process(client, Peer(4711, 0)).reading
        former.opened()
        former.closed()
        del former
    flood = Flood(driver.of_process(10, Peer(4711, 0)).reading)
    unseen = [Flood(driver.of_process(n, Peer(0, 0)).reading) for n in (11, 12)]
    for _ in range(1000):
        for each in (flood, *unseen):
            each.readable()
    assert flood.read <= 8
    assert [each.read for each in unseen] == [1000, 1000]


async def test_connections_that_have_ended_take_nobodys_turn() -> None:
    turns = ReadingTurns(Readers())
    floods = [Flood(turns) for _ in range(40)]
    for flood in floods:
        flood.readable()
    for flood in floods[:-1]:
        flood.may_go_on = False
    await until(lambda: floods[-1].read)


async def test_processes_learn_of_the_connections_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns_module, "_MEMORY_S", 0.0)
    driver = Readers()
    for connections in (1, 2):
        turns = ReadingTurns(driver)
        for _ in range(connections):
            turns.opened()
    assert driver.connections == 3
    for left in (2, 1):
        turns.closed()
        await until(lambda left=left: driver.connections == left)


async def test_packets_that_take_no_time_are_read_until_there_are_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns_module, "_SLICE_S", 100.0)
    turns = ReadingTurns(Readers())
    floods = [Flood(turns) for _ in range(40)]
    for flood in floods:
        flood.readable()
    assert [flood.read for flood in floods] == [1] * 8 + [0] * 32


async def test_processes_decode_in_turns_and_each_one_message_at_a_time() -> None:
    slots = asyncio.Semaphore(2)
    greedy, modest = DecodingTurns(slots), DecodingTurns(slots)
    order: list[str] = []
    release = asyncio.Event()

    async def decode(turns: DecodingTurns, name: str) -> None:
        async with turns():
            order.append(name)
            await release.wait()

    tasks = [asyncio.create_task(decode(greedy, "greedy")) for _ in range(5)]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(decode(modest, "modest")))
    await asyncio.sleep(0.01)
    assert order == ["greedy", "modest"]
    release.set()
    await asyncio.gather(*tasks)
    assert len(order) == 6
