"""Models that are divided, kept in files: what is loaded, and what is prepared anew."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

import asyncnn
from asyncnn.callbacks import PreparedModelFuture
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.hal.types import ErrorStatus, Handle
from asyncnn.runtime.device import Device
from asyncnn.runtime.framework import FrameworkSettings, Partitioning
from asyncnn.runtime.framework.caching import MOST_PARTITIONS
from asyncnn.runtime.framework.opening import OpenDevice, open_framework
from asyncnn.runtime.model_cache import ModelCache
from asyncnn.service.driver.server import Server
from asyncnn.service.process import private_address
from tests.runtime.framework.crippled import CrippledDevice, Fault
from tests.runtime.framework.mixed import (
    FLOATS,
    WHEREVER_BETTER,
    assert_same,
    expected,
    inputs,
    mixed,
)

PATHS = ("async", "sync", "burst", "fenced")
T = asyncnn.OperationType
FLOATS_ONLY = {T.QUANTIZE, T.RELU6, T.DEQUANTIZE}
SHAPE = (16, 24)


@asynccontextmanager
async def cached(
    folder: Path,
    settings: FrameworkSettings = WHEREVER_BETTER,
    names: tuple[str, ...] = ("odd",),
    **options,
) -> AsyncIterator[tuple[Device, list[CrippledDevice]]]:
    """Open a framework that keeps models, of devices for floats and the CPU."""
    limits = DeviceSettings(cache_key_file=str(folder / "key"))
    async with ReferenceDevice(limits) as inner:
        odd = [CrippledDevice(inner, FLOATS_ONLY, **options) for _ in names]
        given = [OpenDevice(*each) for each in zip(names, odd, strict=True)]
        async with open_framework(limits, devices=given, framework=settings) as hal:
            yield Device("framework", hal, cache=ModelCache(folder / "models")), odd
        for each in odd:
            each.bursts.close()


async def kept(folder: Path, **options) -> list[Path]:
    """Prepare a model, and return the files that it is kept in then."""
    async with cached(folder, **options) as (device, _):
        await device.prepare(mixed(SHAPE))
    return list((folder / "models").iterdir())


@pytest.mark.parametrize("path", PATHS)
async def test_a_divided_model_is_loaded_by_its_devices(
    tmp_path: Path, path: str
) -> None:
    given = inputs(SHAPE)
    wanted = await expected(given, mixed(SHAPE))
    assert await kept(tmp_path)
    async with cached(tmp_path) as (device, (odd,)):
        prepared = await device.prepare(mixed(SHAPE))
        assert (odd.preparations, odd.loadings) == (0, 2)
        assert prepared.hal.usual_route.devices == ("odd", "reference", "odd")
        async with prepared.runner(path) as run:
            for _ in range(2):
                assert_same(await run(given), wanted)


@pytest.mark.parametrize("fallback", ["partial", "full"])
async def test_what_was_loaded_falls_back_like_any_other(
    tmp_path: Path, fallback: str
) -> None:
    given = inputs(SHAPE)
    wanted = await expected(given, mixed(SHAPE))
    settings = replace(WHEREVER_BETTER, fallback=fallback)
    assert await kept(tmp_path, settings=settings)
    async with cached(tmp_path, settings, fault=Fault.EXECUTING) as (device, (odd,)):
        prepared = await device.prepare(mixed(SHAPE))
        assert odd.loadings == 2
        outputs = await prepared.run(given)
        assert_same(outputs, wanted)
        assert outputs.route.fell_back


async def test_a_model_on_one_device_is_kept_too(tmp_path: Path) -> None:
    undivided = replace(WHEREVER_BETTER, partition=Partitioning.NO)
    for number in range(2):
        async with cached(tmp_path, undivided) as (device, (odd,)):
            prepared = await device.prepare(mixed(SHAPE))
            outputs = await prepared.run(inputs(SHAPE))
            assert outputs.route.devices == ("reference",)
            assert not odd.preparations
        if not number:
            files = {f: f.stat().st_mtime_ns for f in (tmp_path / "models").iterdir()}
    assert files.keys() == set((tmp_path / "models").iterdir())


@pytest.mark.parametrize("changed", ["plan", "partition", "nothing"])
async def test_the_call_tells_that_a_model_cache_was_changed(
    tmp_path: Path, changed: str
) -> None:
    limits = DeviceSettings(cache_key_file=str(tmp_path / "key"))
    async with (
        ReferenceDevice(limits) as inner,
        open_framework(
            limits, devices=[OpenDevice("odd", inner)], framework=WHEREVER_BETTER
        ) as hal,
    ):
        await Device("f", hal, cache=ModelCache(tmp_path / "models")).prepare(
            mixed(SHAPE)
        )
        _, *counts = hal.get_number_of_cache_files_needed()
        token = next((tmp_path / "models").iterdir()).name.split(".")[0]
        models, datas = (
            [tmp_path / "models" / f"{token}.{kind}{number}" for number in range(count)]
            for kind, count in zip(("model", "data"), counts, strict=True)
        )
        position = {"plan": 0, "partition": 1, "nothing": -1}[changed]
        content = bytearray(models[position].read_bytes())
        assert bool(content) is (changed != "nothing")
        if content:
            content[200] ^= 1
            models[position].write_bytes(content)
        fds = [os.open(file, os.O_RDONLY) for file in (*models, *datas)]
        handles = [Handle((fd,)) for fd in fds]
        callback = PreparedModelFuture()
        status = hal.prepare_model_from_cache_1_3(
            None,
            handles[: counts[0]],
            handles[counts[0] :],
            bytes.fromhex(token),
            callback,
        )
        for fd in fds:
            os.close(fd)
        if changed == "nothing":
            assert status is ErrorStatus.NONE
            await callback
        else:
            assert status is ErrorStatus.GENERAL_FAILURE
            with pytest.raises(asyncnn.GeneralFailureError):
                await callback


async def test_a_driver_keeps_the_models_of_its_framework(tmp_path: Path) -> None:
    given = inputs(SHAPE)
    wanted = await expected(given, mixed(SHAPE))
    for number in range(2):
        async with cached(tmp_path) as (device, (odd,)):
            address = private_address()
            folder = tmp_path / "clients"
            async with (
                Server(device.hal, address),
                asyncnn.connect(address, cache_dir=folder) as remote,
            ):
                prepared = await remote.prepare(mixed(SHAPE))
                outputs = await prepared.run(given)
                assert_same(outputs, wanted)
                assert outputs.route.devices == ("odd", "reference", "odd")
            assert (odd.loadings, odd.preparations) == ((0, 2), (2, 0))[number]


async def test_a_driver_of_ones_own_may_be_another_process_next_time(
    tmp_path: Path,
) -> None:
    given = inputs(SHAPE)
    sizes = []
    for _ in range(2):
        async with (
            asyncnn.connect() as driver,
            asyncnn.open_devices(
                driver, "sample-quant", framework=WHEREVER_BETTER, cache_dir=tmp_path
            ) as device,
        ):
            prepared = await device.prepare(mixed(SHAPE))
            assert_same(await prepared.run(given), await expected(given, mixed(SHAPE)))
        sizes.append(len(os.listdir(tmp_path)))
    assert sizes[0] == sizes[1] > 2


CHANGES = {
    "another device": {"names": ("even",)},
    "one more device": {"names": ("odd", "even")},
    "another setting": {"settings": replace(WHEREVER_BETTER, moving_weight=1e-6)},
}


@pytest.mark.parametrize("change", [*CHANGES, "another version"])
async def test_what_has_changed_is_not_loaded(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await kept(tmp_path)
    if change == "another version":
        version = ErrorStatus.NONE, "7.0"
        monkeypatch.setattr(ReferenceDevice, "get_version_string", lambda _: version)
    async with cached(tmp_path, **CHANGES.get(change, {})) as (device, odd):
        # Not even if a client takes the files for those of this framework.
        status, reason = await loaded_from(device, before)
        assert status is ErrorStatus.GENERAL_FAILURE
        assert "other devices, or settings" in reason
        prepared = await device.prepare(mixed(SHAPE))
        outputs = await prepared.run(inputs(SHAPE))
        assert_same(outputs, await expected(inputs(SHAPE), mixed(SHAPE)))
        assert not any(each.loadings for each in odd)


async def loaded_from(device: Device, files: list[Path]) -> tuple[ErrorStatus, str]:
    """Load a model by the HAL, and return what came of it."""
    token = bytes.fromhex(files[0].name.partition(".")[0])
    fds = {
        kind: [
            os.open(path, os.O_RDONLY)
            for path in sorted(files)
            if path.suffix.startswith(f".{kind}")
        ]
        for kind in ("model", "data")
    }
    callback = PreparedModelFuture()
    given = [[Handle((fd,)) for fd in fds[kind]] for kind in ("model", "data")]
    device.hal.prepare_model_from_cache_1_3(None, *given, token, callback)
    for fd in (*fds["model"], *fds["data"]):
        os.close(fd)
    try:
        await callback
    except asyncnn.AsyncnnError as error:
        return error.status, str(error)
    return ErrorStatus.NONE, ""


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def shortened(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [flipped, shortened, emptied])
async def test_damaged_files_are_prepared_anew(tmp_path: Path, damage) -> None:
    wanted = await expected(inputs(SHAPE), mixed(SHAPE))
    files = [path.name for path in await kept(tmp_path)]
    used = 0
    for name in files:
        path = tmp_path / "models" / name
        is_data = ".data" in name
        if not path.stat().st_size or (is_data and damage is flipped):
            continue  # numbers are not checked: they do not decide what runs
        used += 1
        damage(path)
        async with cached(tmp_path) as (device, (odd,)):
            prepared = await device.prepare(mixed(SHAPE))
            assert odd.preparations == 2, name
            assert_same(await prepared.run(inputs(SHAPE)), wanted)
        async with cached(tmp_path) as (device, (odd,)):
            await device.prepare(mixed(SHAPE))
            assert odd.loadings == 2, f"{name} was not written anew"
    assert used == (4 if damage is flipped else 8)


def saves_nothing(_: object) -> tuple[ErrorStatus, int, int]:
    return ErrorStatus.NONE, 0, 0


def says_nonsense(_: object) -> tuple[ErrorStatus, int, int]:
    return ErrorStatus.NONE, -1, 4


def raises(_: object) -> tuple[ErrorStatus, int, int]:
    raise ZeroDivisionError


@pytest.mark.parametrize("says", [saves_nothing, says_nonsense, raises])
async def test_a_partition_that_its_device_does_not_save_is_prepared_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says
) -> None:
    name = "get_number_of_cache_files_needed"
    monkeypatch.setattr(CrippledDevice, name, says, False)
    await kept(tmp_path)
    async with cached(tmp_path) as (device, (odd,)):
        prepared = await device.prepare(mixed(SHAPE))
        assert (odd.preparations, odd.loadings) == (2, 0)
        outputs = await prepared.run(inputs(SHAPE))
        assert_same(outputs, await expected(inputs(SHAPE), mixed(SHAPE)))


async def test_what_is_not_as_planned_is_not_kept(tmp_path: Path) -> None:
    assert not await kept(tmp_path, fault=Fault.PREPARING)
    assert not await kept(tmp_path, fault=Fault.ANSWERING)


async def test_a_model_of_too_many_partitions_is_not_kept(tmp_path: Path) -> None:
    builder = asyncnn.ModelBuilder()
    real = asyncnn.hal.Operand(FLOATS, SHAPE)
    stored = asyncnn.hal.Operand(
        asyncnn.OperandType.TENSOR_QUANT8_ASYMM, SHAPE, scale=0.05, zero_point=3
    )
    x = builder.input("x", FLOATS, SHAPE)
    for _ in range(MOST_PARTITIONS // 2 + 1):
        x = builder.operation(T.ABS, [x], real)
        x = builder.operation(T.QUANTIZE, [x], stored)
        x = builder.operation(T.DEQUANTIZE, [x], real)
    builder.output(x, "y")
    model = builder.build()
    async with cached(tmp_path) as (device, _):
        prepared = await device.prepare(model)
        assert len(prepared.hal.steps) > MOST_PARTITIONS
        assert_same(
            await prepared.run(inputs(SHAPE)), await expected(inputs(SHAPE), model)
        )
    assert not list((tmp_path / "models").iterdir())


async def test_the_number_of_files_is_that_of_all_slots(tmp_path: Path) -> None:
    async with cached(tmp_path) as (device, _):
        status, *counts = device.hal.get_number_of_cache_files_needed()
        assert status is ErrorStatus.NONE
        assert counts == [1 + MOST_PARTITIONS, 1 + MOST_PARTITIONS]
        callback = PreparedModelFuture()
        token = bytes(32)
        arguments = (None, [Handle((0,))], [Handle((0,))], token, callback)
        status = device.hal.prepare_model_from_cache_1_3(*arguments)
        assert status is ErrorStatus.INVALID_ARGUMENT
        with pytest.raises(asyncnn.InvalidArgumentError, match="9 and 9"):
            await callback
