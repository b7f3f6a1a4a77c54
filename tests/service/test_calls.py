"""Calls from a driver to its client, over a socket within one process."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from asyncnn.callbacks import IBurstCallback
from asyncnn.devices import ReferenceDevice
from asyncnn.hal.errors import DeviceUnavailableError, ResourceExhaustedTransientError
from asyncnn.hal.types import BufferToken, ErrorStatus, Handle, Memory
from asyncnn.memory.limits import MappingPolicy
from asyncnn.memory.mapping import Mapper
from asyncnn.memory.pools import from_buffer
from asyncnn.memory.shared import allocate
from asyncnn.qos import Client
from asyncnn.service import ServiceLimits, UserLimits, wire
from asyncnn.service.client.connection import Connection
from asyncnn.service.driver.bursts import CallsToClient, RemoteBurstCallback
from asyncnn.service.driver.quotas import DriverResources, UserQuotas
from asyncnn.service.driver.session import ClientSession, ServedClient
from asyncnn.service.process import Peer
from tests.service.raw import RawClient, ping
from tests.waits import cancelled, until

Answer = tuple[ErrorStatus, tuple[Memory, ...]]
NONE = ErrorStatus.NONE
GONE = ErrorStatus.DEVICE_UNAVAILABLE


class Slots(IBurstCallback):
    """Answers with ``memories``, or does what ``instead`` does."""

    def __init__(
        self, *memories: Memory, instead: Callable[[], object] | None = None
    ) -> None:
        self.asked: list[Sequence[int]] = []
        self._memories = memories
        self._instead = instead

    async def get_memories(self, slots: Sequence[int]) -> Answer:
        self.asked.append(slots)
        if self._instead is not None:
            self._instead()
            await asyncio.Event().wait()
        return NONE, self._memories


class Driver:
    """The driver's end of a connection."""

    def __init__(self, device: ReferenceDevice) -> None:
        self.client, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ended = False
        limits = ServiceLimits()
        self.session = ClientSession(
            device,
            theirs,
            limits,
            Mapper(MappingPolicy()),
            self._end,
            ServedClient(
                Client("remote"),
                UserQuotas(os.getuid(), UserLimits(), limits),
                DriverResources(limits).of_process(1, Peer(1, os.getuid())),
            ),
        )

    def _end(self, _: ClientSession) -> None:
        self.ended = True

    def ask(self, burst: int, *slots: int) -> asyncio.Task[Answer]:
        callback = self.session.burst_callback(burst)
        return asyncio.ensure_future(callback.get_memories(slots))


@pytest.fixture
async def driver() -> AsyncIterator[Driver]:
    async with ReferenceDevice() as device:
        driver = Driver(device)
        yield driver
        driver.session.close()


@pytest.fixture
async def connection(driver: Driver) -> AsyncIterator[Connection]:
    connection = Connection(driver.client)
    await connection.greet()
    yield connection
    connection.close()


@pytest.fixture
async def raw(driver: Driver) -> AsyncIterator[RawClient]:
    client = await RawClient(driver.client).greet()
    yield client
    client.close()


class TestAHonestClient:
    async def test_shares_the_memory_of_slots(
        self, driver: Driver, connection: Connection
    ) -> None:
        x, y = allocate(8), allocate(16)
        callback = Slots(x, y, x)
        number = connection.bursts.serve(callback)
        status, memories = await driver.ask(number, 3, 2**31 - 1, 3)
        assert status is NONE
        assert callback.asked == [(3, 2**31 - 1, 3)]
        assert memories[1].size == 16
        assert memories[0] is memories[2]
        assert x.buffer is not None
        x.buffer[0] = 7
        assert memories[0].buffer is not None
        assert memories[0].buffer[0] == 7

    async def test_is_asked_many_things_at_once(
        self, driver: Driver, connection: Connection
    ) -> None:
        sizes = range(1, 9)
        numbers = [connection.bursts.serve(Slots(allocate(size))) for size in sizes]
        answers = await asyncio.gather(*(driver.ask(n, 0) for n in numbers))
        assert [memories[0].size for _, memories in answers] == list(sizes)

    async def test_says_what_went_wrong(
        self, driver: Driver, connection: Connection
    ) -> None:
        def fail(error: Exception) -> Slots:
            def raising() -> None:
                raise error

            return Slots(instead=raising)

        number = connection.bursts.serve(
            fail(ResourceExhaustedTransientError("not now"))
        )
        status = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
        assert await driver.ask(number, 0) == (status, ())
        number = connection.bursts.serve(fail(ZeroDivisionError()))
        assert await driver.ask(number, 0) == (ErrorStatus.GENERAL_FAILURE, ())

    async def test_has_no_memory_that_cannot_travel(
        self, driver: Driver, connection: Connection
    ) -> None:
        closed = Memory("ashmem", 8, Handle((10**6,)))
        for bad in (closed, from_buffer(bytearray(8)), BufferToken(1)):
            number = connection.bursts.serve(Slots(bad))  # type: ignore[arg-type]
            status, memories = await driver.ask(number, 0)
            assert status is not NONE
            assert memories == ()

    async def test_knows_no_burst_that_was_forgotten(
        self, driver: Driver, connection: Connection
    ) -> None:
        number = connection.bursts.serve(Slots(allocate(8)))
        connection.bursts.forget(number)
        assert await driver.ask(number, 0) == (ErrorStatus.INVALID_ARGUMENT, ())

    async def test_stops_answering_when_it_hangs_up(
        self, driver: Driver, connection: Connection
    ) -> None:
        callback = Slots(instead=lambda: None)
        asked = driver.ask(connection.bursts.serve(callback), 0)
        await until(lambda: callback.asked)
        connection.close()
        assert await asked == (GONE, ())
        await until(lambda: driver.ended)
        assert len(asyncio.all_tasks()) == 1
        assert await driver.ask(1, 0) == (GONE, ())


