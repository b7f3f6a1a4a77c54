"""Callers of old versions, over the devices that the behaviour kit knows."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from asyncnn.callbacks import PreparedModelFuture
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.interfaces import IDevice
from asyncnn.hal.types import (
    BYTE_SIZE_OF_CACHE_TOKEN,
    BufferDesc,
    ErrorStatus,
    ExecutionPreference,
    HalVersion,
    Handle,
    MeasureTiming,
    Model,
    Operand,
    OperationType,
    OutputShape,
    Priority,
    Request,
    Timing,
)
from asyncnn.hal.versions import (
    VersionedDevice,
    VersionedPreparedModel,
    convert_to,
    v1_0,
    v1_1,
    v1_2,
)
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.requests import RequestBuilder
from tests.networks import F32, addition
from tests.places import PLACES, placed

V1_0, V1_1, V1_2, V1_3 = list(HalVersion)[:4]
FAST = ExecutionPreference.FAST_SINGLE_ANSWER
TOKEN = bytes(BYTE_SIZE_OF_CACHE_TOKEN)
PREPARED = tuple[ErrorStatus, VersionedPreparedModel | None]


class Prepared1_0(v1_0.IPreparedModelCallback):  # noqa: N801 - named like the version
    def __init__(self) -> None:
        super().__init__()
        self.told: asyncio.Future[PREPARED] = asyncio.Future()

    def notify(
        self, status: ErrorStatus, prepared_model: VersionedPreparedModel | None
    ) -> None:
        self.told.set_result((status, prepared_model))


class Prepared1_2(v1_2.IPreparedModelCallback):  # noqa: N801
    def __init__(self) -> None:
        super().__init__()
        self.told: asyncio.Future[PREPARED] = asyncio.Future()

    def notify_1_2(
        self, status: ErrorStatus, prepared_model: VersionedPreparedModel | None
    ) -> None:
        self.told.set_result((status, prepared_model))


class Executed1_0(v1_0.IExecutionCallback):  # noqa: N801
    def __init__(self) -> None:
        super().__init__()
        self.told: asyncio.Future[ErrorStatus] = asyncio.Future()

    def notify(self, status: ErrorStatus) -> None:
        self.told.set_result(status)


class Executed1_2(v1_2.IExecutionCallback):  # noqa: N801
    def __init__(self) -> None:
        super().__init__()
        self.told: asyncio.Future[
            tuple[ErrorStatus, tuple[OutputShape, ...], Timing]
        ] = asyncio.Future()

    def notify_1_2(
        self,
        status: ErrorStatus,
        output_shapes: tuple[OutputShape, ...],
        timing: Timing,
    ) -> None:
        self.told.set_result((status, output_shapes, timing))


@pytest.fixture
async def device() -> AsyncIterator[VersionedDevice]:
    async with ReferenceDevice() as canonical:
        yield VersionedDevice(canonical)


@pytest.fixture(params=PLACES)
async def caching_device(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[VersionedDevice]:
    settings = DeviceSettings(cache_key_file=str(tmp_path / "key"))
    async with placed(request.param, ReferenceDevice(settings), tmp_path) as device:
        yield VersionedDevice(device)


def product() -> Model:
    """``z = x @ x``, which HAL 1.3 did not have."""
    builder = ModelBuilder()
    x = builder.input("x", F32, (2, 2))
    no = builder.scalar(np.bool_(False))
    z = builder.operation(
        OperationType.BATCH_MATMUL, [x, x, no, no], Operand(F32, (2, 2))
    )
    builder.output(z, "z")
    return builder.build().model


def as_canonical(device: VersionedDevice) -> IDevice:
    """What mypy checks: an older caller's device is a device like any other."""
    return device


async def prepare(
    device: VersionedDevice, model: Model, version: HalVersion
) -> PREPARED:
    """Prepare through the method of ``version``; launch and callback agree."""
    old = convert_to(model, version)
    callback = Prepared1_0() if version < V1_2 else Prepared1_2()
    if isinstance(old, v1_0.Model):
        launched = device.prepare_model(old, callback)
    elif isinstance(old, v1_1.Model):
        launched = device.prepare_model_1_1(old, FAST, callback)
    else:
        launched = device.prepare_model_1_2(old, FAST, (), (), TOKEN, callback)
    status, prepared = await callback.told
    assert launched in (ErrorStatus.NONE, status)
    assert (prepared is None) is (status is not ErrorStatus.NONE)
    return status, prepared


def sum_request(*dimensions: int) -> tuple[Request, np.ndarray]:
    model = addition(*dimensions)
    x, y, z = (np.full(dimensions, value, np.float32) for value in (1, 2, 0))
    return RequestBuilder(model.inputs, model.outputs)([x, y], [z]), z


