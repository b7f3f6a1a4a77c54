"""A client that breaks its bursts harms no other, and does not fill the log."""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from asyncnn.burst import OpenBursts
from asyncnn.burst.packets import DATUM_BYTES
from asyncnn.fmq import MessageQueue
from asyncnn.fmq.layout import READER_SLEEPS, WRITER_SLEEPS, WRITTEN
from asyncnn.hal.interfaces import IBurstContext
from asyncnn.hal.types import ErrorStatus, Handle, MeasureTiming
from tests.burst.ends import ADDITION, Ends, KnownPools, ScriptedModel, addition_pools
from tests.fmq.test_hostile_doorbells import SOCKETS, unconnected
from tests.fmq.words import add_to_word, words_of

PACKET = ADDITION.encode((4, 9), MeasureTiming.NO)


class Driver:
    """The bursts of a device, and queues that a client may have made up."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.bursts = OpenBursts(8)
        self.model = ScriptedModel()
        self._stack = stack
        inputs, outputs = addition_pools()
        self.callback = KnownPools({4: inputs, 9: outputs})

    def queue(self) -> MessageQueue:
        return self._stack.enter_context(MessageQueue.create(DATUM_BYTES, 64))

    def open(self, bell: socket.socket | None = None) -> Ends:
        """Open a burst whose client gives ``bell`` for both bells to ring."""
        requests, results = self.queue(), self.queue()
        handles = [
            queue.descriptor if bell is None else with_bell(queue.descriptor, bell)
            for queue in (requests, results)
        ]
        status, context = self.bursts.configure(self.model, self.callback, *handles)
        assert status is ErrorStatus.NONE
        assert context is not None
        self._stack.callback(context.close)
        for server in self.bursts._servers:  # as if they were in another process
            for end in (server._requests, server._results):
                end._wake_peer = end._peer_doorbell.ring
        return Ends(requests, results, context)


def with_bell(handle: Handle, bell: socket.socket) -> Handle:
    return Handle((*handle.fds[:2], bell.fileno()), handle.ints)


@pytest.fixture
async def driver() -> AsyncIterator[Driver]:
    async with AsyncExitStack() as stack:
        driver = Driver(stack)
        yield driver
        driver.bursts.close()


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], int]:
    """How many lines were logged so far, of any level."""
    caplog.set_level(logging.DEBUG, "asyncnn")
    return lambda: len(caplog.records)


def death_of(context: IBurstContext) -> asyncio.Event:
    died = asyncio.Event()
    context.link_to_death(died.set)
    return died


@pytest.mark.parametrize("make", SOCKETS)
async def test_a_bell_that_is_none_fails_no_request_and_no_other_burst(
    driver: Driver, make: Callable[[AsyncExitStack], socket.socket], lines: Callable
) -> None:
    async with AsyncExitStack() as stack:
        hostile, honest = driver.open(make(stack)), driver.open()
        with words_of(hostile.results) as words, words_of(hostile.requests) as others:
            for _ in range(20):
                others[WRITER_SLEEPS] = words[READER_SLEEPS] = 1
                assert (await hostile(PACKET)).status is ErrorStatus.NONE
                assert (await honest(PACKET)).status is ErrorStatus.NONE
    assert lines() == 0


async def test_packets_without_sense_are_a_line(
    driver: Driver, lines: Callable[[], int]
) -> None:
    ends = driver.open()
    for number in range(200):
        status = (await ends(os.urandom(DATUM_BYTES))).status
        assert status is not ErrorStatus.NONE, number
    assert lines() == 1


async def test_bursts_that_are_broken_are_a_line(
    driver: Driver, lines: Callable[[], int]
) -> None:
    honest = driver.open()
    for _ in range(50):
        ends = driver.open()
        died = death_of(ends.context)
        ends.requests.write_nowait(bytes(DATUM_BYTES))
        add_to_word(ends.requests, WRITTEN, 2**40)
        await asyncio.wait_for(died.wait(), 20)
    assert (await honest(PACKET)).status is ErrorStatus.NONE
    assert lines() <= 2


async def test_bursts_that_are_refused_are_a_line(
    driver: Driver, lines: Callable[[], int]
) -> None:
    queue = driver.queue()
    for _ in range(50):
        status, _ = driver.bursts.configure(
            driver.model, driver.callback, Handle(), queue.descriptor
        )
        assert status is ErrorStatus.INVALID_ARGUMENT
    assert lines() == 1


async def test_models_and_callbacks_that_raise_are_a_line_each(
    driver: Driver, lines: Callable[[], int]
) -> None:
    driver.model.outcome = (1, 2)  # type: ignore[assignment]
    ends = driver.open()
    for _ in range(50):
        assert (await ends(PACKET)).status is ErrorStatus.GENERAL_FAILURE
    driver.callback.pools = None  # type: ignore[assignment]
    ends = driver.open()
    for _ in range(50):
        assert (await ends(PACKET)).status is ErrorStatus.GENERAL_FAILURE
    assert lines() == 3  # that the packets are refused is one more


async def test_a_burst_whose_queue_cannot_be_listened_to_dies_alone(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, lines: Callable[[], int]
) -> None:
    ends, honest = driver.open(), driver.open()
    died = death_of(ends.context)
    server = ends.context
    file = os.memfd_create("no bell")
    monkeypatch.setattr(server._requests._doorbell, "fileno", lambda: file)
    await asyncio.wait_for(died.wait(), 20)
    os.close(file)
    assert server._requests.is_closed
    assert server._results.is_closed
    assert len(driver.bursts) == 1
    assert (await honest(PACKET)).status is ErrorStatus.NONE
    assert lines() == 1


async def test_a_burst_that_cannot_wait_for_room_dies(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_data: bytes) -> None:
        raise OSError("no more descriptors")

    ends = driver.open()
    died = death_of(ends.context)
    monkeypatch.setattr(ends.context._results, "write_nowait", lambda _: False)
    monkeypatch.setattr(ends.context._results, "write", fail)
    ends.requests.write_nowait(PACKET)
    await asyncio.wait_for(died.wait(), 20)
    assert len(driver.bursts) == 0


async def test_a_burst_is_gone_whatever_its_execution_raises_when_it_is_killed(
    driver: Driver,
) -> None:
    driver.model.outcome = None
    ends = driver.open()
    died = death_of(ends.context)
    ends.requests.write_nowait(PACKET)
    await driver.model.launched()
    driver.model.callback.link_to_death(lambda: [].pop())
    with pytest.raises(IndexError):
        ends.context.die()
    assert died.is_set()
    assert len(driver.bursts) == 0
    assert ends.context._requests.is_closed


async def test_a_closed_device_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    bursts = OpenBursts(1)
    bursts.close()
    with MessageQueue.create(DATUM_BYTES, 16) as queue:
        refused = bursts.configure(
            ScriptedModel(), KnownPools({}), queue.descriptor, Handle()
        )
    assert refused == (ErrorStatus.DEVICE_UNAVAILABLE, None)
    assert "the device is closed" in caplog.text


async def test_a_bell_that_is_none_can_be_given_for_many_bursts(
    driver: Driver, lines: Callable[[], int]
) -> None:
    async with AsyncExitStack() as stack:
        bell = unconnected(stack)
        for _ in range(30):
            ends = driver.open(bell)
            with words_of(ends.results) as words:
                words[READER_SLEEPS] = 1
                assert (await ends(PACKET)).status is ErrorStatus.NONE
            ends.context.close()
    assert lines() == 0
