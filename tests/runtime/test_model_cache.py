# ruff: noqa: ASYNC240 - files of a test do not keep anybody waiting
"""Folders of prepared models."""

import asyncio
import gc
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch
from weakref import ref

import numpy as np
import pytest

import asyncnn
from asyncnn.devices.reference import ReferenceDevice
from asyncnn.hal.refusals import PrepareArguments
from asyncnn.hal.types import ExecutionPreference, Priority
from asyncnn.memory import descriptors
from asyncnn.runtime import model_cache
from asyncnn.runtime.framework.opening import open_framework
from tests.devices.cache.models import dense, image
from tests.hal.validate.samples import open_loop_model
from tests.waits import until


@pytest.fixture
def settings(tmp_path: Path) -> asyncnn.DeviceSettings:
    return asyncnn.DeviceSettings(cache_key_file=str(tmp_path / "key"))


class Counted:
    """Opens devices and counts the models that they prepare anew."""

    def __init__(self, settings: asyncnn.DeviceSettings) -> None:
        self._settings = settings
        self.anew = 0

    @asynccontextmanager
    async def device(
        self, cache: Path | asyncnn.ModelCache
    ) -> AsyncIterator[asyncnn.Device]:
        original = ReferenceDevice.prepare_model_1_3

        def counted(*arguments):
            self.anew += 1
            return original(*arguments)

        async with asyncnn.open_device(
            settings=self._settings, cache_dir=cache
        ) as device:
            with patch.object(ReferenceDevice, "prepare_model_1_3", counted):
                yield device


@pytest.fixture
def counted(settings: asyncnn.DeviceSettings) -> Counted:
    return Counted(settings)


async def test_a_large_loop_over_unknown_sizes_is_for_the_device_to_refuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_cache, "_FEW_OPERATIONS", 0)
    order = PrepareArguments(
        open_loop_model(), ExecutionPreference.LOW_POWER, Priority.LOW, None
    )
    async with open_framework(asyncnn.DeviceSettings(), ["reference"]) as framework:
        assert await model_cache.prepare(framework, order)
    async with ReferenceDevice() as device:
        with pytest.raises(asyncnn.InvalidArgumentError, match="unknown dimensions"):
            await model_cache.prepare(device, order)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def models_in(folder: Path) -> set[str]:
    return {path.name.partition(".")[0] for path in folder.iterdir()}


async def test_the_second_time_a_model_is_loaded(
    counted: Counted, folder: Path
) -> None:
    results = []
    for _ in range(2):
        async with counted.device(folder) as device:
            prepared = await device.prepare(dense(False))
            results.append((await prepared.run({"x": image(False)}))["y"])
    assert counted.anew == 1
    np.testing.assert_array_equal(*results)
    assert folder.stat().st_mode & 0o777 == 0o700


async def test_files_that_keep_nobody_waiting_are_closed_by_no_thread(
    counted: Counted, folder: Path
) -> None:
    async with counted.device(folder) as device:
        await device.prepare(dense(False))
        with patch.object(descriptors, "_close_on_thread") as on_thread:
            await device.prepare(dense(False))
        assert counted.anew == 1
        on_thread.assert_not_called()


async def test_what_was_loaded_keeps_nothing_of_the_model_that_was_given(
    counted: Counted, folder: Path
) -> None:
    async with counted.device(folder) as device:
        await device.prepare(dense(False))
        given = dense(False)
        model = ref(given.model)
        prepared = await device.prepare(given)
        del given
        gc.collect()
        assert model() is None
        assert counted.anew == 1
        await prepared.run({"x": image(False)})


