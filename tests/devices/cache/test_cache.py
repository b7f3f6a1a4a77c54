"""Compilation caching through the HAL, row by row of CompilationCachingTests.

Source: 1.3/vts/functional/CompilationCachingTests.cpp.
"""

import os
import random
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from asyncnn.devices import DeviceSettings, ReferenceDevice, cache_files
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.interfaces import IPreparedModel
from asyncnn.hal.types import ErrorStatus, Handle, OperationType, Priority
from asyncnn.service import RemoteDevice
from tests.devices.cache.client import OTHER_TOKEN, TOKEN, CacheClient, outputs_of
from tests.devices.cache.models import INPUTS, dense, folding, image, repeated

REFUSED = {ErrorStatus.INVALID_ARGUMENT, ErrorStatus.GENERAL_FAILURE}
FAILED = (ErrorStatus.GENERAL_FAILURE, None)

both_types = pytest.mark.parametrize("quantized", [False, True], ids=["f32", "q8"])
each_file = pytest.mark.parametrize("kind", ["model", "data"])


async def check_works(
    client: CacheClient, prepared: IPreparedModel | None, quantized: bool
) -> None:
    """Compare with a model that no cache has seen."""
    assert prepared is not None
    named, x = dense(quantized), image(quantized)
    expected = await outputs_of(named, await client.prepare(named.model), x)
    result = await outputs_of(named, prepared, x)
    np.testing.assert_array_equal(result, expected)


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def path_of(client: CacheClient, kind: str) -> Path:
    return client.model_file if kind == "model" else client.data_file


@both_types
class TestSavingAndLoading:
    async def test_a_saved_model_is_loaded_and_works(
        self, client: CacheClient, quantized: bool
    ) -> None:
        named = dense(quantized)
        with client.opened() as handles:
            saved = await client.prepare(named.model, handles)
        await check_works(client, saved, quantized)
        status, prepared = await client.load_file()
        assert status is ErrorStatus.NONE
        await check_works(client, prepared, quantized)

    async def test_offsets_and_former_contents_do_not_matter(
        self, client: CacheClient, quantized: bool
    ) -> None:
        for path in (client.model_file, client.data_file):
            path.write_bytes(os.urandom(100_000))
        with client.opened() as handles:
            for (handle,) in handles:
                os.lseek(handle.fds[0], 2, os.SEEK_SET)
            await client.prepare(dense(quantized).model, handles)
            for (handle,) in handles:
                os.lseek(handle.fds[0], 1, os.SEEK_CUR)
            status, prepared = await client.load(handles)
        assert status is ErrorStatus.NONE
        await check_works(client, prepared, quantized)

    async def test_descriptors_may_be_closed_once_the_model_is_there(
        self, client: CacheClient, quantized: bool
    ) -> None:
        await client.save_file(dense(quantized))
        status, prepared = await client.load_file()
        client.model_file.unlink()
        client.data_file.unlink()
        assert status is ErrorStatus.NONE
        await check_works(client, prepared, quantized)


