"""Models saved by the call of the first draft of HAL 1.2, at any time."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.hal.interfaces import IPreparedModel
from asyncnn.hal.types import ErrorStatus, Handle, Memory, Priority
from asyncnn.hal.versions import VersionedDevice, VersionedPreparedModel
from asyncnn.memory import view
from asyncnn.service import RemoteDevice, Server
from tests.devices.cache.client import TOKEN, CacheClient
from tests.devices.cache.models import dense
from tests.devices.cache.test_cache import both_types, check_works, each_file


class TestDraft:
    async def test_a_device_says_whether_it_saves_models(
        self, client: CacheClient
    ) -> None:
        versioned = VersionedDevice(client.device)
        assert versioned.is_caching_supported() == (ErrorStatus.NONE, True)

    @both_types
    async def test_a_model_is_saved_after_it_was_prepared_and_executed(
        self, client: CacheClient, quantized: bool
    ) -> None:
        prepared = await client.prepare(dense(quantized).model)
        await check_works(client, prepared, quantized)
        assert await self.save(client, prepared) is ErrorStatus.NONE
        _, loaded = await client.load_file()
        await check_works(client, loaded, quantized)

    async def test_one_that_was_loaded_is_saved_again(
        self, client: CacheClient
    ) -> None:
        await client.save_file(dense(True))
        _, loaded = await client.load_file()
        assert loaded is not None
        for path in (client.model_file, client.data_file):
            path.unlink()
        assert await self.save(client, loaded) is ErrorStatus.NONE
        _, again = await client.load_file()
        await check_works(client, again, quantized=True)

    async def test_it_keeps_its_priority(self, client: CacheClient) -> None:
        prepared = await client.prepare(dense(True).model, priority=Priority.HIGH)
        assert await self.save(client, prepared) is ErrorStatus.NONE
        _, loaded = await client.load_file()
        await check_works(client, loaded, quantized=True)

    async def test_constants_are_those_of_its_preparation(
        self, client: CacheClient
    ) -> None:
        """The client has let go of the pool meanwhile, and reused its descriptor."""
        model = dense(False).model
        (pool,) = model.pools
        fd = os.memfd_create("constants")
        os.write(fd, view(pool)[: pool.size])
        outside = Memory("ashmem", pool.size, Handle((fd,)))
        prepared = await client.prepare(replace(model, pools=(outside,)))
        other = os.memfd_create("another file")
        os.truncate(other, pool.size)
        os.dup2(other, fd)
        assert await self.save(client, prepared) is ErrorStatus.NONE
        os.close(fd)
        os.close(other)
        _, loaded = await client.load_file()
        await check_works(client, loaded, quantized=False)

    @pytest.mark.parametrize("count", [0, 2])
    @each_file
    async def test_a_handle_has_one_descriptor(
        self, client: CacheClient, kind: str, count: int
    ) -> None:
        prepared = await client.prepare(dense(True).model)
        with client.opened() as ((model,), (data,)):
            wrong = Handle((model if kind == "model" else data).fds * count)
            files = (wrong, data) if kind == "model" else (model, wrong)
            status = await saved(prepared, *files)
        assert status is ErrorStatus.INVALID_ARGUMENT

    @pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY])
    @each_file
    async def test_a_file_has_to_be_readable_and_writable(
        self, client: CacheClient, kind: str, flags: int
    ) -> None:
        prepared = await client.prepare(dense(True).model)
        modes = (flags, os.O_RDWR) if kind == "model" else (os.O_RDWR, flags)
        with client.opened(*modes) as ((model,), (data,)):
            status = await saved(prepared, model, data)
        assert status is ErrorStatus.INVALID_ARGUMENT

    @pytest.mark.parametrize("wrong", ["length", "offset"])
    @each_file
    async def test_a_file_has_to_be_empty_and_at_its_beginning(
        self, client: CacheClient, kind: str, wrong: str
    ) -> None:
        prepared = await client.prepare(dense(True).model)
        with client.opened() as ((model,), (data,)):
            (fd,) = (model if kind == "model" else data).fds
            if wrong == "length":
                os.pwrite(fd, b"x", 0)
            else:
                os.lseek(fd, 1, os.SEEK_SET)
            status = await saved(prepared, model, data)
        assert status is ErrorStatus.INVALID_ARGUMENT
        lengths = [
            path.stat().st_size for path in (client.model_file, client.data_file)
        ]
        assert sum(lengths) == int(wrong == "length")

    async def test_a_file_cannot_be_both(self, client: CacheClient) -> None:
        prepared = await client.prepare(dense(True).model)
        with client.opened() as ((model,), _):
            status = await saved(prepared, model, model)
        assert status is ErrorStatus.INVALID_ARGUMENT

    async def test_a_token_has_32_bytes(self, client: CacheClient) -> None:
        prepared = await client.prepare(dense(True).model)
        with client.opened() as ((model,), (data,)):
            status = await saved(prepared, model, data, TOKEN[1:])
        assert status is ErrorStatus.INVALID_ARGUMENT

    async def test_a_device_that_is_closed_saves_nothing(
        self, settings: DeviceSettings, tmp_path: Path
    ) -> None:
        path = tmp_path / "driver.sock"
        async with ReferenceDevice(settings) as device, Server(device, path):
            async with RemoteDevice(path) as remote:
                afar = CacheClient(remote, tmp_path)
                there = await afar.prepare(dense(True).model)
            assert await self.save(afar, there) is ErrorStatus.DEVICE_UNAVAILABLE
            near = CacheClient(device, tmp_path)
            here = await near.prepare(dense(True).model)
        assert await self.save(near, here) is ErrorStatus.DEVICE_UNAVAILABLE

    async def save(self, client: CacheClient, prepared: IPreparedModel) -> ErrorStatus:
        with client.opened() as ((model,), (data,)):
            return await saved(prepared, model, data)


async def saved(
    prepared: IPreparedModel, model: Handle, data: Handle, token: bytes = TOKEN
) -> ErrorStatus:
    """Save as a caller of any version does."""
    versioned = VersionedPreparedModel(prepared, None)
    return await versioned.save_to_cache(model, data, token)
