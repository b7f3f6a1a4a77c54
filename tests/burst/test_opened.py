"""Opening the bursts of a device."""

import os
from collections.abc import Iterator

import pytest

from asyncnn.burst import OpenBursts
from asyncnn.burst.packets import DATUM_BYTES
from asyncnn.burst.server import MAX_QUEUE_LENGTH, MIN_QUEUE_LENGTH
from asyncnn.fmq import MessageQueue
from asyncnn.hal.types import ErrorStatus, Handle
from tests.burst.ends import KnownPools, ScriptedModel

REFUSED = (ErrorStatus.INVALID_ARGUMENT, None)


@pytest.fixture
def bursts() -> Iterator[OpenBursts]:
    bursts = OpenBursts(2)
    yield bursts
    bursts.close()
    assert len(bursts) == 0


@pytest.fixture
def callback() -> KnownPools:
    return KnownPools({})


@pytest.fixture
def channel() -> Iterator[Handle]:
    with MessageQueue.create(DATUM_BYTES, 16) as queue:
        yield queue.descriptor


async def test_a_burst_is_counted_until_it_is_closed(
    bursts: OpenBursts, scripted: ScriptedModel, callback: KnownPools, channel: Handle
) -> None:
    status, context = bursts.configure(scripted, callback, channel, channel)
    assert status is ErrorStatus.NONE
    assert len(bursts) == 1
    context.close()
    assert len(bursts) == 0


async def test_a_null_callback_is_an_invalid_argument(
    bursts: OpenBursts, scripted: ScriptedModel, channel: Handle
) -> None:
    assert bursts.configure(scripted, None, channel, channel) == REFUSED


async def test_bursts_are_limited(
    bursts: OpenBursts, scripted: ScriptedModel, callback: KnownPools, channel: Handle
) -> None:
    contexts = [
        bursts.configure(scripted, callback, channel, channel)[1] for _ in range(2)
    ]
    status, context = bursts.configure(scripted, callback, channel, channel)
    assert (status, context) == (ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT, None)
    contexts[0].close()
    status, _ = bursts.configure(scripted, callback, channel, channel)
    assert status is ErrorStatus.NONE


async def test_closing_ends_all_bursts_and_refuses_more(
    bursts: OpenBursts, scripted: ScriptedModel, callback: KnownPools, channel: Handle
) -> None:
    deaths: list[int] = []
    for number in range(2):
        _, context = bursts.configure(scripted, callback, channel, channel)
        context.link_to_death(lambda number=number: deaths.append(number))
    bursts.close()
    assert sorted(deaths) == [0, 1]
    status, context = bursts.configure(scripted, callback, channel, channel)
    assert (status, context) == (ErrorStatus.DEVICE_UNAVAILABLE, None)


@pytest.mark.parametrize(
    ("quantum", "count"),
    [
        (DATUM_BYTES, MIN_QUEUE_LENGTH - 1),
        (DATUM_BYTES, MAX_QUEUE_LENGTH + 1),
        (DATUM_BYTES - 8, 1024),
        (1, 1024 * DATUM_BYTES),
    ],
)
@pytest.mark.parametrize("is_result", [False, True])
async def test_a_queue_of_other_sizes_is_an_invalid_argument(
    bursts: OpenBursts,
    scripted: ScriptedModel,
    callback: KnownPools,
    channel: Handle,
    quantum: int,
    count: int,
    is_result: bool,
) -> None:
    with MessageQueue.create(quantum, count) as queue:
        channels = (channel, queue.descriptor)
        if not is_result:
            channels = channels[::-1]
        assert bursts.configure(scripted, callback, *channels) == REFUSED


@pytest.mark.parametrize("is_result", [False, True])
async def test_a_handle_of_something_else_is_an_invalid_argument(
    bursts: OpenBursts,
    scripted: ScriptedModel,
    callback: KnownPools,
    channel: Handle,
    is_result: bool,
) -> None:
    fd = os.memfd_create("no queue")
    others = (
        Handle(),
        Handle((fd,), (DATUM_BYTES, 16)),
        Handle((fd, *channel.fds[1:]), channel.ints),
        Handle(channel.fds, (DATUM_BYTES,)),
    )
    for other in others:
        channels = (channel, other) if is_result else (other, channel)
        assert bursts.configure(scripted, callback, *channels) == REFUSED
    os.close(fd)


async def test_the_descriptors_stay_the_callers(
    bursts: OpenBursts, scripted: ScriptedModel, callback: KnownPools, channel: Handle
) -> None:
    _, context = bursts.configure(scripted, callback, channel, channel)
    context.close()
    for fd in channel.fds:
        os.fstat(fd)
