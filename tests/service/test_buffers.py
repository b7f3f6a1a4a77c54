"""Device-managed buffers across the process boundary."""

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

import asyncnn
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceUnavailableError,
    GeneralFailureError,
    InvalidArgumentError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.types import BufferRole, BufferToken, ErrorStatus
from asyncnn.memory.shared import allocate
from asyncnn.runtime.device import Device
from asyncnn.service import Server, ServiceLimits, Supervision, wire
from tests.devices.domains import execute as run
from tests.networks import addition, chain
from tests.service.conftest import LIMITS, Connect, Service
from tests.service.raw import RawClient, execute
from tests.waits import cancelled, until

NONE, INVALID = ErrorStatus.NONE, ErrorStatus.INVALID_ARGUMENT
EXHAUSTED = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
ROLE = BufferRole(0, 0, 1.0)
X = np.array([1, 2, 3, 4], np.float32)
POOL = 3
WHOLE = ((POOL, 0, 16),)


class Driver:
    """A device that serves, and its clients."""

    def __init__(self, hal: ReferenceDevice, server: Server, path: Path) -> None:
        self.hal = hal
        self.server = server
        self.path = path

    @property
    def buffer_bytes(self) -> int:
        gc.collect()
        return self.hal.statistics().buffer_bytes


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[Driver]:
    path = tmp_path / "driver.sock"
    settings = DeviceSettings(max_buffer_bytes=2**16)
    async with (
        ReferenceDevice(settings) as hal,
        Server(hal, path, limits=ServiceLimits(max_buffers=5)) as server,
    ):
        yield Driver(hal, server, path)


@pytest.fixture
async def device(driver: Driver) -> AsyncIterator[Device]:
    async with asyncnn.connect(driver.path) as device:
        yield device


async def test_the_driver_frees_what_its_client_lets_go_of(
    driver: Driver, device: Device
) -> None:
    prepared = await device.prepare(chain(1, 256))
    buffers = [await device.buffer_for(prepared.input()) for _ in range(3)]
    assert driver.buffer_bytes == 3 * 1024
    del buffers[1:]
    await until(lambda: driver.buffer_bytes == 1024)


async def test_the_driver_frees_what_a_client_leaves_behind(driver: Driver) -> None:
    async with asyncnn.connect(driver.path) as device:
        prepared = await device.prepare(chain(1, 256))
        buffer = await device.buffer_for(prepared.input())
    await until(lambda: not driver.server.connections and not driver.buffer_bytes)
    with pytest.raises(DeviceUnavailableError):
        await buffer.read()
    with pytest.raises(DeviceUnavailableError):
        await buffer.write(np.zeros(256, np.float32))
    with pytest.raises(DeviceUnavailableError):
        await device.buffer_for(prepared.input())


async def test_a_client_has_as_many_buffers_and_bytes_as_the_limits_say(
    device: Device,
) -> None:
    prepared = await device.prepare(chain(1, 4))
    buffers = [await device.buffer_for(prepared.input()) for _ in range(5)]
    with pytest.raises(ResourceExhaustedTransientError):
        await device.buffer_for(prepared.input())
    del buffers
    large = await device.prepare(chain(1, 2**13))
    first = [await device.buffer_for(large.input()) for _ in range(2)]
    with pytest.raises(GeneralFailureError):
        await device.buffer_for(large.input())
    assert len(first) == 2


@pytest.mark.usefixtures("as_processes")
async def test_bytes_of_others_do_not_count(driver: Driver, device: Device) -> None:
    async with asyncnn.connect(driver.path) as other:
        for one in (device, other):
            large = await one.prepare(chain(1, 2**14))
            buffer = await one.buffer_for(large.input())
            await buffer.write(np.zeros(2**14, np.float32))


