"""Cache files on their way to a driver, and drivers that do not trust them."""

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import asyncnn
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.devices.prepared import InProcessPreparedModel
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.interfaces import ISavable
from asyncnn.hal.types import DeviceStatus, ErrorStatus, Handle
from asyncnn.memory.descriptors import duplicated
from asyncnn.service import Server, Supervision, wire
from asyncnn.service.client.asking import to_send
from asyncnn.service.driver.pools import ReceivedCache
from asyncnn.service.wire import CacheInfo
from tests.devices.cache.client import TOKEN, CacheClient
from tests.devices.cache.models import dense
from tests.devices.cache.test_cache import check_works
from tests.networks import addition
from tests.service.conftest import LIMITS, Connect
from tests.service.raw import ping
from tests.waits import until

ONE_EACH = CacheInfo(1, 1, TOKEN)


@pytest.fixture
def fds(tmp_path: Path) -> Iterator[list[int]]:
    fds = [
        os.open(tmp_path / name, os.O_RDWR | os.O_CREAT, 0o600)
        for name in ("model", "data")
    ]
    yield fds
    for fd in fds:
        os.close(fd)


class TestSending:
    def test_descriptors_are_those_of_the_model_then_of_the_data(
        self, fds: list[int]
    ) -> None:
        model, data = ((Handle((fd,)),) for fd in fds)
        sent = to_send(model, data, TOKEN, (1, 1))
        assert (sent.info, sent.fds) == (ONE_EACH, tuple(fds))

    def test_a_driver_without_caches_gets_none(self) -> None:
        with pytest.raises(GeneralFailureError):
            to_send((), (), TOKEN, (0, 0))

    def test_duplicates_outlive_the_files_of_the_caller(self, fds: list[int]) -> None:
        model, data = ((Handle((os.dup(fd),)),) for fd in fds)
        kept = duplicated(to_send(model, data, TOKEN, (1, 1)).fds)
        for (handle,) in (model, data):
            os.close(handle.fds[0])
        for descriptor, fd in zip(kept, fds, strict=True):
            assert os.path.sameopenfile(descriptor.fd, fd)


class TestReceiving:
    @pytest.mark.parametrize("counts", [(1, 0), (2, 1), (3, -1), (0, 0)])
    def test_counts_and_descriptors_have_to_match(
        self, fds: list[int], counts: tuple[int, int]
    ) -> None:
        with pytest.raises(InvalidArgumentError):
            ReceivedCache(CacheInfo(*counts, TOKEN), fds)

    def test_copies_are_read_from_the_start(self, fds: list[int]) -> None:
        for fd in fds:
            os.write(fd, b"contents")
        cache = ReceivedCache(ONE_EACH, fds)
        cache.read(16)
        for (handle,) in (cache.arguments.model_cache, cache.arguments.data_cache):
            assert os.pread(handle.fds[0], 99, 0) == b"contents"

    def test_copies_cannot_lose_bytes(self, fds: list[int]) -> None:
        cache = ReceivedCache(ONE_EACH, fds)
        cache.read(0)
        with pytest.raises(PermissionError):
            os.ftruncate(cache.arguments.model_cache[0].fds[0], 1)

    def test_too_many_bytes_are_not_read(self, fds: list[int]) -> None:
        os.write(fds[0], b"1234")
        os.write(fds[1], b"5678")
        with pytest.raises(GeneralFailureError, match="too large"):
            ReceivedCache(ONE_EACH, fds).read(7)

    def test_what_is_no_file_is_not_read(self, fds: list[int]) -> None:
        reader, writer = os.pipe()
        with pytest.raises(GeneralFailureError):
            ReceivedCache(ONE_EACH, [reader, fds[1]]).read(99)
        os.close(reader)
        os.close(writer)

    def test_copies_are_written_back(self, fds: list[int]) -> None:
        os.write(fds[0], b"longer than before")
        cache = ReceivedCache(ONE_EACH, fds)
        assert cache.prepare_to_write()
        for (handle,) in (cache.arguments.model_cache, cache.arguments.data_cache):
            os.write(handle.fds[0], b"new")
        cache.write()
        assert [os.pread(fd, 99, 0) for fd in fds] == [b"new", b"new"]

    def test_files_are_kept_if_nothing_was_saved(self, fds: list[int]) -> None:
        os.write(fds[0], b"kept")
        cache = ReceivedCache(ONE_EACH, fds)
        assert cache.prepare_to_write()
        cache.write()
        assert os.pread(fds[0], 99, 0) == b"kept"


async def test_descriptors_that_do_not_match_are_refused(attach: Connect) -> None:
    client = await attach().greet()
    for number, fds in enumerate(([], [0], [0, 0, 0]), 1):
        client.send(wire.PrepareModelFromCache(number, ONE_EACH, None), fds)
        answer = await client.receive()
        assert isinstance(answer, wire.Prepared)
        assert answer.status == ErrorStatus.INVALID_ARGUMENT


