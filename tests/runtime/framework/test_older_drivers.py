"""Drivers of HAL 1.0 to 1.2 behind an adapter: alone, and in frameworks."""

import asyncio
import importlib.metadata
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import asyncnn
from asyncnn.callbacks import PreparedModelFuture
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.fences import SyncFence
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.types import (
    DEFAULT_OPTIONS,
    UINT64_MAX,
    DeviceStatus,
    DeviceType,
    ErrorStatus,
    HalVersion,
    Operand,
    OperandType,
    OperationType,
    PerformanceInfo,
)
from asyncnn.hal.versions import VersionedDevice, compliant_with, v1_0
from asyncnn.memory.pools import from_buffer
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.device import Device
from asyncnn.runtime.explain import explain
from asyncnn.runtime.framework.device_registry import ENTRY_POINTS
from asyncnn.runtime.framework.older_drivers import OlderDriver, newest, version_of
from asyncnn.runtime.framework.opening import OpenDevice, open_framework
from asyncnn.tools.conformance.executing import PATHS, NotCarriedError
from asyncnn.tools.conformance.judging import judge
from asyncnn.tools.conformance.preparing import preparing, through_cache
from asyncnn.tools.conformance.vectors import find_specs, load_cases
from tests.networks import F32, addition
from tests.runtime.framework.mixed import (
    WHEREVER_BETTER,
    assert_same,
    expected,
    inputs,
    mixed,
)
from tests.runtime.framework.older import (
    FAILED,
    INVALID,
    MODELS,
    NO,
    NONE,
    OLDER,
    V1_0,
    V1_1,
    V1_2,
    V1_3,
    YES,
    Driver,
    adapted,
    execute,
    prepare,
    sums,
)


def sample(version: HalVersion) -> str:
    return f"sample-hal-{version.title.removeprefix('HAL ')}"


@pytest.mark.parametrize("version", OLDER, ids=lambda version: version.title)
@pytest.mark.parametrize(
    "specs",
    [
        pytest.param(slice(None, None, 20), id="some"),
        pytest.param(
            slice(None),
            id="all",
            marks=[pytest.mark.exhaustive, pytest.mark.timeout(600)],
        ),
    ],
)
async def test_vectors_of_its_version_pass_on_every_path(
    shared: Path, version: HalVersion, specs: slice
) -> None:
    """What the version has not is not offered, and the rest is as on any device."""
    cases = [c for spec in find_specs(shared / "vts")[specs] for c in load_cases(spec)]
    passed: Counter[str] = Counter()
    async with asyncnn.open_device(sample(version)) as device:
        by_caller = preparing(device.hal, V1_3)
        for case in cases:
            status, supports = await device.hal.get_supported_operations_1_3(case.model)
            if not compliant_with(case.model, version):
                assert status is not NONE or not all(supports)
                continue
            for path in PATHS:
                try:
                    problems = await judge(case, by_caller, path, version)
                except NotCarriedError:
                    continue
                assert not problems, (case.name, path)
                passed[path] += 1
    assert passed.keys() == set(PATHS)
    assert min(passed.values()) >= 10


@pytest.mark.parametrize("version", OLDER, ids=lambda version: version.title)
async def test_a_driver_gets_calls_and_data_of_its_version_alone(
    version: HalVersion,
) -> None:
    suffix = {V1_0: "", V1_1: "_1_1", V1_2: "_1_2"}[version]
    async with adapted(version) as (device, driver):
        assert (device.version, version_of(driver)) == (version, version)
        model = addition(2, 3).model
        assert await device.get_supported_operations_1_3(model) == (NONE, (True,))
        prepared = await prepare(device, model)
        request, z = sums(2, 3)
        _, result = await execute(prepared, request, YES)
        assert result.status is NONE
        assert (z == 3).all()
        assert [shape.dimensions for shape in result.output_shapes] == [(2, 3)]
        # Nobody but the driver knows how long a device was at it.
        assert result.timing.time_in_driver < UINT64_MAX
        tells_time = version is V1_2
        assert (result.timing.time_on_device < UINT64_MAX) is tells_time
        given = {name: args[0] for name, args in driver.calls if args}
        assert set(given) == {
            f"get_supported_operations{suffix}",
            f"prepare_model{suffix}",
            "execute_1_2" if version is V1_2 else "execute",
        }
        assert {type(args) for name, args in given.items() if "model" in name} == {
            MODELS[version]
        }
        assert type(given.popitem()[1]) is v1_0.Request


