"""Requests that are sent once and executed many times."""

import asyncio
import gc
import os
import socket
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest

from asyncnn.callbacks import ExecutionFuture
from asyncnn.hal.types import ErrorStatus, MeasureTiming, Memory, Request
from asyncnn.memory.pools import as_array
from asyncnn.memory.shared import allocate
from asyncnn.service import wire
from asyncnn.service.client.connection import Connection
from asyncnn.service.client.remote_model import RemotePreparedModel
from tests.networks import addition
from tests.service.conftest import LIMITS, Connect
from tests.service.fake_driver import FakeDriver, executed, welcome
from tests.service.raw import RawClient, execute

SUM = addition(4).model
X = np.array([1, 2, 3, 4], np.float32)
IN_ONE_POOL = ((0, 0, 16), (0, 16, 16), (0, 32, 16))
TOO_SHORT = ((0, 0, 16), (0, 16, 12), (0, 32, 16))
NONE = ErrorStatus.NONE


async def ready(client: RawClient) -> RawClient:
    await client.greet()
    await client.prepare(1, SUM)
    return client


def bind(
    number: int, *places: tuple[int, int, int], pool: int = 2, model: int = 1
) -> wire.BindRequest:
    whole = execute(0, model, *(places or IN_ONE_POOL), pools=(pool,))
    return wire.BindRequest(number, model, whole.inputs, whole.outputs, whole.pools)


async def run(client: RawClient, bound: int, execution: int = 1) -> wire.Executed:
    client.send(wire.ExecuteBound(execution, bound, 0, None, None))
    answer = await client.receive()
    assert isinstance(answer, wire.Executed)
    assert answer.execution == execution
    return answer


class TestTheDriver:
    async def test_executes_what_lies_in_the_pools_each_time(
        self, attach: Connect
    ) -> None:
        client = await ready(attach())
        pool = allocate(48)
        client.announce(2, pool)
        client.send(bind(5))
        values = as_array(pool, np.float32, (3, 4))
        for factor in range(4):
            values[:2] = X * factor
            assert (await run(client, 5)).status == NONE
            np.testing.assert_array_equal(values[2], 2 * factor * X)

    async def test_copies_a_file_that_can_shrink_each_time(
        self, attach: Connect
    ) -> None:
        client = await ready(attach())
        fd = os.memfd_create("unsealed")
        os.truncate(fd, 48)
        client.announce_fd(2, fd, 48)
        client.send(bind(5))
        for factor in range(3):
            os.pwrite(fd, (X * factor).tobytes() * 2, 0)
            assert (await run(client, 5)).status == NONE
            assert os.pread(fd, 16, 32) == (2 * factor * X).tobytes()
        os.close(fd)

    async def test_knows_no_others(self, attach: Connect) -> None:
        client = await ready(attach())
        answer = await run(client, 5)
        assert answer.status == ErrorStatus.INVALID_ARGUMENT
        assert answer.reason == "no request 5 is bound"

    @pytest.mark.parametrize("gone", [wire.ForgetPools((2,)), "model"])
    async def test_forgets_it_with_its_pool_and_its_model(
        self, attach: Connect, gone: wire.ToDriver
    ) -> None:
        client = await ready(attach())
        client.announce(2, allocate(48))
        client.announce(3, allocate(48))
        await client.prepare(7, SUM)
        client.send(bind(5))
        client.send(bind(6, pool=3, model=7))
        client.send(wire.ReleasePreparedModel(1) if gone == "model" else gone)
        assert (await run(client, 5)).reason == "no request 5 is bound"
        assert (await run(client, 6)).status == NONE

    @pytest.mark.parametrize(
        ("request_", "reason"),
        [
            (bind(5, pool=9), "there is no pool 9"),
            (bind(5, model=9), "no prepared model 9"),
            (bind(5, *TOO_SHORT), "length is 12 bytes"),
        ],
    )
    async def test_says_of_each_execution_what_is_wrong(
        self, attach: Connect, request_: wire.BindRequest, reason: str
    ) -> None:
        client = await ready(attach())
        client.announce(2, allocate(48))
        client.send(request_)
        for _ in range(2):
            answer = await run(client, 5)
            assert answer.status == ErrorStatus.INVALID_ARGUMENT
            assert reason in answer.reason

    async def test_hangs_up_on_a_number_that_is_in_use(self, attach: Connect) -> None:
        client = await ready(attach())
        client.send(bind(5))
        client.send(bind(5))
        assert await client.is_hung_up_on()

    async def test_hangs_up_on_one_who_binds_more_than_it_was_told(
        self, attach: Connect
    ) -> None:
        client = await ready(attach())
        for number in range(2 * LIMITS.max_bound_requests):
            client.send(bind(number))
            await asyncio.sleep(0)
        assert (await run(client, 0)).reason == "there is no pool 2"
        client.send(bind(number + 1))
        assert await client.is_hung_up_on()

    async def test_hangs_up_on_a_request_without_end(self, attach: Connect) -> None:
        client = await ready(attach())
        client.send(bind(5, *(IN_ONE_POOL * 1000)))
        assert await client.is_hung_up_on()

    @pytest.mark.parametrize(
        "message", [bind(5), wire.ExecuteBound(1, 5, 0, None, None)]
    )
    async def test_wants_a_greeting_first(
        self, attach: Connect, message: wire.ToDriver
    ) -> None:
        client = attach()
        client.send(message)
        assert await client.is_hung_up_on()