async def test_a_pipe_in_place_of_a_file_harms_nobody(attach: Connect) -> None:
    client = await attach().greet()
    reader, writer = os.pipe()
    client.send(wire.PrepareModelFromCache(1, ONE_EACH, None), [reader, writer])
    answer = await client.receive()
    assert isinstance(answer, wire.Prepared)
    assert answer.status == ErrorStatus.GENERAL_FAILURE
    message = wire.PrepareModel(2, addition(4).model, (), 1, 1, None, ONE_EACH)
    client.send(message, [reader, writer])
    answer = await client.receive()
    assert isinstance(answer, wire.Prepared)
    assert answer.status == ErrorStatus.NONE
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    ("prepared", "info", "descriptors", "status"),
    [
        (7, ONE_EACH, 2, ErrorStatus.INVALID_ARGUMENT),
        (1, ONE_EACH, 0, ErrorStatus.INVALID_ARGUMENT),
        (1, CacheInfo(2, 0, TOKEN), 2, ErrorStatus.INVALID_ARGUMENT),
        (1, CacheInfo(1, 1, b""), 2, ErrorStatus.INVALID_ARGUMENT),
        (1, ONE_EACH, 2, ErrorStatus.NONE),
    ],
    ids=["no such model", "no files", "two of a kind", "no token", "none"],
)
async def test_what_is_wrong_with_saving_is_told_and_harms_nobody(
    attach: Connect,
    fds: list[int],
    prepared: int,
    info: CacheInfo,
    descriptors: int,
    status: ErrorStatus,
) -> None:
    client = await attach().greet()
    assert (await client.prepare(1, addition(4).model)).status == ErrorStatus.NONE
    client.send(wire.SaveModel(5, prepared, info), fds[:descriptors])
    assert await client.receive() == wire.ModelSaved(5, status)


async def test_a_pipe_is_no_file_to_save_a_model_in(attach: Connect) -> None:
    client = await attach().greet()
    assert (await client.prepare(1, addition(4).model)).status == ErrorStatus.NONE
    reader, writer = os.pipe()
    client.send(wire.SaveModel(5, 1, ONE_EACH), [reader, writer])
    assert await client.receive() == wire.ModelSaved(5, ErrorStatus.GENERAL_FAILURE)
    os.close(reader)
    os.close(writer)


async def test_a_file_that_is_slow_keeps_only_its_owner_waiting(
    attach: Connect, fds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, other = await attach().greet(), await attach().greet()
    reading, released = threading.Event(), threading.Event()
    original = ReceivedCache.read

    def read(cache: ReceivedCache, most_bytes: int) -> None:
        reading.set()
        released.wait(10)
        original(cache, most_bytes)

    monkeypatch.setattr(ReceivedCache, "read", read)
    slow.send(wire.PrepareModelFromCache(1, ONE_EACH, None), fds)
    await until(reading.is_set)
    assert (await other.prepare(1, addition(4).model)).status == ErrorStatus.NONE
    released.set()
    answer = await slow.receive()
    assert isinstance(answer, wire.Prepared)
    assert answer.status == ErrorStatus.GENERAL_FAILURE


async def test_what_loads_for_nobody_keeps_no_more_files_than_others(
    attach: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, released = await attach().greet(), threading.Event()
    original = ReceivedCache.read

    def read(cache: ReceivedCache, most_bytes: int) -> None:
        released.wait(10)
        original(cache, most_bytes)

    monkeypatch.setattr(ReceivedCache, "read", read)
    file = os.memfd_create("cache")
    before = len(os.listdir("/proc/self/fd"))
    for number in range(1, LIMITS.max_executions + 1):
        message = wire.PrepareModelFromCache(number, CacheInfo(8, 8, TOKEN), None)
        client.send(message, [file] * 16)
        client.send(wire.ReleasePreparedModel(number))
    client.send(ping(99))
    while not isinstance(await client.receive(), wire.SupportedOperations):
        pass
    held = len(os.listdir("/proc/self/fd")) - before
    released.set()
    os.close(file)
    assert held <= 16 * LIMITS.max_preparing


@pytest.mark.parametrize("status", [ErrorStatus.NONE, ErrorStatus.GENERAL_FAILURE])
async def test_so_many_models_are_saved_at_a_time(
    attach: Connect,
    fds: list[int],
    status: ErrorStatus,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, released = await attach().greet(), asyncio.Event()
    assert (await client.prepare(1, addition(4).model)).status == ErrorStatus.NONE

    async def save(*_: object) -> ErrorStatus:
        await released.wait()
        return status

    monkeypatch.setattr(InProcessPreparedModel, "save_to_cache", save)
    most = LIMITS.max_preparing
    for call in range(1, most + 2):
        client.send(wire.SaveModel(call, 1, ONE_EACH), fds)
    refusal = wire.ModelSaved(most + 1, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)
    assert await client.receive() == refusal
    released.set()
    for _ in range(most):
        answer = await client.receive()
        assert isinstance(answer, wire.ModelSaved)
        assert answer.status == status
    client.send(wire.SaveModel(most + 2, 1, ONE_EACH), fds)
    assert await client.receive() == wire.ModelSaved(most + 2, status)


async def test_a_loaded_model_survives_its_driver(tmp_path: Path) -> None:
    settings = DeviceSettings(cache_key_file=str(tmp_path / "key"))
    path = tmp_path / "driver.sock"
    supervision = Supervision(first_delay=0.005, max_delay=0.02)
    async with AsyncExitStack() as stack:
        reference = await stack.enter_async_context(ReferenceDevice(settings))
        server = await stack.enter_async_context(AsyncExitStack())
        await server.enter_async_context(Server(reference, path))
        device = await stack.enter_async_context(
            asyncnn.connect(path, supervised=supervision)
        )
        client = CacheClient(device.hal, tmp_path)
        await client.save_file(dense(True))
        _, prepared = await client.load_file()
        await server.aclose()
        await until(lambda: device.hal.get_status() is DeviceStatus.OFFLINE)
        await stack.enter_async_context(Server(reference, path))
        await check_works(client, prepared, quantized=True)
        assert isinstance(prepared, ISavable)
        for file in (client.model_file, client.data_file):
            file.unlink()
        with client.opened() as ((model,), (data,)):
            saved = await prepared.save_to_cache(model, data, TOKEN)
        assert saved is ErrorStatus.NONE
        _, again = await client.load_file()
        await check_works(client, again, quantized=True)