async def test_a_driver_process_loads_it_too(tmp_path: Path, folder: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
    results = []
    with patch.dict(os.environ, environment):
        for _ in range(2):
            async with asyncnn.connect(cache_dir=folder) as device:
                prepared = await device.prepare(dense(True))
                results.append((await prepared.run({"x": image(True)}))["y"])
    assert (tmp_path / "state" / "asyncnn" / "cache-key").exists()
    assert len(models_in(folder)) == 1
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(
    "other",
    [
        {"priority": asyncnn.Priority.HIGH},
        {"preference": asyncnn.ExecutionPreference.SUSTAINED_SPEED},
        {"identity": b"model 1"},
    ],
    ids=lambda other: next(iter(other)),
)
async def test_what_differs_is_prepared_anew(
    counted: Counted, folder: Path, other: dict[str, object]
) -> None:
    async with counted.device(folder) as device:
        await device.prepare(dense(False))
        await device.prepare(dense(False), **other)
        await device.prepare(dense(False), **other)
        await device.prepare(dense(False, seed=1))
    assert counted.anew == 3


async def test_a_damaged_model_is_replaced(counted: Counted, folder: Path) -> None:
    async with counted.device(folder) as device:
        await device.prepare(dense(False))
        for path in folder.glob("*.model*"):
            path.write_bytes(b"damaged")
        await device.prepare(dense(False))
        await device.prepare(dense(False))
    assert counted.anew == 2


async def test_a_model_in_use_can_be_replaced(counted: Counted, folder: Path) -> None:
    async with counted.device(folder) as device:
        await device.prepare(dense(False))
        loaded = await device.prepare(dense(False))
        for path in folder.glob("*.model*"):
            path.unlink()
        again = await device.prepare(dense(False))
        results = [(await m.run({"x": image(False)}))["y"] for m in (loaded, again)]
    np.testing.assert_array_equal(*results)


async def test_to_load_a_model_of_known_identity_takes_one_thread(
    counted: Counted, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    offload = model_cache.offload_abandonable

    async def noting(what: str, *args: Any, **limits: Any) -> object:
        names.append(what)
        return await offload(what, *args, **limits)

    async with counted.device(folder) as device:
        await device.prepare(dense(False), identity=b"dense")
        with monkeypatch.context() as patched:
            patched.setattr(model_cache, "offload_abandonable", noting)
            await device.prepare(dense(False), identity=b"dense")
    assert counted.anew == 1
    assert len(names) == 1


async def test_those_that_were_not_used_for_the_longest_go_first(
    counted: Counted, folder: Path
) -> None:
    async with counted.device(folder) as device:
        await device.prepare(dense(False, seed=0))
        (first,) = models_in(folder)
        size = sum(path.stat().st_size for path in folder.iterdir())
        await device.prepare(dense(False, seed=1))
        for age, path in enumerate(sorted(folder.iterdir())):
            then = time.time() - 1000 - age
            os.utime(path, (then, then))
        await device.prepare(dense(False, seed=0))  # uses the first one again
    cache = asyncnn.ModelCache(folder, max_bytes=int(2.5 * size))
    async with counted.device(cache) as device:
        await device.prepare(dense(False, seed=2))
    kept = models_in(folder)
    assert len(kept) == 2
    assert first in kept


async def test_a_model_larger_than_the_cache_is_not_kept(
    counted: Counted, folder: Path
) -> None:
    async with counted.device(asyncnn.ModelCache(folder, max_bytes=100)) as device:
        prepared = await device.prepare(dense(False))
        await prepared.run({"x": image(False)})
    assert not list(folder.iterdir())


async def test_a_folder_that_cannot_be_written_does_not_matter(
    counted: Counted, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    async with counted.device(tmp_path / "file" / "cache") as device:
        prepared = await device.prepare(dense(False))
        await prepared.run({"x": image(False)})
    assert counted.anew == 1


async def test_a_model_that_cannot_be_prepared_leaves_nothing(
    counted: Counted, folder: Path
) -> None:
    async with counted.device(folder) as device:
        with pytest.raises(asyncnn.MissedDeadlinePersistentError):
            await device.prepare(dense(False), timeout=0)
    await until(lambda: not (folder.exists() and models_in(folder)))


async def test_those_who_prepare_a_model_at_once_leave_one(
    counted: Counted, folder: Path
) -> None:
    async with counted.device(folder) as one, counted.device(folder) as other:
        devices = (one, other) * 4
        await asyncio.gather(*(device.prepare(dense(False)) for device in devices))
        before = counted.anew
        await one.prepare(dense(False))
        assert counted.anew == before
    assert len(list(folder.iterdir())) == 2


async def test_drafts_of_the_dead_are_deleted(counted: Counted, folder: Path) -> None:
    folder.mkdir()
    old, young = (
        folder / f"{digit * 64}.data0-{'0' * 16}.draft" for digit in ("1", "2")
    )
    for path, age in ((old, 7200), (young, 0)):
        path.touch()
        os.utime(path, (time.time() - age,) * 2)
    async with counted.device(folder) as device:
        await device.prepare(dense(False))
    assert list(folder.glob("*.draft")) == [young]


async def test_what_others_keep_in_the_folder_stays(
    counted: Counted, folder: Path
) -> None:
    (folder / "notes").mkdir(parents=True)
    others = [folder / name for name in ("notes.txt", "letter.draft", "1.data0")]
    for path in others:
        path.write_bytes(bytes(4096))
        os.utime(path, (0, 0))
    async with counted.device(asyncnn.ModelCache(folder, max_bytes=100)) as device:
        await device.prepare(dense(False))
    assert set(folder.iterdir()) == {folder / "notes", *others}


def test_a_cache_has_room_for_something(folder: Path) -> None:
    with pytest.raises(asyncnn.InvalidArgumentError):
        asyncnn.ModelCache(folder, max_bytes=0)


async def test_a_model_is_prepared_though_no_thread_starts_to_keep_it(
    counted: Counted, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counted.device(folder) as device:
        offload = model_cache.offload_abandonable

        async def scarce(what: str, steps: Any, **limits: Any) -> object:
            if steps.__name__ == "_adopting":
                raise asyncnn.ResourceExhaustedTransientError("no thread")
            return await offload(what, steps, **limits)

        with monkeypatch.context() as patched:
            patched.setattr(model_cache, "offload_abandonable", scarce)
            await device.prepare(dense(quantized=False))
            await until(lambda: not models_in(folder))
        await device.prepare(dense(quantized=False))
        await device.prepare(dense(quantized=False))
        assert counted.anew == 2