@both_types
class TestWrongFiles:
    @pytest.mark.parametrize(
        ("models", "data"), [(0, 1), (2, 1), (1, 0), (1, 2)], ids=str
    )
    async def test_a_wrong_number_of_files_is_refused_where_it_matters(
        self, client: CacheClient, quantized: bool, models: int, data: int
    ) -> None:
        named = dense(quantized)
        with client.opened() as (model, datum):
            wrong = (*model, *model)[:models], (*datum, *datum)[:data]
            await check_works(
                client, await client.prepare(named.model, wrong), quantized
            )
            status, prepared = await client.load(wrong)
            assert (status in REFUSED, prepared) == (True, None)
            await client.prepare(named.model, (model, datum))
            status, prepared = await client.load(wrong)
            assert (status in REFUSED, prepared) == (True, None)

    @each_file
    @pytest.mark.parametrize("fds", [0, 2])
    async def test_a_handle_has_exactly_one_descriptor(
        self, client: CacheClient, quantized: bool, kind: str, fds: int
    ) -> None:
        named = dense(quantized)
        with client.opened() as (model, data):
            bent = (Handle((data if kind == "data" else model)[0].fds * fds),)
            wrong = (bent, data) if kind == "model" else (model, bent)
            saved = await client.prepare(named.model, wrong)
            await check_works(client, saved, quantized)
            status, prepared = await client.load(wrong)
            assert (status in REFUSED, prepared) == (True, None)
            await client.prepare(named.model, (model, data))
            status, prepared = await client.load(wrong)
            assert (status in REFUSED, prepared) == (True, None)

    @each_file
    async def test_nothing_is_saved_in_a_file_that_cannot_be_written(
        self, client: CacheClient, quantized: bool, kind: str
    ) -> None:
        for path in (client.model_file, client.data_file):
            path.write_bytes(b"kept")
        flags = [os.O_RDONLY if kind == name else os.O_RDWR for name in FILES]
        with client.opened(*flags) as handles:
            saved = await client.prepare(dense(quantized).model, handles)
            await check_works(client, saved, quantized)
            assert await client.load(handles) == FAILED
        assert client.model_file.read_bytes() == client.data_file.read_bytes()

    @each_file
    async def test_a_file_that_cannot_be_read_fails_the_loading(
        self, client: CacheClient, quantized: bool, kind: str
    ) -> None:
        await client.save_file(dense(quantized))
        flags = [os.O_WRONLY if kind == name else os.O_RDWR for name in FILES]
        with client.opened(*flags) as handles:
            assert await client.load(handles) == FAILED

    async def test_files_may_be_read_only_to_load_from_them(
        self, client: CacheClient, quantized: bool
    ) -> None:
        await client.save_file(dense(quantized))
        with client.opened(os.O_RDONLY, os.O_RDONLY) as handles:
            status, prepared = await client.load(handles)
        assert status is ErrorStatus.NONE
        await check_works(client, prepared, quantized)

    async def test_a_descriptor_that_is_not_open_is_refused(
        self, client: CacheClient, quantized: bool
    ) -> None:
        with client.opened() as handles:
            pass
        saved = await client.prepare(dense(quantized).model, handles)
        await check_works(client, saved, quantized)
        status, prepared = await client.load(handles)
        assert (status in REFUSED, prepared) == (True, None)


FILES = ("model", "data")


@both_types
class TestSecurity:
    async def test_every_flipped_bit_of_the_model_cache_is_noticed(
        self, client: CacheClient, quantized: bool
    ) -> None:
        await client.save_file(dense(quantized))
        bits = client.model_file.stat().st_size * 8
        for seed in range(10):
            bit = random.Random(seed).randrange(bits)
            flip(client.model_file, bit)
            assert await client.load_file() == FAILED
            flip(client.model_file, bit)
        assert (await client.load_file())[0] is ErrorStatus.NONE

    @pytest.mark.parametrize("extra", [1, 7, 256])
    async def test_bytes_behind_the_model_cache_are_noticed(
        self, client: CacheClient, quantized: bool, extra: int
    ) -> None:
        await client.save_file(dense(quantized))
        with client.model_file.open("ab") as file:
            file.write(os.urandom(extra))
        assert await client.load_file() == FAILED

    async def test_a_token_that_is_not_that_of_the_model_is_noticed(
        self, client: CacheClient, quantized: bool
    ) -> None:
        await client.save_file(dense(quantized))
        wrong = bytearray(TOKEN)
        wrong[13] ^= 16
        assert await client.load_file(bytes(wrong)) == FAILED
        assert await client.load_file(TOKEN[:-1]) != (ErrorStatus.NONE, None)

    async def test_the_model_cache_of_another_token_is_noticed(
        self, client: CacheClient, quantized: bool
    ) -> None:
        await client.save_file(dense(quantized, seed=1), OTHER_TOKEN)
        other = client.model_file.read_bytes()
        await client.save_file(dense(quantized))
        client.model_file.write_bytes(other)
        assert await client.load_file() == FAILED

    async def test_the_data_cache_of_another_compilation_is_noticed(
        self, client: CacheClient, quantized: bool
    ) -> None:
        await client.save_file(dense(quantized, seed=1))
        other = client.data_file.read_bytes()
        await client.save_file(dense(quantized))
        client.data_file.write_bytes(other)
        assert await client.load_file() == FAILED

    async def test_swapped_files_are_noticed(
        self, client: CacheClient, quantized: bool
    ) -> None:
        await client.save_file(dense(quantized))
        with client.opened() as (model, data):
            assert await client.load((data, model)) == FAILED

    async def test_a_flipped_bit_of_the_data_cache_gives_wrong_numbers_at_worst(
        self, client: CacheClient, quantized: bool
    ) -> None:
        named = dense(quantized)
        await client.save_file(named)
        bits = client.data_file.stat().st_size * 8
        for seed in range(10):
            bit = random.Random(seed).randrange(bits)
            flip(client.data_file, bit)
            status, prepared = await client.load_file()
            if prepared is not None:
                result = await outputs_of(named, prepared, image(quantized))
                assert result.shape == named.outputs[0].dimensions
            else:
                assert status is ErrorStatus.GENERAL_FAILURE
            del prepared
            flip(client.data_file, bit)

    @pytest.mark.parametrize("change", [-4096, -1, 1, 256])
    async def test_a_data_cache_of_another_length_fails_the_loading(
        self, client: CacheClient, quantized: bool, change: int
    ) -> None:
        await client.save_file(dense(quantized))
        os.truncate(client.data_file, client.data_file.stat().st_size + change)
        assert await client.load_file() == FAILED


