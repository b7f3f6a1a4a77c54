"""Clients that abuse fences; `service` serves an honest one after each."""

import os

import pytest

from asyncnn.fences import SyncFence
from asyncnn.hal.errors import DeviceUnavailableError
from asyncnn.hal.types import ErrorStatus
from asyncnn.service import wire
from tests.networks import addition
from tests.service.conftest import LIMITS, Connect
from tests.service.raw import RawClient, execute
from tests.service.test_hostile import ready

SUM = addition(4).model
SPANS = ((0, 0, 16), (0, 16, 16), (0, 32, 16))


def fenced(number: int, *wait_for: int, seen: int = 0) -> wire.ExecuteFenced:
    order = execute(number, 1, *SPANS, pools=(2,))
    return wire.ExecuteFenced(order, wait_for, None, seen)


async def ends(client: RawClient, count: int) -> dict[int, wire.FencedEnd]:
    """Return the next ends, by the number of their execution."""
    found: dict[int, wire.FencedEnd] = {}
    while len(found) < count:
        answer = await client.receive()
        assert isinstance(answer, wire.FencedDone)
        found |= {end.execution: end for end in answer.ends}
    return found


async def test_an_honest_one_is_told_of_every_end(attach: Connect) -> None:
    client = await ready(attach())
    gate, source = SyncFence.pair()
    client.send(fenced(10, 0), [gate.fileno()])
    client.send(fenced(11, 10))
    source.signal()
    told = await ends(client, 2)
    assert {end.status for end in told.values()} == {ErrorStatus.NONE}
    assert told[10].at_ns <= told[11].at_ns


@pytest.mark.parametrize("wait_for", [(99,), (10,), (0,), (-1,)])
async def test_fences_that_nobody_knows(
    attach: Connect, wait_for: tuple[int, ...]
) -> None:
    client = await ready(attach())
    client.send(fenced(10, *wait_for))
    assert (await ends(client, 1))[10].status == ErrorStatus.INVALID_ARGUMENT


async def test_fences_of_executions_that_were_refused(attach: Connect) -> None:
    client = await ready(attach())
    client.send(fenced(10, 99))
    client.send(fenced(11, 10))
    told = await ends(client, 2)
    assert told[11].status == ErrorStatus.GENERAL_FAILURE
    assert "99" in told[11].reason


async def test_more_descriptors_than_fences(attach: Connect) -> None:
    client = await ready(attach())
    gate, _source = SyncFence.pair()
    client.send(fenced(10), [gate.fileno()] * 2)
    assert (await ends(client, 1))[10].status == ErrorStatus.NONE


@pytest.mark.parametrize(
    "messages",
    [
        (fenced(10), fenced(10)),
        (fenced(10, seen=1),),
        (wire.ExportFence(10),),
        (fenced(10), wire.ExportFence(10)),
        (wire.Several((wire.Hello(1),)),),  # type: ignore[arg-type]
        (wire.Several((None,)),),  # type: ignore[arg-type]
    ],
    ids=[
        "a number twice",
        "ends seen that never were",
        "an export of nothing",
        "an export to nowhere",
        "something else in a bundle",
        "garbage in a bundle",
    ],
)
async def test_breaking_the_protocol(
    attach: Connect, messages: tuple[wire.ToDriver, ...]
) -> None:
    client = await ready(attach())
    for message in messages:
        client.send(message)
    assert await client.is_hung_up_on()


async def test_more_foreign_fences_than_a_client_may_have(attach: Connect) -> None:
    client = await ready(attach())
    gate, source = SyncFence.pair()
    each = LIMITS.max_fds_per_message
    fitting = LIMITS.max_fence_fds // each
    for number in range(fitting + 1):
        client.send(fenced(10 + number, *[0] * each), [gate.fileno()] * each)
    last = 10 + fitting
    refused = await ends(client, 1)
    assert refused[last].status == ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
    source.signal()
    assert len(await ends(client, fitting)) == fitting
    client.send(fenced(99, 0), [gate.fileno()])
    assert (await ends(client, 1))[99].status == ErrorStatus.NONE


async def test_more_executions_than_a_client_may_have(attach: Connect) -> None:
    client = await ready(attach())
    gate, _source = SyncFence.pair()
    client.send(fenced(10, 0), [gate.fileno()])
    for number in range(LIMITS.max_fenced_executions):
        client.send(fenced(11 + number, 10))
    ((refused, end),) = (await ends(client, 1)).items()
    assert refused == 10 + LIMITS.max_fenced_executions
    assert end.status == ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT


class TestExports:
    async def test_to_what_is_no_pipe(self, attach: Connect) -> None:
        client = await ready(attach())
        gate, source = SyncFence.pair()
        client.send(fenced(10, 0), [gate.fileno()])
        fd = os.eventfd(0)
        client.send(wire.ExportFence(10), [fd])
        os.close(fd)
        source.signal()
        assert (await ends(client, 1))[10].status == ErrorStatus.NONE

    async def test_to_a_pipe_that_takes_no_more(self, attach: Connect) -> None:
        client = await ready(attach())
        gate, source = SyncFence.pair()
        client.send(fenced(10, 0), [gate.fileno()])
        reader, writer = os.pipe2(os.O_NONBLOCK)
        os.write(writer, bytes(1 << 20))
        os.set_blocking(writer, True)
        client.send(wire.ExportFence(10), [writer])
        source.signal()
        assert (await ends(client, 1))[10].status == ErrorStatus.NONE
        os.close(reader)
        os.close(writer)

    async def test_after_the_end(self, attach: Connect) -> None:
        client = await ready(attach())
        client.send(fenced(10))
        await ends(client, 1)
        reader, writer = os.pipe()
        client.send(wire.ExportFence(10), [writer])
        os.close(writer)
        exported = SyncFence.from_fd(reader)
        os.close(reader)
        await exported.wait(20)

    async def test_twice(self, attach: Connect) -> None:
        client = await ready(attach())
        gate, _source = SyncFence.pair()
        client.send(fenced(10, 0), [gate.fileno()])
        reader, writer = os.pipe()
        for _ in range(2):
            client.send(wire.ExportFence(10), [writer])
        assert await client.is_hung_up_on()
        os.close(reader)
        os.close(writer)


async def test_leaving_with_everything_under_way(attach: Connect) -> None:
    client = await ready(attach())
    gate, _source = SyncFence.pair()
    for number in range(10, 20):
        client.send(fenced(number, 0), [gate.fileno()])
    reader, writer = os.pipe()
    client.send(wire.ExportFence(19), [writer])
    os.close(writer)
    exported = SyncFence.from_fd(reader)
    os.close(reader)
    client.close()
    with pytest.raises(DeviceUnavailableError):
        await exported.wait(20)
