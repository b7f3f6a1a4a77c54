"""Models that are decoded, checked, encoded and sent off the event loop."""

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncnn.callbacks import PreparedModelFuture
from asyncnn.devices import ReferenceDevice
from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceClosedError,
    DriverDiedError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.types import ErrorStatus, Handle, Model
from asyncnn.hal.validate import validate_model
from asyncnn.runtime.opening_devices import connect
from asyncnn.service import RemoteDevice, Server, wire
from asyncnn.service.client import asking as client_preparations
from asyncnn.service.driver import preparations, queries
from tests.networks import chain
from tests.preparing import launch_preparation
from tests.service.conftest import LIMITS, Connect, Service
from tests.service.fake_driver import accept, listening, welcome
from tests.service.raw import RawClient, ping, prepare, sealed
from tests.waits import until

LARGE = chain(1000, 2).model


class Held:
    """Holds up every call of a function that a thread makes."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.may_go = threading.Event()

    def __call__(self, *_: object) -> None:
        self.threads.append(threading.current_thread())
        assert self.may_go.wait(20)


def launch(device: RemoteDevice, model: Model = LARGE) -> PreparedModelFuture:
    callback = PreparedModelFuture()
    status = launch_preparation(device, model, callback)
    assert status is ErrorStatus.NONE
    return callback


@pytest.fixture
def checking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """Holds up the driver where it checks a large model."""
    held = Held()

    def validate(model: Model) -> None:
        held()
        validate_model(model)

    monkeypatch.setattr(preparations, "validate_model", validate)
    monkeypatch.setattr(queries, "validate_model", validate)
    yield held
    held.may_go.set()


@pytest.fixture
def encoding(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """Holds up the client where it encodes a large model."""
    held, encoded = Held(), client_preparations._encoded

    def encode(message: wire.ToDriver) -> object:
        held()
        return encoded(message)

    monkeypatch.setattr(client_preparations, "_encoded", encode)
    yield held
    held.may_go.set()


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Lets no thread be started, until it is undone."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    return monkeypatch


class TestTheDriver:
    async def test_others_and_the_same_client_go_on_while_it_checks(
        self, attach: Connect, checking: Held
    ) -> None:
        first, second = await attach().greet(), await attach().greet()
        first.send(prepare(1, LARGE))
        await until(lambda: checking.threads)
        for client in (second, first):
            client.send(ping(2))
            answer = await client.receive()
            assert isinstance(answer, wire.SupportedOperations)
        assert checking.threads[0] is not threading.main_thread()
        checking.may_go.set()
        assert await first.receive() == wire.Prepared(1, 0, "")

    async def test_what_follows_a_large_message_comes_after_it(
        self, attach: Connect
    ) -> None:
        client = await attach().greet()
        for number in range(1, 4):
            client.send(prepare(number, LARGE))
            client.send(wire.ReleasePreparedModel(number))
        client.send(prepare(3, LARGE))
        client.send(ping(9))
        answers = [await client.receive(), await client.receive()]
        assert wire.Prepared(3, 0, "") in answers

    async def test_a_model_that_is_released_while_it_is_checked_is_not_prepared(
        self, attach: Connect, checking: Held, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> ErrorStatus:
            raise AssertionError("prepared")

        client = await attach().greet()
        client.send(prepare(1, LARGE))
        await until(lambda: checking.threads)
        client.send(wire.ReleasePreparedModel(1))
        client.send(ping(2))
        assert await client.receive() == wire.SupportedOperations(2, 0, (True,))
        monkeypatch.setattr(ReferenceDevice, "prepare_model_1_3", refuse)
        checking.may_go.set()
        await until(lambda: "asyncnn-offload" not in names_of_threads())

    async def test_models_that_are_released_while_they_wait_are_bounded_as_well(
        self, attach: Connect, checking: Held
    ) -> None:
        client = await attach().greet()
        numbers = range(1, LIMITS.max_preparing + 1)
        for number in numbers:
            client.send(prepare(number, LARGE))
        await until(lambda: checking.threads)
        await asyncio.sleep(0.05)  # the others wait for their turn by now
        for number in numbers:
            client.send(wire.ReleasePreparedModel(number))
        client.send(prepare(99, LARGE))
        answer = await client.receive()
        assert isinstance(answer, wire.Prepared)
        assert answer.status == ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
        checking.may_go.set()
        await until(lambda: "asyncnn-offload" not in names_of_threads())
        client.send(prepare(99, LARGE))
        assert await client.receive() == wire.Prepared(99, 0, "")

    @pytest.mark.parametrize("is_asked", [False, True])
    async def test_a_client_that_goes_meanwhile_leaves_nothing(
        self, service: Service, attach: Connect, checking: Held, is_asked: bool
    ) -> None:
        client = await attach().greet()
        question = wire.GetSupportedOperations(1, LARGE, ())
        client.send(question if is_asked else prepare(1, LARGE))
        await until(lambda: checking.threads)
        client.close()
        await service.all_have_gone()
        checking.may_go.set()

    async def test_closing_waits_for_threads_that_work_for_clients_that_have_gone(
        self, tmp_path: Path, checking: Held
    ) -> None:
        path = tmp_path / "driver.sock"
        async with ReferenceDevice() as device, Server(device, path) as server:
            client = await RawClient.connect(path).greet()
            client.send(prepare(1, LARGE))
            await until(lambda: checking.threads)
            client.close()
            await until(lambda: not server.connections)
            closing = asyncio.create_task(server.aclose())
            await asyncio.sleep(0.01)
            assert not closing.done()
            checking.may_go.set()
            await closing

    async def test_a_client_that_goes_while_it_is_decoded_leaves_nothing(
        self, service: Service, attach: Connect
    ) -> None:
        for _ in range(5):
            client = await attach().greet()
            client.send(prepare(1, LARGE))
            client.close()
        await service.all_have_gone()

    async def test_descriptors_beside_a_large_message_are_closed(
        self, attach: Connect
    ) -> None:
        client = await attach().greet()
        reader, writer = os.pipe()
        data = wire.encode(prepare(1, LARGE))
        file = sealed(data)
        packet = b"\1" + len(data).to_bytes(8, "little")
        client.send_packet(packet, [file, writer, writer])
        os.close(file)
        os.close(writer)
        answer = await client.receive()
        assert isinstance(answer, wire.Prepared)
        assert answer.status == ErrorStatus.INVALID_ARGUMENT
        assert os.read(reader, 1) == b""
        os.close(reader)

    @pytest.mark.alone
    async def test_large_messages_make_no_more_than_two_threads_for_a_client(
        self, attach: Connect, checking: Held
    ) -> None:
        client = await attach().greet()
        for number in range(1, 4):
            client.send(prepare(number, LARGE))
            client.send(wire.GetSupportedOperations(number + 10, LARGE, ()))
        client.send(ping(20))
        answer = await client.receive()
        assert isinstance(answer, wire.SupportedOperations)
        assert len(checking.threads) == 1
        assert names_of_threads().count("asyncnn-offload") <= 2
        checking.may_go.set()
        for _ in range(6):
            assert await client.receive()

    async def test_questions_about_large_models_are_bounded(
        self, attach: Connect, checking: Held
    ) -> None:
        client = await attach().greet()
        most = LIMITS.max_preparing
        for number in range(most + 1):
            client.send(wire.GetSupportedOperations(number, LARGE, ()))
        assert await client.receive() == wire.SupportedOperations(
            most, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT, ()
        )
        checking.may_go.set()
        for _ in range(most):
            answer = await client.receive()
            assert isinstance(answer, wire.SupportedOperations)
            assert answer.status == ErrorStatus.NONE

    async def test_without_a_thread_the_call_fails_and_the_connection_goes_on(
        self, attach: Connect, no_threads: pytest.MonkeyPatch
    ) -> None:
        client = await attach().greet()
        client.send(prepare(1, LARGE))
        client.send(wire.GetSupportedOperations(2, LARGE, ()))
        exhausted = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
        answer = await client.receive()
        assert isinstance(answer, wire.Prepared)
        assert answer.status == exhausted
        assert "thread" in answer.reason
        assert await client.receive() == wire.SupportedOperations(2, exhausted, ())
        no_threads.undo()
        assert (await client.prepare(1, LARGE)).status == ErrorStatus.NONE


class TestTheClient:
    async def test_it_goes_on_while_a_model_is_encoded(
        self, service: Service, encoding: Held
    ) -> None:
        async with RemoteDevice(service.path) as device:
            callback = launch(device)
            await until(lambda: encoding.threads)
            assert encoding.threads[0] is not threading.main_thread()
            await device.get_statistics()
            encoding.may_go.set()
            await callback
            status, supported = await device.get_supported_operations_1_3(LARGE)
            assert status is ErrorStatus.NONE
            assert supported == (True,) * 1000

    async def test_what_is_cancelled_before_is_not_sent(self, tmp_path: Path) -> None:
        path = str(tmp_path / "driver.sock")
        with listening(path, 5) as listener:
            entering = asyncio.create_task(RemoteDevice(path).__aenter__())
            driver = await accept(listener)
            await driver.receive()
            driver.send(welcome())
            device = await entering
            callback = launch(device)
            callback.die()
            with pytest.raises(ResourceExhaustedTransientError, match="cancelled"):
                await callback
            asking = asyncio.create_task(device.get_statistics())
            assert type(await driver.receive()) is wire.GetStatistics
            await device.__aexit__(None, None, None)
            with pytest.raises(DeviceClosedError):
                await asking
            driver.die()

    @pytest.mark.parametrize("is_closed", [False, True])
    async def test_it_may_end_meanwhile_and_the_callback_is_told_once(
        self, service: Service, encoding: Held, is_closed: bool
    ) -> None:
        async with RemoteDevice(service.path) as device:
            callback = launch(device)
            await until(lambda: encoding.threads)
            if is_closed:
                closing = asyncio.create_task(device.__aexit__(None, None, None))
            else:
                service.server._sessions.pop().close()
            with pytest.raises(AsyncnnError):
                await callback
            kind = DeviceClosedError if is_closed else DriverDiedError
            assert type(device.cause_of_death()) is kind
            encoding.may_go.set()
            if is_closed:
                await closing
        await until(lambda: "asyncnn-offload" not in names_of_threads())

    async def test_cache_files_may_be_closed_once_the_call_returns(
        self, service: Service, encoding: Held
    ) -> None:
        async with RemoteDevice(service.path) as device:
            _, *counts = device.get_number_of_cache_files_needed()
            fds = [os.memfd_create("cache") for _ in range(sum(counts))]
            handles = [Handle((fd,)) for fd in fds]
            callback = PreparedModelFuture()
            launch_preparation(
                device,
                LARGE,
                callback,
                handles=(handles[: counts[0]], handles[counts[0] :]),
            )
            kept = os.dup(fds[0])
            for fd in fds:
                os.close(fd)
            encoding.may_go.set()
            await callback
            assert os.fstat(kept).st_size
            os.close(kept)

    async def test_without_a_thread_the_call_fails_and_the_connection_goes_on(
        self, service: Service, no_threads: pytest.MonkeyPatch
    ) -> None:
        async with connect(service.path) as device:
            assert isinstance(device.hal, RemoteDevice)
            with pytest.raises(ResourceExhaustedTransientError, match="thread"):
                await launch(device.hal)
            status, _ = await device.hal.get_supported_operations_1_3(LARGE)
            assert status is ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
            no_threads.undo()
            await launch(device.hal)


def names_of_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]