async def test_a_token_of_another_client_is_refused(
    driver: Driver, device: Device
) -> None:
    mine = await device.prepare(chain(1, 4))
    buffer = await device.buffer_for(mine.input())
    await buffer.write(X)
    async with asyncnn.connect(driver.path) as other:
        theirs = await other.prepare(chain(1, 4))
        with pytest.raises(InvalidArgumentError):
            await theirs.run([buffer])
        with pytest.raises(InvalidArgumentError):
            await other.buffer_for(mine.input())


async def test_requests_that_come_again_are_bound_and_go_with_their_buffer(
    device: Device,
) -> None:
    prepared = await device.prepare(chain(1, 4))
    connection = device.hal._connection  # type: ignore[attr-defined]
    for _ in range(3):
        buffer = await device.buffer_for(prepared.input())
        await buffer.write(X)
        call = prepared.reusable([buffer])
        for _ in range(4):
            outputs = await call.run_fenced()
        np.testing.assert_array_equal(outputs["z"], X + 1)
        assert connection.known.requests == 1
        del call, buffer
        gc.collect()
        await until(lambda: not connection.known.requests)


async def test_an_allocation_that_nobody_awaits_is_given_back(
    driver: Driver, device: Device
) -> None:
    prepared = await device.prepare(chain(1, 256))
    task = asyncio.create_task(device.buffer_for(prepared.input()))
    await asyncio.sleep(0)
    await cancelled(task)
    await device.buffer_for(prepared.input())  # the driver has got this far
    await until(lambda: not driver.buffer_bytes)


async def test_a_buffer_dies_with_its_driver(tmp_path: Path) -> None:
    path = tmp_path / "driver.sock"
    often = Supervision(first_delay=0.005, max_delay=0.02)
    async with ReferenceDevice() as hal:
        async with Server(hal, path):
            connecting = asyncnn.connect(path, supervised=often)
            device = await connecting.__aenter__()
            prepared = await device.prepare(chain(1, 4))
            buffer = await device.buffer_for(prepared.output(), prepared.input())
            await buffer.write(X)
            outputs = await prepared.run([buffer])
            np.testing.assert_array_equal(outputs["z"], X + 1)
        with pytest.raises(DeviceUnavailableError):
            await buffer.read()
        async with Server(hal, path):
            await prepared.run([X])
            with pytest.raises(AsyncnnError):
                await prepared.run([buffer])
            again = await device.buffer_for(prepared.output(), prepared.input())
            await prepared.run([X], out=[again])
            np.testing.assert_array_equal(await again.read(), X + 1)
            await connecting.__aexit__(None, None, None)


async def ready(client: RawClient) -> RawClient:
    """Prepare a chain as 1, allocate a buffer as 2, announce a pool as 3."""
    await client.greet()
    assert (await client.prepare(1, chain(1, 4).model)).status == NONE
    assert (await allocated(client, 2)).status == NONE
    client.announce(POOL, allocate(16))
    return client


async def allocated(
    client: RawClient, number: int, models: tuple[int, ...] = (1,)
) -> wire.Allocated:
    client.send(wire.Allocate(number, (), models, (ROLE,), (ROLE,)))
    answer = await client.receive()
    assert isinstance(answer, wire.Allocated)
    assert answer.buffer == number
    return answer


async def copied(
    client: RawClient, message: wire.CopyBufferTo | wire.CopyBufferFrom
) -> int:
    client.send(message)
    answer = await client.receive()
    assert isinstance(answer, wire.BufferCopied)
    assert answer.call == message.call
    return answer.status