@pytest.mark.parametrize("version", OLDER, ids=lambda version: version.title)
async def test_what_a_version_cannot_tell_is_widened(version: HalVersion) -> None:
    floats, eights = PerformanceInfo(0.5, 0.6), PerformanceInfo(0.7, 0.8)
    old = {"get_capabilities": lambda: (NONE, v1_0.Capabilities(floats, eights))}
    async with adapted(version, **(old if version is V1_0 else {})) as (device, _):
        status, capabilities = device.get_capabilities_1_3()
        assert status is NONE
        types = [entry.type for entry in capabilities.operand_performance]
        assert types == sorted(types)
        assert capabilities.while_performance.exec_time > 1e30
        if version is V1_0:
            figures = {e.type: e.info for e in capabilities.operand_performance}
            assert figures[F32] == floats
            assert figures[OperandType.TENSOR_QUANT8_ASYMM] == eights
            assert capabilities.relaxed_float32_to_float16_performance_tensor == floats
        told = device.get_version_string(), device.get_type()
        if version is V1_2:
            assert told[1] == (NONE, DeviceType.CPU)
            assert told[0][1] != "UNKNOWN"
        else:
            assert told == ((NONE, "UNKNOWN"), (NONE, DeviceType.OTHER))
            assert device.get_number_of_cache_files_needed() == (NONE, 0, 0)
            assert device.get_supported_extensions() == (NONE, ())
            callback = PreparedModelFuture()
            device.prepare_model_from_cache_1_3(None, (), (), bytes(32), callback)
            with pytest.raises(AsyncnnError, match="does not cache"):
                await callback


async def test_operations_that_came_later_are_asked_of_nobody() -> None:
    """ABS and SQRT are of 1.2: a driver of 1.0 is asked for DEQUANTIZE and RELU6."""
    async with adapted(V1_0) as (device, driver):
        model = mixed().model
        types = [operation.type for operation in model.main.operations]
        status, supports = await device.get_supported_operations_1_3(model)
        assert status is NONE
        offered = {
            OperationType(type_).name
            for type_, is_offered in zip(types, supports, strict=True)
            if is_offered
        }
        assert offered == {"RELU6", "DEQUANTIZE"}
        (asked,) = [args[0] for name, args in driver.calls if "supported" in name]
        assert [operation.type for operation in asked.operations] == [
            OperationType.RELU6,
            OperationType.DEQUANTIZE,
        ]
        lack = r"ABS needs HAL 1\.2, not HAL 1\.0"
        with pytest.raises(AsyncnnError, match=rf"operations \[.*\]: {lack}"):
            await prepare(device, model)
        explanation = await explain(Device("old", device), model)
        reasons = [each.reason for each in explanation.operations]
        assert any(re.match(lack, reason) for reason in reasons), reasons
        assert "ExecutionPreference" in explanation.hal_hints


async def test_one_that_came_after_all_versions_leaves_it_the_others() -> None:
    """BATCH_MATMUL is of AIDL: a driver of HAL 1.1 is asked for the ADD."""
    builder = ModelBuilder()
    x = builder.input("x", OperandType.TENSOR_FLOAT32, (1, 2, 2))
    square = Operand(OperandType.TENSOR_FLOAT32, (1, 2, 2))
    none, no = builder.scalar(0), builder.scalar(False, OperandType.BOOL)
    twice = builder.operation(OperationType.ADD, (x, x, none), square)
    product = builder.operation(
        OperationType.BATCH_MATMUL, (twice, twice, no, no), square
    )
    builder.output(product, "z")
    async with adapted(V1_1) as (device, _):
        told = await device.get_supported_operations_1_3(builder.build().model)
        assert told == (NONE, (True, False))


async def test_a_framework_divides_a_model_with_an_older_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    point = EntryPoint("older", f"{__name__}:registered", ENTRY_POINTS)
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: EntryPoints([point])
    )
    async with asyncnn.open_devices("older", framework=WHEREVER_BETTER) as framework:
        prepared = await framework.prepare(mixed())
        given = inputs()
        for path in ("async", "sync", "fenced"):
            outputs = await prepared.run(given, path=path)
            assert_same(outputs, await expected(given))
            assert set(outputs.route.devices) == {"older", "reference"}


@asynccontextmanager
async def registered(settings: DeviceSettings) -> AsyncIterator[Driver]:
    """A package's device that is a driver of HAL 1.0, and cheap."""
    cheap = PerformanceInfo(0.1, 0.1)
    async with ReferenceDevice(settings) as device:
        yield Driver(
            VersionedDevice(device),
            V1_0,
            get_capabilities=lambda: (NONE, v1_0.Capabilities(cheap, cheap)),
        )


