"""Devices of every kind report what was measured, and always the same."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

import asyncnn
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.devices.measured_capabilities import (
    CapabilityMeasurement,
    ReferenceWorkload,
    capabilities_of,
    store_measurement,
)
from asyncnn.hal.interfaces import IDevice
from asyncnn.hal.performance import kernel_capabilities
from asyncnn.hal.types import Capabilities, ErrorStatus, HalVersion, PerformanceInfo
from asyncnn.hal.versions import VersionedDevice, convert_to, v1_0, v1_1, v1_2
from tests.places import PLACES, placed


@pytest.fixture
def measured(state: Path, measurement: CapabilityMeasurement) -> Capabilities:
    store_measurement(measurement)
    return capabilities_of(measurement.exec_times)


@pytest.fixture(params=PLACES)
async def device(
    request: pytest.FixtureRequest, measured: Capabilities, tmp_path: Path
) -> AsyncIterator[IDevice]:
    """A device that was opened after the measurement."""
    async with placed(request.param, ReferenceDevice(), tmp_path) as device:
        yield device


async def test_a_device_reports_what_was_measured(
    device: IDevice, measured: Capabilities
) -> None:
    assert device.get_capabilities_1_3() == (ErrorStatus.NONE, measured)
    assert kernel_capabilities(device) == measured


async def test_its_answer_stays_as_long_as_it_is_open(
    device: IDevice, measured: Capabilities, measurement: CapabilityMeasurement
) -> None:
    times = dict.fromkeys(ReferenceWorkload, 3.0)
    store_measurement(replace(measurement, exec_times=times))
    assert device.get_capabilities_1_3()[1] == measured
    async with ReferenceDevice() as later:
        assert later.get_capabilities_1_3()[1] == capabilities_of(times)


async def test_older_versions_have_the_figures_that_they_know_of(
    device: IDevice, measurement: CapabilityMeasurement, measured: Capabilities
) -> None:
    old = VersionedDevice(device)
    float32, quantised, relaxed = (
        PerformanceInfo(time, time)
        for time in (
            measurement.exec_times[ReferenceWorkload.TENSOR_FLOAT32],
            measurement.exec_times[ReferenceWorkload.TENSOR_QUANT8_ASYMM],
            measurement.exec_times[ReferenceWorkload.RELAXED_FLOAT32],
        )
    )
    assert old.get_capabilities()[1] == v1_0.Capabilities(float32, quantised)
    assert old.get_capabilities_1_1()[1] == v1_1.Capabilities(
        float32, quantised, relaxed
    )
    newest_but_one = old.get_capabilities_1_2()[1]
    assert isinstance(newest_but_one, v1_2.Capabilities)
    assert newest_but_one == convert_to(measured, HalVersion.V1_2)


async def test_two_opens_give_the_same(measured: Capabilities) -> None:
    for _ in range(2):
        async with asyncnn.open_device() as device:
            assert device.capabilities == measured


async def test_the_settings_may_name_another_file(
    state: Path, tmp_path: Path, measurement: CapabilityMeasurement
) -> None:
    path = str(tmp_path / "figures.json")
    store_measurement(measurement, path)
    async with asyncnn.open_device(
        settings=DeviceSettings(capabilities_file=path)
    ) as device:
        assert device.capabilities == capabilities_of(measurement.exec_times)


async def test_a_driver_process_reads_it_when_it_starts(measured: Capabilities) -> None:
    async with asyncnn.connect() as device:
        assert device.capabilities == measured