class TestReportingAtOnce:
    """The call itself returns the status that the callback is notified of."""

    @pytest.mark.parametrize(
        "damage",
        ["tag", "digest", "magic", "token", "versions", "end", "longer", "empty"],
    )
    async def test_that_a_model_cache_was_changed(
        self, client: CacheClient, damage: str
    ) -> None:
        await client.save_file(dense(False))
        data = bytearray(client.model_file.read_bytes())
        places = {"tag": 5, "digest": 37, "magic": 66, "token": 80, "versions": 120}
        if damage == "longer":
            data += b"\0"
        elif damage == "empty":
            data.clear()
        else:
            data[places.get(damage, -1)] ^= 1
        client.model_file.write_bytes(data)
        assert await client.load_file() == FAILED
        # Behind a socket nobody but the driver can check the tag.
        is_forged = damage == "tag" and isinstance(client.device, RemoteDevice)
        assert client.launched is (ErrorStatus.NONE if is_forged else FAILED[0])

    async def test_that_it_is_for_another_token(self, client: CacheClient) -> None:
        await client.save_file(dense(False), OTHER_TOKEN)
        assert await client.load_file(TOKEN) == FAILED
        assert client.launched is ErrorStatus.GENERAL_FAILURE

    async def test_that_it_was_changed_in_memory_that_may_be_sealed(
        self, client: CacheClient
    ) -> None:
        await client.save_file(dense(False))
        changed = bytearray(client.model_file.read_bytes())
        changed[-1] ^= 1
        file = os.memfd_create("model", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.write(file, changed)
        with client.opened() as (_, data):
            assert await client.load(((Handle((file,)),), data)) == FAILED
        os.close(file)
        assert client.launched is ErrorStatus.GENERAL_FAILURE

    @pytest.mark.parametrize("size", [0, 31, 33])
    async def test_that_its_token_is_none(self, client: CacheClient, size: int) -> None:
        with client.opened() as handles:
            await client.prepare(dense(False).model, handles, bytes(size))
            status, _ = await client.load(handles, bytes(size))
        assert status is client.launched is ErrorStatus.INVALID_ARGUMENT
        assert not client.model_file.stat().st_size

    @each_file
    async def test_that_a_descriptor_is_negative(
        self, client: CacheClient, kind: str
    ) -> None:
        bent = (Handle((-1,)),)
        with client.opened() as (model, data):
            wrong = (bent, data) if kind == "model" else (model, bent)
            await client.prepare(dense(False).model, wrong)
            status, _ = await client.load(wrong)
        assert status is client.launched is ErrorStatus.INVALID_ARGUMENT

    async def test_that_a_descriptor_could_keep_its_reader_waiting(
        self, client: CacheClient
    ) -> None:
        await client.save_file(dense(False))
        reader, writer = os.pipe()
        with client.opened() as (_, data):
            assert await client.load(([Handle((reader,))], data)) == FAILED
            assert client.launched is ErrorStatus.GENERAL_FAILURE
        os.close(reader)
        os.close(writer)

    async def test_by_a_device_that_has_just_been_opened(
        self, settings: DeviceSettings, tmp_path: Path
    ) -> None:
        """Which has read the key, so that nothing can be forged."""
        async with ReferenceDevice(settings) as device:
            await CacheClient(device, tmp_path).save_file(dense(False))
        async with ReferenceDevice(settings) as device:
            client = CacheClient(device, tmp_path)
            flip(client.model_file, 0)
            assert await client.load_file() == FAILED
            assert client.launched is ErrorStatus.GENERAL_FAILURE
            flip(client.model_file, 0)
            status, prepared = await client.load_file()
            assert client.launched is status is ErrorStatus.NONE
            await check_works(client, prepared, False)

    async def test_by_a_device_without_a_key(
        self, settings: DeviceSettings, tmp_path: Path
    ) -> None:
        """Which sees all changes that are not forged."""
        async with ReferenceDevice(settings) as device:
            await CacheClient(device, tmp_path).save_file(dense(False))
        other = DeviceSettings(cache_key_file=str(tmp_path / "other"))
        async with ReferenceDevice(other) as device:
            client = CacheClient(device, tmp_path)
            flip(client.model_file, 999)
            assert await client.load_file() == FAILED
            assert client.launched is ErrorStatus.GENERAL_FAILURE

    async def test_unless_that_takes_long(
        self, client: CacheClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A long file, or one whose file system waits for others, is read beside."""
        monkeypatch.setattr(cache_files, "MOST_AT_ONCE_BYTES", 100)
        await client.save_file(dense(False))
        flip(client.model_file, 999)
        assert await client.load_file() == FAILED
        assert client.launched is ErrorStatus.NONE
        flip(client.model_file, 999)
        await check_works(client, (await client.load_file())[1], False)


@contextmanager
def overwriting(client: CacheClient, source: Path) -> Iterator[None]:
    """Copy the files in ``source`` over those of the client, over and over."""
    done = threading.Event()

    def overwrite() -> None:
        while not done.is_set():
            for path in (client.model_file, client.data_file):
                data = (source / path.name).read_bytes()
                with path.open("r+b") as file:
                    file.write(data)

    thread = threading.Thread(target=overwrite)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class TestOverwrittenFiles:
    @pytest.fixture
    async def source(self, client: CacheClient, tmp_path: Path) -> Path:
        """The cache of another model with another token."""
        source = tmp_path / "other"
        source.mkdir()
        other = CacheClient(client.device, source)
        await other.save_file(repeated(OperationType.MUL), OTHER_TOKEN)
        for path in (client.model_file, client.data_file):
            shutil.copy(source / path.name, path)
        return source

    async def check(self, client: CacheClient, prepared: IPreparedModel | None) -> None:
        if prepared is not None:
            named = repeated(OperationType.ADD)
            result = await outputs_of(named, prepared, np.zeros(1, np.float32))
            np.testing.assert_allclose(result, [101], rtol=1e-5)

    async def test_while_saving_they_never_yield_another_model(
        self, client: CacheClient, source: Path
    ) -> None:
        for _ in range(25):
            with overwriting(client, source):
                await client.save_file(repeated(OperationType.ADD))
            _, prepared = await client.load_file()
            await self.check(client, prepared)

    async def test_while_loading_they_never_yield_another_model(
        self, client: CacheClient, source: Path
    ) -> None:
        for _ in range(25):
            await client.save_file(repeated(OperationType.ADD))
            with overwriting(client, source):
                _, prepared = await client.load_file()
            await self.check(client, prepared)


class TestLoadedModels:
    async def test_shapes_that_requests_choose_are_planned_for(
        self, client: CacheClient
    ) -> None:
        named = dense(False, batch=0)
        await client.save_file(named)
        _, prepared = await client.load_file()
        assert prepared is not None
        x = image(False, batch=5)
        expected = await outputs_of(named, await client.prepare(named.model), x)
        np.testing.assert_array_equal(await outputs_of(named, prepared, x), expected)

    async def test_folded_constants_are_kept(self, client: CacheClient) -> None:
        named = folding()
        await client.save_file(named)
        _, prepared = await client.load_file()
        assert prepared is not None
        x = np.zeros((1, INPUTS, INPUTS), np.float32)
        expected = await outputs_of(named, await client.prepare(named.model), x)
        assert expected.any()
        np.testing.assert_array_equal(await outputs_of(named, prepared, x), expected)

    async def test_invalid_requests_are_refused_at_once(
        self, client: CacheClient
    ) -> None:
        await client.save_file(dense(False))
        _, prepared = await client.load_file()
        assert prepared is not None
        with pytest.raises(InvalidArgumentError):
            await outputs_of(dense(False, batch=2), prepared, image(False, batch=2))

    async def test_a_deadline_that_has_passed_is_missed(
        self, client: CacheClient
    ) -> None:
        await client.save_file(dense(False), TOKEN)
        with client.opened() as handles:
            status, prepared = await client.load(handles, TOKEN, time.monotonic_ns())
        assert (status, prepared) == (ErrorStatus.MISSED_DEADLINE_PERSISTENT, None)

    async def test_a_null_callback_is_invalid(self, client: CacheClient) -> None:
        with client.opened() as handles:
            status = client.device.prepare_model_from_cache_1_3(
                None, *handles, TOKEN, None
            )
        assert status is ErrorStatus.INVALID_ARGUMENT

    async def test_saving_needs_no_particular_priority(
        self, client: CacheClient
    ) -> None:
        with client.opened() as handles:
            await client.prepare(dense(False).model, handles, TOKEN, Priority.HIGH)
            status, prepared = await client.load(handles)
        assert status is ErrorStatus.NONE
        await check_works(client, prepared, quantized=False)