async def test_an_older_driver_is_a_device_that_was_opened() -> None:
    settings = DeviceSettings()
    async with registered(settings) as driver:
        opened = OpenDevice("old", driver)
        async with open_framework(settings, devices=[opened]) as framework:
            member = framework.members[0]
            assert isinstance(member.hal, OlderDriver)
            assert not member.tells_shapes
            prepared = await prepare(framework, addition(2, 3).model)
            request, z = sums(2, 3)
            assert (await execute(prepared, request))[1].status is NONE
            assert (z == 3).all()
            assert "execute" in driver.names()
    async with ReferenceDevice() as device, newest(device) as same:
        assert same is device
    with pytest.raises(InvalidArgumentError, match="no device of any HAL"):
        async with newest(object()):
            pass
    with pytest.raises(InvalidArgumentError, match="not older"):
        OlderDriver(same)


@pytest.mark.parametrize("version", [V1_0, V1_2], ids=lambda version: version.title)
async def test_outputs_of_open_shape_need_a_way_to_tell_it(version: HalVersion) -> None:
    async with adapted(version) as (device, driver):
        prepared = await prepare(device, addition(0, 3).model)
        request, z = sums(2, 3)
        shaped = request_with_inputs(request, (2, 3))
        launched, result = await execute(prepared, shaped)
        if version is V1_0:
            assert launched is result.status is INVALID
            assert "execute" not in driver.names()
        else:
            assert result.status is NONE
            assert result.output_shapes[0].dimensions == (2, 3)
            assert (z == 3).all()


def request_with_inputs(request: Any, shape: tuple[int, ...]) -> Any:
    given = tuple(replace(each, dimensions=shape) for each in request.inputs)
    return replace(request, inputs=given)


class TestFences:
    async def test_it_waits_here_and_is_an_ordinary_execution_then(self) -> None:
        async with adapted(V1_0) as (device, driver):
            prepared = await prepare(device, addition(4).model)
            gate, source = SyncFence.pair()
            request, z = sums(4)
            status, fence, callback = prepared.execute_fenced(
                request, [gate], YES, None, None, None
            )
            assert status is NONE
            await asyncio.sleep(0.01)
            assert fence.status is None
            assert "execute" not in driver.names()
            assert callback.get_execution_info()[0] is FAILED
            source.signal()
            await fence
            assert (z == 3).all()
            status, launched, fenced = callback.get_execution_info()
            assert status is NONE
            assert launched.time_in_driver >= fenced.time_in_driver + 5_000

    async def test_closing_fails_what_waits(self) -> None:
        gate, _source = SyncFence.pair()
        async with adapted(V1_1) as (device, _):
            prepared = await prepare(device, addition(4).model)
            _, fence, callback = prepared.execute_fenced(
                sums(4)[0], [gate], NO, None, None, None
            )
        with pytest.raises(AsyncnnError):
            await fence
        assert callback.get_execution_info()[0] is ErrorStatus.DEVICE_UNAVAILABLE
        launched, result = await execute(prepared, sums(4)[0])
        assert launched is result.status is ErrorStatus.DEVICE_UNAVAILABLE
        assert device.get_status() is DeviceStatus.OFFLINE


async def test_pools_that_a_version_has_not_are_refused() -> None:
    async with adapted(V1_0) as (device, driver):
        prepared = await prepare(device, addition(4).model)
        request, _ = sums(4)
        blob = replace(from_buffer(np.zeros(16, np.uint8)), name="hardware_buffer_blob")
        odd = replace(request, pools=(blob, *request.pools[1:]))
        launched, result = await execute(prepared, odd)
        assert launched is result.status is FAILED
        assert "HAL 1.0 does not have the request's pools" in result.reason
        assert "execute" not in driver.names()


async def test_a_driver_of_1_2_caches_models_and_serves_bursts(tmp_path: Path) -> None:
    settings = DeviceSettings(cache_key_file=str(tmp_path / "key"))
    async with ReferenceDevice(settings) as device:
        driver = Driver(VersionedDevice(device), V1_2)
        async with OlderDriver(driver, settings) as older:
            assert older.get_number_of_cache_files_needed() == (
                device.get_number_of_cache_files_needed()
            )
            cached = through_cache(older)
            prepared = await prepare(cached, addition(4).model)
            assert "prepare_model_from_cache" in driver.names()
            data = np.zeros(16, np.uint8)
            pools = tuple(from_buffer(data) for _ in range(3))
            request = replace(sums(4)[0], pools=pools)
            result = await PATHS["burst"](prepared, request, DEFAULT_OPTIONS)
            assert result.status is NONE
            assert "configure_execution_burst" in driver.names()
            assert "execute_1_2" not in driver.names()
