"""Remote prepared models: what an execution does to the caller's memory."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from asyncnn.callbacks import ExecutionFuture, ExecutionResult
from asyncnn.hal.types import (
    DataLocation,
    ErrorStatus,
    MeasureTiming,
    Memory,
    Request,
    RequestArgument,
)
from asyncnn.memory.pools import from_buffer
from asyncnn.memory.shared import allocate
from asyncnn.service import wire
from asyncnn.service.client.connection import Connection
from asyncnn.service.client.remote_model import RemotePreparedModel
from tests.networks import addition
from tests.service.fake_driver import FakeDriver, executed

LENGTH = 4
BYTES = 4 * LENGTH
ARGUMENTS = tuple(
    RequestArgument(location=DataLocation(index, 0, BYTES)) for index in range(3)
)


class Ends:
    """A prepared model, and the driver that executes it by hand."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection = Connection(ours)
        self.driver = FakeDriver(theirs)
        self.model = RemotePreparedModel(self.connection, 1, addition(LENGTH).model)

    def launch(self, *pools: Memory) -> tuple[ErrorStatus, ExecutionFuture]:
        callback = ExecutionFuture()
        request = Request(ARGUMENTS[:2], ARGUMENTS[2:], pools)
        status = self.model.execute_1_3(request, MeasureTiming.NO, None, None, callback)
        return status, callback

    async def received(self, kind: type[wire.ToDriver]) -> wire.ToDriver:
        while not isinstance(message := await self.driver.receive(), kind):
            pass
        return message


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    ends = Ends()
    yield ends
    ends.connection.close()
    ends.driver.die()


def private() -> tuple[Memory, ...]:
    return tuple(from_buffer(bytearray(BYTES)) for _ in range(3))


async def finish(
    ends: Ends, callback: ExecutionFuture, status: int = 0
) -> ExecutionResult:
    message = await ends.received(wire.Execute)
    assert isinstance(message, wire.Execute)
    ends.driver.send(executed(message.execution, status, "because"))
    return await callback


@pytest.mark.parametrize("status", [ErrorStatus.NONE, ErrorStatus.GENERAL_FAILURE])
async def test_outputs_are_copied_back_only_if_all_went_well(
    ends: Ends, status: ErrorStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    slabs: list[Memory] = []

    def written(size: int) -> Memory:
        slab = allocate(size)
        assert slab.buffer is not None
        slab.buffer[:] = b"\7" * size
        slabs.append(slab)
        return slab

    monkeypatch.setattr("asyncnn.service.client.staging.allocate_in_slab", written)
    x, y, z = private()
    launched, callback = ends.launch(x, y, z)
    assert launched is ErrorStatus.NONE
    result = await finish(ends, callback, status)
    assert result.status is status
    assert bytes(z.buffer or b"") == (b"\7", b"\0")[status != 0] * BYTES
    assert len(slabs) == 1


async def test_a_reason_reaches_the_caller(ends: Ends) -> None:
    _, callback = ends.launch(*private())
    result = await finish(ends, callback, ErrorStatus.GENERAL_FAILURE)
    assert result.reason == "because"


async def test_shared_pools_are_sent_as_they_are(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncnn.service.client.staging.allocate_in_slab", None)
    pools = tuple(allocate(BYTES) for _ in range(3))
    _, callback = ends.launch(*pools)
    announced = await ends.received(wire.AnnouncePools)
    assert isinstance(announced, wire.AnnouncePools)
    assert [info.size for info in announced.pools] == [BYTES]
    assert (await finish(ends, callback)).status is ErrorStatus.NONE


async def test_giving_up_tells_the_driver_which_execution(ends: Ends) -> None:
    _, callback = ends.launch(*private())
    message = await ends.received(wire.Execute)
    assert isinstance(message, wire.Execute)
    waiting = asyncio.ensure_future(_result(callback))
    await asyncio.sleep(0)
    waiting.cancel()
    cancelled = await ends.received(wire.CancelExecution)
    assert cancelled == wire.CancelExecution(message.execution)


async def test_memory_of_one_given_up_is_not_lent_before_the_driver_is_done(
    ends: Ends,
) -> None:
    _, first = ends.launch(*private())
    message = await ends.received(wire.Execute)
    first.die()
    _, second = ends.launch(*private())
    later = await ends.received(wire.Execute)
    assert isinstance(message, wire.Execute)
    assert isinstance(later, wire.Execute)
    places = [m.outputs[0].location.offset for m in (message, later)]
    assert later.pools != message.pools or places[0] != places[1]
    second.die()


async def test_a_malformed_request_fails_at_once_and_sends_nothing(ends: Ends) -> None:
    launched, callback = ends.launch(*private()[:2])
    assert launched is ErrorStatus.INVALID_ARGUMENT
    assert (await callback).status is ErrorStatus.INVALID_ARGUMENT
    with pytest.raises(BlockingIOError):
        ends.driver.end.recv(1)


async def test_without_a_callback_nothing_is_launched(ends: Ends) -> None:
    request = Request(ARGUMENTS[:2], ARGUMENTS[2:], private())
    status = ends.model.execute_1_3(request, MeasureTiming.NO, None, None, None)
    assert status is ErrorStatus.INVALID_ARGUMENT


async def _result(callback: ExecutionFuture) -> ExecutionResult:
    return await callback