class TestHostile:
    async def test_numbers_of_another_client(self, attach: Connect) -> None:
        await ready(attach())
        thief = await attach().greet()
        assert (await thief.prepare(1, chain(1, 4).model)).status == NONE
        thief.announce(POOL, allocate(16))
        pools = (2, POOL)
        answer = await thief.execute(execute(9, 1, (0, 0, 0), (1, 0, 16), pools=pools))
        assert answer.status == INVALID
        assert await copied(thief, wire.CopyBufferTo(9, 2, POOL)) == INVALID
        assert await copied(thief, wire.CopyBufferFrom(9, 2, POOL, ())) == INVALID

    async def test_a_buffer_where_a_pool_belongs(self, attach: Connect) -> None:
        client = await ready(attach())
        assert await copied(client, wire.CopyBufferTo(9, 2, 2)) == INVALID
        client.send(wire.GetSupportedOperations(9, chain(1, 1).model, (2,)))
        answer = await client.receive()
        assert isinstance(answer, wire.SupportedOperations)
        assert answer.status == INVALID

    async def test_a_part_of_a_buffer(self, attach: Connect) -> None:
        client = await ready(attach())
        for place in ((0, 0, 16), (0, 4, 0), (0, 2**32 - 1, 2**32 - 1)):
            request = execute(9, 1, place, (1, 0, 16), pools=(2, POOL))
            assert (await client.execute(request)).status == INVALID

    async def test_numbers_given_twice(self, attach: Connect) -> None:
        client = await ready(attach())
        client.send(wire.Allocate(2, (), (1,), (ROLE,), ()))
        assert await client.is_hung_up_on()

    async def test_models_nobody_knows(self, attach: Connect) -> None:
        client = await ready(attach())
        for models in ((), (7,), (1, 7), (2**63,)):
            answer = await allocated(client, 4, models)
            assert (answer.status, answer.token) == (INVALID, 0)

    async def test_roles_and_dimensions_out_of_range(self, attach: Connect) -> None:
        client = await ready(attach())
        for index, dimensions in (
            (2**63, (4,)),
            (-(2**63), (4,)),
            (0, (-1,)),
            (0, (2**63,)),
            (0, (1,) * 1000),
        ):
            roles = (BufferRole(0, index, 1.0),)
            client.send(wire.Allocate(4, dimensions, (1,), roles, ()))
            answer = await client.receive()
            assert isinstance(answer, wire.Allocated)
            assert (answer.status, answer.token) == (INVALID, 0)

    async def test_more_than_a_client_may_have(
        self, service: Service, attach: Connect
    ) -> None:
        client = await ready(attach())
        numbers = range(10, 10 + LIMITS.max_buffers - 1)
        assert {(await allocated(client, n)).status for n in numbers} == {NONE}
        assert (await allocated(client, 5)).status == EXHAUSTED
        client.send(wire.ForgetPools(tuple(numbers)))
        assert (await allocated(client, 5)).status == NONE

    async def test_let_go_of_before_they_are_there(self, attach: Connect) -> None:
        client = await ready(attach())
        client.send(wire.Allocate(4, (), (1,), (ROLE,), ()))
        client.send(wire.ForgetPools((4,)))
        client.send(wire.Allocate(5, (), (1,), (ROLE,), ()))
        while (answer := await client.receive()) is not None:
            assert isinstance(answer, wire.Allocated)
            if answer.buffer == 5:
                break
        assert await copied(client, wire.CopyBufferTo(9, 4, POOL)) == INVALID

    async def test_let_go_of_while_it_is_used(self, attach: Connect) -> None:
        client = await ready(attach())
        assert await copied(client, wire.CopyBufferFrom(8, 2, POOL, ())) == NONE
        request = execute(9, 1, (0, 0, 0), (1, 0, 16), pools=(2, POOL))
        client.send(request)
        client.send(wire.ForgetPools((2,)))
        answer = await client.receive()
        assert isinstance(answer, wire.Executed)
        assert answer.status == NONE

    async def test_copies_by_one_who_leaves(self, attach: Connect) -> None:
        client = await ready(attach())
        for call in range(50):
            client.send(wire.CopyBufferFrom(call, 2, POOL, ()))
        client.close()


async def test_what_is_no_token_is_refused_before_it_is_sent(device: Device) -> None:
    prepared = await device.prepare(addition(4))
    for token in (1, 2**31, 2**32 - 1):
        unknown = BufferToken(token)
        assert await run("async", prepared.hal, [unknown, X], [X.copy()]) is INVALID