class TestAHostileClient:
    @pytest.mark.parametrize(
        ("status", "pools", "told"),
        [
            (3, (), ErrorStatus.OUTPUT_INSUFFICIENT_SIZE),
            (3, (2, 2), ErrorStatus.OUTPUT_INSUFFICIENT_SIZE),
            (77, (2, 2), ErrorStatus.GENERAL_FAILURE),
            (-1, (2, 2), ErrorStatus.GENERAL_FAILURE),
            (0, (2,), ErrorStatus.INVALID_ARGUMENT),
            (0, (2, 2, 2), ErrorStatus.INVALID_ARGUMENT),
            (0, (2, 9), ErrorStatus.INVALID_ARGUMENT),
            (0, (2, 3), ErrorStatus.INVALID_ARGUMENT),
            (0, (2, 4), ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT),
            (0, (2, 2), NONE),
        ],
    )
    async def test_fails_its_own_call_only(
        self,
        driver: Driver,
        raw: RawClient,
        status: int,
        pools: tuple[int, ...],
        told: ErrorStatus,
    ) -> None:
        raw.announce(2, allocate(8))
        unsealed = os.memfd_create("unsealed")
        os.truncate(unsealed, 8)
        raw.announce_fd(3, unsealed, 8)
        os.close(unsealed)
        raw.announce(4, allocate(MappingPolicy().max_pool_bytes + 1))
        asked, other = driver.ask(1, 5, 6), driver.ask(2, 7)
        questions = [await raw.receive(), await raw.receive()]
        assert questions == [
            wire.GetMemories(1, 1, (5, 6)),
            wire.GetMemories(2, 2, (7,)),
        ]
        raw.send(wire.Memories(1, status, pools))
        answer = await asked
        assert answer[0] is told
        assert len(answer[1]) == (2 if told is NONE else 0)
        raw.send(wire.Memories(2, 0, (2,)))
        assert (await other)[0] is NONE

    async def test_is_not_listened_to_when_it_was_not_asked(
        self, driver: Driver, raw: RawClient
    ) -> None:
        asked = driver.ask(1, 5)
        await raw.receive()
        for call in (0, 2, 2**63):
            raw.send(wire.Memories(call, 0, ()))
        raw.send(wire.Memories(1, 4, ()))
        raw.send(wire.Memories(1, 0, ()))
        assert (await asked)[0] is ErrorStatus.INVALID_ARGUMENT
        raw.send(wire.Memories(1, 0, ()))
        raw.send(ping(3))
        assert isinstance(await raw.receive(), wire.SupportedOperations)


class TestASilentClient:
    async def test_is_not_waited_for_for_ever(self) -> None:
        sent: list[object] = []
        calls = CallsToClient(sent.append, answer_timeout=0.01)
        callback = RemoteBurstCallback(calls, None, 7, bool)  # type: ignore[arg-type]
        assert await callback.get_memories((1,)) == (GONE, ())
        assert sent == [wire.GetMemories(1, 7, (1,))]
        calls.answered(wire.Memories(1, 0, ()))  # too late

    async def test_is_forgotten_by_one_who_is_cancelled(self) -> None:
        calls = CallsToClient(lambda _: None)
        asked = asyncio.ensure_future(
            calls.ask(lambda call: wire.GetMemories(call, 1, ()))
        )
        await asyncio.sleep(0)
        await cancelled(asked)
        calls.answered(wire.Memories(1, 0, ()))

    async def test_fails_what_waits_when_it_goes_and_what_comes_later(self) -> None:
        calls = CallsToClient(lambda _: None)
        asked = asyncio.ensure_future(
            calls.ask(lambda call: wire.GetMemories(call, 1, ()))
        )
        await asyncio.sleep(0)
        calls.close()
        with pytest.raises(DeviceUnavailableError, match="has gone"):
            await asked
        with pytest.raises(DeviceUnavailableError, match="has gone"):
            await calls.ask(lambda call: wire.GetMemories(call, 1, ()))
