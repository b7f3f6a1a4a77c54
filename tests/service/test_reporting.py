"""What the operator of a driver reads of its clients, with client and limit."""

import logging
import os
from collections.abc import Callable

import pytest

from asyncnn.devices import ReferenceDevice
from asyncnn.hal.types import BufferRole, DataLocation, ErrorStatus, RequestArgument
from asyncnn.logs import KindLimit
from asyncnn.service import wire
from asyncnn.service.driver import reporting
from asyncnn.service.wire import CacheInfo
from tests.networks import addition, chain
from tests.service.conftest import LIMITS, Connect, Service
from tests.service.raw import RawClient
from tests.waits import until

ME = f"pid {os.getpid()}"
ROLE = BufferRole(0, 0, 1.0)
EXHAUSTED = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT


@pytest.fixture(autouse=True)
def nothing_was_told_lately(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reporting.log, "_limit", KindLimit())
    caplog.set_level(logging.WARNING, "asyncnn")


def argument(offset: int) -> RequestArgument:
    return RequestArgument(location=DataLocation(0, offset, 16))


async def too_many_models(client: RawClient) -> None:
    for number in range(2, LIMITS.max_prepared_models + 2):
        answer = await client.prepare(number, chain(1, 4).model)
    assert answer.status == EXHAUSTED


async def too_many_buffers(client: RawClient) -> None:
    for number in range(2, LIMITS.max_buffers + 3):
        client.send(wire.Allocate(number, (), (1,), (ROLE,), ()))
        answer = await client.receive()
    assert isinstance(answer, wire.Allocated)
    assert answer.status == EXHAUSTED


async def too_many_executions(client: RawClient) -> None:
    # Executions on a file are copied on a thread, so that all of them are pending.
    fd = os.memfd_create("unsealed")
    os.ftruncate(fd, 4096)
    client.announce_fd(7, fd, 4096)
    os.close(fd)
    arguments = (argument(0),), (argument(64),)
    numbers = range(100, 100 + 2 * LIMITS.max_executions)
    for number in numbers:
        message = wire.Execute(number, 1, *arguments, (7,), 0, None, None)
        client.send(message)
    answers = [await client.receive() for _ in numbers]
    assert EXHAUSTED in {
        answer.status for answer in answers if isinstance(answer, wire.Executed)
    }


@pytest.mark.parametrize(
    ("exceed", "setting"),
    [
        (too_many_models, "ServiceLimits.max_prepared_models"),
        (too_many_buffers, "ServiceLimits.max_buffers"),
        (too_many_executions, "ServiceLimits.max_executions"),
    ],
)
async def test_a_limit_is_named_once_with_the_client(
    attach: Connect,
    exceed: Callable[[RawClient], object],
    setting: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(2):
        client = await attach().greet()
        await client.prepare(1, chain(1, 4).model)
        await exceed(client)
        client.close()
    # Each place that refuses is a kind of its own.
    messages = caplog.messages
    assert 0 < len(messages) == len(set(messages)) < 3
    for record in caplog.records:
        assert record.levelno == logging.WARNING
        assert f"a call of {ME} is refused: " in record.message
        assert setting in record.message
        assert record.fields["setting"] == setting


async def test_who_breaks_the_protocol_is_told_from_who_leaves(
    attach: Connect, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    (await attach().greet()).close()
    await service.all_have_gone()
    assert not caplog.records
    for _ in range(3):
        client = await attach().greet()
        client.send(b"nonsense")
        assert await client.is_hung_up_on()
    (record,) = caplog.records
    assert record.message.startswith(f"{ME} is hung up on: not a message to a driver")


async def test_an_exception_in_a_session_is_told_with_its_place(
    attach: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("of a driver")

    monkeypatch.setattr(ReferenceDevice, "prepare_model_1_3", fail)
    client = await attach().greet()
    for number in range(3):
        answer = await client.prepare(number, chain(1, 4).model)
        assert answer.status == ErrorStatus.GENERAL_FAILURE
    monkeypatch.undo()
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.message == f"a call of {ME} failed"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ZeroDivisionError)


async def test_a_full_disk_of_caches_is_logged(
    attach: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    client = await attach().greet()
    full = os.open("/dev/full", os.O_RDWR)
    cache = CacheInfo(1, 1, bytes(32))
    model = addition(4).model
    client.send(wire.PrepareModel(1, model, (), 1, 1, None, cache), [full, full])
    answer = await client.receive()
    os.close(full)
    assert isinstance(answer, wire.Prepared)
    assert answer.status == ErrorStatus.NONE
    await until(lambda: caplog.records)
    (record,) = caplog.records
    assert f"a model of {ME} is not kept in its cache: " in record.message