class Ends:
    """A prepared model, and a driver that says that all is well."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection = Connection(ours)
        self.driver = FakeDriver(theirs)
        self.model = RemotePreparedModel(self.connection, 1, SUM)

    async def greet(self) -> None:
        greeting = asyncio.ensure_future(self.connection.greet())
        await self.driver.receive()
        self.driver.send(welcome())
        await greeting

    async def execute(self, request: Request) -> list[wire.ToDriver]:
        """Execute; return what the driver was sent for it."""
        callback = ExecutionFuture()
        self.model.execute_1_3(request, MeasureTiming.NO, None, None, callback)
        messages: list[wire.ToDriver] = []
        while not isinstance(
            last := await self.next(), wire.Execute | wire.ExecuteBound
        ):
            messages.append(last)
        self.driver.send(executed(last.execution))
        assert (await callback).status is NONE
        return [*messages, last]

    async def next(self) -> wire.ToDriver:
        return await self.driver.receive()


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    ends = Ends()
    await ends.greet()
    yield ends
    ends.connection.close()
    ends.driver.die()


WHOLE = execute(0, 1, *IN_ONE_POOL, pools=())


def request(pool: Memory) -> Request:
    return Request(WHOLE.inputs, WHOLE.outputs, (pool,))


def plain() -> Memory:
    return Memory("ashmem", 48, buffer=memoryview(bytearray(48)))


class TestTheClient:
    @pytest.mark.parametrize("pool", [lambda: allocate(48), plain])
    async def test_sends_a_request_that_comes_again_only_once(
        self, ends: Ends, pool: Callable[[], Memory]
    ) -> None:
        memory = pool()
        sent = [await ends.execute(request(memory)) for _ in range(4)]
        assert [[type(message) for message in messages] for messages in sent] == [
            [wire.AnnouncePools, wire.Execute],
            [wire.BindRequest, wire.ExecuteBound],
            [wire.ExecuteBound],
            [wire.ExecuteBound],
        ]
        first, (binding, *_) = sent[0][-1], sent[1]
        assert isinstance(first, wire.Execute)
        assert isinstance(binding, wire.BindRequest)
        for name in ("prepared", "inputs", "outputs", "pools"):
            assert getattr(binding, name) == getattr(first, name)
        assert {messages[-1].bound for messages in sent[1:]} == {binding.bound}  # type: ignore[union-attr]

    async def test_binds_no_more_than_the_driver_takes(self, ends: Ends) -> None:
        requests = [request(allocate(48)) for _ in range(3)]
        for _ in range(2):
            sent = [await ends.execute(one) for one in requests]
        assert [type(messages[-1]) for messages in sent] == [
            wire.ExecuteBound,
            wire.ExecuteBound,
            wire.Execute,
        ]

    async def test_binds_no_request_without_end(
        self, ends: Ends, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(wire, "MAX_BOUND_BYTES", 64)
        mine = request(allocate(48))
        for _ in range(3):
            assert type((await ends.execute(mine))[-1]) is wire.Execute

    async def test_holds_no_pool_that_is_bound(self, ends: Ends) -> None:
        mine = request(allocate(48))
        for _ in range(3):
            await ends.execute(mine)
        del mine
        gc.collect()
        assert ends.connection.known.requests == 0
        assert type(await ends.next()) is wire.ForgetPools

    async def test_still_refuses_arguments_that_are_wrong(self, ends: Ends) -> None:
        mine = request(allocate(48))
        for _ in range(3):
            await ends.execute(mine)
        short, callback = request(allocate(8)), ExecutionFuture()
        status = ends.model.execute_1_3(short, MeasureTiming.NO, None, None, callback)
        assert status is ErrorStatus.INVALID_ARGUMENT
        assert (await callback).status is status
        callback = ExecutionFuture()
        status = ends.model.execute_1_3(mine, 7, None, None, callback)  # type: ignore[arg-type]
        assert status is ErrorStatus.INVALID_ARGUMENT

    async def test_says_when_a_bound_request_is_due(self, ends: Ends) -> None:
        mine = request(allocate(48))
        for _ in range(2):
            await ends.execute(mine)
        callback = ExecutionFuture()
        ends.model.execute_1_3(mine, MeasureTiming.YES, 2**62, 10**9, callback)
        message = await ends.next()
        assert isinstance(message, wire.ExecuteBound)
        assert (message.measure, message.deadline, message.loop_timeout) == (
            1,
            2**62,
            10**9,
        )
        callback.die()
        assert await ends.next() == wire.CancelExecution(message.execution)