@pytest.mark.parametrize("version", [V1_0, V1_1, V1_2])
async def test_a_model_of_any_version_is_supported_and_computes(
    device: VersionedDevice, version: HalVersion
) -> None:
    old = convert_to(addition(2, 3).model, version)
    queries = {
        V1_0: device.get_supported_operations,
        V1_1: device.get_supported_operations_1_1,
        V1_2: device.get_supported_operations_1_2,
    }
    assert await queries[version](old) == (ErrorStatus.NONE, (True,))
    _, prepared = await prepare(device, addition(2, 3).model, version)
    assert prepared is not None
    request, z = sum_request(2, 3)
    old_request = convert_to(request, version)
    assert isinstance(old_request, v1_0.Request)
    if version < V1_2:
        told = Executed1_0()
        assert prepared.execute(old_request, told) is ErrorStatus.NONE
        assert await told.told is ErrorStatus.NONE
    else:
        newer = Executed1_2()
        prepared.execute_1_2(old_request, MeasureTiming.YES, newer)
        status, shapes, timing = await newer.told
        assert status is ErrorStatus.NONE
        assert shapes in ((), (OutputShape((2, 3), True),))
        assert timing.time_on_device <= timing.time_in_driver
    assert (z == 3).all()


async def test_a_model_of_1_2_executes_synchronously(device: VersionedDevice) -> None:
    _, prepared = await prepare(device, addition(4).model, V1_2)
    assert prepared is not None
    request, z = sum_request(4)
    answer = await prepared.execute_synchronously(
        v1_0.Request(request.inputs, request.outputs, request.pools), MeasureTiming.NO
    )
    assert answer[0] is ErrorStatus.NONE
    assert (z == 3).all()


@pytest.mark.parametrize("version", [V1_0, V1_1])
async def test_what_a_version_does_not_have_is_refused_there(
    device: VersionedDevice, version: HalVersion
) -> None:
    open_rank = addition().model
    assert await prepare(device, open_rank, version) == (
        ErrorStatus.INVALID_ARGUMENT,
        None,
    )
    assert (await prepare(device, open_rank, V1_2))[0] is ErrorStatus.NONE


async def test_1_0_cannot_leave_output_dimensions_open(device: VersionedDevice) -> None:
    _, prepared = await prepare(device, addition(0, 3).model, V1_0)
    assert prepared is not None
    request, _ = sum_request(2, 3)
    argument = replace(request.inputs[0], dimensions=(2, 3))
    old = v1_0.Request((argument, argument), request.outputs, request.pools)
    told = Executed1_0()
    assert prepared.execute(old, told) is ErrorStatus.INVALID_ARGUMENT
    assert await told.told is ErrorStatus.INVALID_ARGUMENT
    assert "output" in told.reason
    newer = Executed1_2()
    prepared.execute_1_2(old, MeasureTiming.NO, newer)
    assert (await newer.told)[0] is ErrorStatus.NONE


async def test_operations_that_came_after_1_3_are_invalid(
    device: VersionedDevice,
) -> None:
    model = product()
    assert await device.get_supported_operations_1_3(model) == (
        ErrorStatus.INVALID_ARGUMENT,
        (),
    )
    callback = PreparedModelFuture()
    launched = device.prepare_model_1_3(
        model, FAST, Priority.MEDIUM, None, (), (), TOKEN, callback
    )
    assert launched is ErrorStatus.INVALID_ARGUMENT
    with pytest.raises(InvalidArgumentError, match="BATCH_MATMUL"):
        await callback


async def test_1_0_cannot_leave_output_dimensions_of_a_cached_model_open(
    caching_device: VersionedDevice, tmp_path: Path
) -> None:
    files = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in "md"]
    caches = tuple((Handle((fd,)),) for fd in files)
    old = convert_to(addition(0, 3).model, V1_2)
    assert isinstance(old, v1_2.Model)
    saving, loading = Prepared1_2(), Prepared1_2()
    caching_device.prepare_model_1_2(old, FAST, *caches, TOKEN, saving)
    assert (await saving.told)[0] is ErrorStatus.NONE
    caching_device.prepare_model_from_cache(*caches, TOKEN, loading)
    _, prepared = await loading.told
    for fd in files:
        os.close(fd)
    assert prepared is not None
    request, _ = sum_request(2, 3)
    argument = replace(request.inputs[0], dimensions=(2, 3))
    told = Executed1_0()
    unknown = v1_0.Request((argument, argument), request.outputs, request.pools)
    assert prepared.execute(unknown, told) is ErrorStatus.INVALID_ARGUMENT
    assert await told.told is ErrorStatus.INVALID_ARGUMENT
    output = replace(request.outputs[0], dimensions=(2, 3))
    told = Executed1_0()
    known = v1_0.Request((argument, argument), (output,), request.pools)
    assert prepared.execute(known, told) is ErrorStatus.NONE
    assert await told.told is ErrorStatus.NONE


