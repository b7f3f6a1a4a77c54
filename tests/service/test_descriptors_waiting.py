"""Descriptors that wait in a driver, to be looked at or to be taken, are counted."""

import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from asyncnn.devices import ReferenceDevice
from asyncnn.hal.types import ErrorStatus
from asyncnn.service import Server, ServiceLimits, wire
from asyncnn.service.channel import MAX_PACKET_BYTES, Channel
from asyncnn.service.decoding import ReceivedFile
from asyncnn.service.driver import session
from asyncnn.service.wire import CacheInfo
from tests.devices.cache.client import TOKEN
from tests.networks import chain
from tests.service.raw import RawClient, ping
from tests.waits import until

MOST = 60
LIMITS = ServiceLimits(max_descriptors=MOST)
EXHAUSTED = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    path = tmp_path / "driver.sock"
    async with ReferenceDevice() as device, Server(device, path, limits=LIMITS) as one:
        yield one


@pytest.fixture
async def clients(server: Server, tmp_path: Path) -> AsyncIterator[list[RawClient]]:
    path = tmp_path / "driver.sock"
    clients = [await RawClient.connect(path).greet() for _ in range(20)]
    yield clients
    for client in clients:
        client.close()
    await until(lambda: not server.connections)


@pytest.fixture
def file() -> Iterator[int]:
    fd = os.memfd_create("unsealed")
    os.truncate(fd, 64)
    yield fd
    os.close(fd)


async def test_those_of_large_messages_that_wait_for_their_turn(
    clients: list[RawClient], file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, released = session.decode_to_driver, threading.Event()

    def decode_late(*arguments: object) -> object:
        if isinstance(arguments[0], ReceivedFile):
            released.wait(10)
        return decode(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(session, "decode_to_driver", decode_late)
    info, model = CacheInfo(10, 10, TOKEN), chain(1000, 1).model
    data = wire.encode(wire.PrepareModel(1, model, (), 1, 1, None, info))
    before = open_descriptors()
    for client in clients:
        client.send_file(data, fds=[file] * 20)
    # The last message of each has been taken from its socket, or else nobody answers.
    await until(lambda: open_descriptors() - before >= len(clients))
    held = open_descriptors() - before
    released.set()
    answers = [await client.receive() for client in clients]
    assert held <= MOST
    refused = [a for a in answers if isinstance(a, wire.Prepared) and a.status]
    assert {answer.status for answer in refused} == {EXHAUSTED}
    assert all("ServiceLimits.max_descriptors" in a.reason for a in refused)


async def test_those_that_several_connections_bring_at_the_same_time(
    clients: list[RawClient], file: int
) -> None:
    infos = tuple([wire.PoolInfo(n, "ashmem", 64, (), 1) for n in range(1, 17)])
    before = open_descriptors()
    for client in clients:
        client.send(wire.AnnouncePools(infos), [file] * 16)
    for client in clients:
        client.send(wire.GetStatistics(1))
    for client in clients:
        assert isinstance(await client.receive(), wire.Statistics)
    assert open_descriptors() - before <= MOST


async def test_those_of_answers_that_a_client_does_not_take(
    clients: list[RawClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = 0

    async def answer_at_length(*_: object) -> tuple[ErrorStatus, tuple[bool, ...]]:
        nonlocal answered
        answered += 1
        return ErrorStatus.NONE, (True,) * MAX_PACKET_BYTES

    monkeypatch.setattr(
        ReferenceDevice, "get_supported_operations_1_3", answer_at_length
    )
    client = clients[0]
    before, asked = open_descriptors(), 2 * MOST
    with monkeypatch.context() as full:
        full.setattr(Channel, "_send_now", lambda *_: False)
        for call in range(asked):
            client.send(ping(call))
            await until(lambda: answered == call + 1)  # noqa: B023
            assert open_descriptors() - before <= MOST
    answers = [await client.receive() for _ in range(asked)]
    statuses = {a.status for a in answers if isinstance(a, wire.SupportedOperations)}
    assert statuses == {ErrorStatus.NONE, EXHAUSTED}
    client.send(ping(asked))
    late = await client.receive()
    assert isinstance(late, wire.SupportedOperations)
    assert late.status == ErrorStatus.NONE