async def test_null_callbacks_are_invalid(device: VersionedDevice) -> None:
    old = convert_to(addition(4).model, V1_0)
    assert device.prepare_model(old, None) is ErrorStatus.INVALID_ARGUMENT
    newest = (addition(4).model, FAST, Priority.MEDIUM, None, (), (), TOKEN)
    assert device.prepare_model_1_3(*newest, None) is ErrorStatus.INVALID_ARGUMENT
    _, prepared = await prepare(device, addition(4).model, V1_0)
    assert prepared is not None
    request, _ = sum_request(4)
    old_request = v1_0.Request(request.inputs, request.outputs, request.pools)
    assert prepared.execute(old_request, None) is ErrorStatus.INVALID_ARGUMENT
    assert (
        prepared.execute_1_2(old_request, MeasureTiming.NO, None)
        is ErrorStatus.INVALID_ARGUMENT
    )


async def test_statuses_of_1_3_do_not_reach_an_older_callback() -> None:
    async with ReferenceDevice() as canonical:
        device = VersionedDevice(canonical)
        callback = Prepared1_0()
        old = convert_to(addition(4).model, V1_0)
        device.prepare_model(old, callback)
        callback.die()  # which is RESOURCE_EXHAUSTED_TRANSIENT to a caller of 1.3
        status, prepared = await callback.told
    assert status in (ErrorStatus.NONE, ErrorStatus.GENERAL_FAILURE)
    assert (prepared is None) is (status is ErrorStatus.GENERAL_FAILURE)


async def test_capabilities_come_in_the_shape_of_each_version(
    device: VersionedDevice,
) -> None:
    status, newest = device.get_capabilities_1_3()
    assert status is ErrorStatus.NONE
    for answer, version in (
        (device.get_capabilities(), V1_0),
        (device.get_capabilities_1_1(), V1_1),
        (device.get_capabilities_1_2(), V1_2),
    ):
        assert answer == (ErrorStatus.NONE, convert_to(newest, version))


async def test_the_methods_of_1_3_are_the_canonical_ones(
    device: VersionedDevice,
) -> None:
    callback = PreparedModelFuture()
    as_canonical(device).prepare_model_1_3(
        addition(4).model, FAST, Priority.MEDIUM, None, (), (), TOKEN, callback
    )
    prepared = await callback
    request, z = sum_request(4)
    status, _, _ = await prepared.execute_synchronously_1_3(
        request, MeasureTiming.NO, None, None
    )
    assert status is ErrorStatus.NONE
    assert (z == 3).all()
    canonical = device.canonical
    assert device.get_version_string() == canonical.get_version_string()
    assert device.get_type() == canonical.get_type()
    assert device.get_status() == canonical.get_status()
    assert device.get_supported_extensions() == canonical.get_supported_extensions()
    assert (
        device.get_number_of_cache_files_needed()
        == canonical.get_number_of_cache_files_needed()
    )
    answer = await device.allocate(BufferDesc(()), [], [], [])
    assert answer == (ErrorStatus.INVALID_ARGUMENT, None, 0)


class Recorder:
    """Keeps the arguments of what it is to prepare or to load."""

    def __init__(self) -> None:
        self.arguments: list[tuple[Any, ...]] = []

    def prepare_model_1_3(self, model: Model, *arguments: Any) -> ErrorStatus:
        self.arguments.append(arguments[:-1])
        return ErrorStatus.NONE

    def prepare_model_from_cache_1_3(self, *arguments: Any) -> ErrorStatus:
        self.arguments.append(arguments[:-1])
        return ErrorStatus.NONE


async def test_a_preference_and_cache_of_an_older_call_count() -> None:
    canonical = Recorder()
    device = VersionedDevice(canonical)
    low, token = ExecutionPreference.LOW_POWER, bytes(range(32))
    caches = (Handle((1,)),), (Handle((2,)),)
    v1_1_model, v1_2_model = (
        convert_to(addition(4).model, version) for version in (V1_1, V1_2)
    )
    device.prepare_model_1_1(v1_1_model, low, Prepared1_0())
    device.prepare_model_1_2(v1_2_model, low, *caches, token, Prepared1_2())
    device.prepare_model_from_cache(*caches, token, Prepared1_2())
    preferring, saving, loading = canonical.arguments
    assert preferring[:3] == (low, Priority.MEDIUM, None)
    assert saving == (low, Priority.MEDIUM, None, *caches, token)
    assert loading == (None, *caches, token)
