"""Measuring gives a figure for each workload, and does not take long."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

import asyncnn
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.devices.measured_capabilities import ModelTime
from asyncnn.hal.types import ExecutionPreference, OperandType
from asyncnn.runtime.framework.opening import OpenDevice, open_framework
from asyncnn.service import Server
from asyncnn.tools.bench.environment import PeerMissingError
from asyncnn.tools.capabilities import (
    CapabilityMeasurement,
    ReferenceWorkload,
    Surroundings,
    calibration,
    load_measurement,
    measure_capabilities,
    store_measurement,
)
from asyncnn.tools.capabilities.calibration import Subject, measured_models
from asyncnn.tools.mobilenets import mobilenet_v1
from asyncnn.tools.reference_models import ReferenceModel, speech_recognition
from tests.networks import chain
from tests.runtime.framework.crippled import CrippledDevice


@pytest.fixture
async def measured(
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[CapabilityMeasurement, list[str]]:
    """A hasty measurement, and the workloads whose progress was told."""
    monkeypatch.setattr(calibration, "_BATCH_US", 1.0)
    told = []

    def progress(workloads: Sequence[Subject]) -> Iterable[Subject]:
        for workload in workloads:
            yield workload
            told.append(workload.name)

    return (await measure_capabilities(rounds=1, models=False, progress=progress), told)


async def test_a_measurement_can_be_stored_and_found_again(
    measured: tuple[CapabilityMeasurement, list[str]], tmp_path: object
) -> None:
    measurement, told = measured
    assert told == list(ReferenceWorkload)
    assert measurement.surroundings == Surroundings.present()
    path = f"{tmp_path}/figures.json"
    store_measurement(measurement, path)
    assert load_measurement(path) == measurement


async def test_figures_have_three_digits(
    measured: tuple[CapabilityMeasurement, list[str]],
) -> None:
    measurement, _ = measured
    assert list(measurement.power_usages) == list(ReferenceWorkload)
    figures = *measurement.exec_times.values(), *measurement.power_usages.values()
    for time in figures:
        assert time == float(f"{time:.3g}") > 0


async def test_a_driver_that_runs_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "_BATCH_US", 1.0)
    small = partial(mobilenet_v1, size=32, width=0.25, quantized=False)
    models = {"image": ReferenceModel(small)}
    monkeypatch.setattr(calibration, "REFERENCE_MODELS", models)
    path = tmp_path / "driver.sock"
    async with ReferenceDevice() as hal, Server(hal, path):
        found = await measure_capabilities(rounds=1, socket=path)
        ended = hal.statistics().executions.ended
    assert set(found.model_times) == {"image"}
    assert not found.power_usages
    assert found.model_times["image"].power is None
    assert ended >= len(found.exec_times) + 1
    with pytest.raises(asyncnn.NoDriverError):
        await measure_capabilities(rounds=1, socket=path)


class TestByModels:
    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("ai_edge_litert")
        small = partial(mobilenet_v1, size=32, width=0.25)
        models = {
            "image_float": ReferenceModel(partial(small, quantized=False)),
            "image_int8": ReferenceModel(partial(small, quantized=True), True),
            "speech": ReferenceModel(partial(speech_recognition, cells=8), steps=3),
        }
        monkeypatch.setattr(calibration, "REFERENCE_MODELS", models)
        monkeypatch.setattr(calibration, "workloads", tuple)

    async def test_each_is_measured_after_the_workloads(self) -> None:
        told: list[str] = []

        def progress(subjects: Sequence[Subject]) -> Iterable[Subject]:
            told.extend(subject.name for subject in subjects)
            return subjects

        models = measured_models()
        assert [each.name for each in models] == ["image_float", "image_int8", "speech"]
        async with asyncnn.open_device("reference") as device:
            times = [await each.time(device, rounds=1) for each in models]
        assert [each.quantized for each in times] == [False, True, False]
        assert all(each.time == float(f"{each.time:.3g}") > 0 for each in times)
        assert [each.float16 is None for each in times] == [False, True, False]
        with pytest.raises(ValueError, match="nothing is said of"):
            await measure_capabilities(rounds=1, progress=progress)
        assert told == ["image_float", "image_int8", "speech"]

    def test_without_litert_there_are_none(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def missing() -> str:
            raise PeerMissingError("LiteRT is not installed")

        monkeypatch.setattr(calibration, "litert_version", missing)
        assert measured_models() == []


async def test_the_accelerated_device_reports_what_the_models_have_taken(
    tmp_path: Path,
) -> None:
    pytest.importorskip("ai_edge_litert")
    times = {
        "a": ModelTime(0.5, quantized=False, power=2.0),
        "b": ModelTime(0.125, quantized=False, power=8.0),
        "c": ModelTime(0.0625, quantized=True),
    }
    path = f"{tmp_path}/figures.json"
    ones = dict.fromkeys(ReferenceWorkload, 1.0)
    for measured, expected in (({}, (0.3, 0.1)), (times, (0.25, 0.0625))):
        found = replace(
            CapabilityMeasurement.now(ones, measured), boot="an earlier one"
        )
        store_measurement(found, path)
        settings = DeviceSettings(capabilities_file=path)
        async with asyncnn.open_device("accelerated", settings=settings) as device:
            infos = {
                entry.type: entry.info
                for entry in device.capabilities.operand_performance
            }
            reported = {type_: info.exec_time for type_, info in infos.items()}
            assert device.hal.has_measured_capabilities is bool(measured)
        assert reported[OperandType.TENSOR_FLOAT32] == pytest.approx(expected[0])
        assert reported[OperandType.TENSOR_QUANT8_ASYMM] == pytest.approx(expected[1])
        assert reported[OperandType.TENSOR_INT32] == 1.0
        power = infos[OperandType.TENSOR_FLOAT32].power_usage
        assert power == pytest.approx(4.0 if measured else 0.3)


def measured_before(tmp_path: Path, kernels: float) -> DeviceSettings:
    """Return settings by which the accelerated device is measured, and its kernels.

    These take so much of plain NumPy's time.
    """
    times = {
        "a": ModelTime(0.25, quantized=False, power=4.0),
        "b": ModelTime(0.125, quantized=True),
    }
    exec_times = dict.fromkeys(ReferenceWorkload, kernels)
    found = CapabilityMeasurement.now(exec_times, times)
    path = f"{tmp_path}/figures.json"
    store_measurement(replace(found, boot="an earlier one"), path)
    return DeviceSettings(capabilities_file=path)


@pytest.mark.parametrize("kernels", [0.02, 1.0])
@pytest.mark.parametrize("preference", ExecutionPreference)
async def test_low_power_chooses_by_the_energy_that_was_measured(
    tmp_path: Path, preference: ExecutionPreference, kernels: float
) -> None:
    pytest.importorskip("ai_edge_litert")
    settings = measured_before(tmp_path, kernels)
    async with asyncnn.open_device("framework", settings=settings) as device:
        plan = await device.hal.plan(chain(3, 64).model, preference)
    chosen = {plan.devices[each.device] for each in plan.division.partitions}
    is_sparing = preference is ExecutionPreference.LOW_POWER
    assert (chosen == {"reference"}) is is_sparing


@pytest.mark.parametrize("name", ["accelerated", "framework"])
async def test_expectations_do_not_depend_on_the_kernels_beside_plain_numpy(
    tmp_path: Path, name: str
) -> None:
    pytest.importorskip("ai_edge_litert")
    expected: list[float] = []
    for kernels in (0.02, 1.0):
        settings = measured_before(tmp_path, kernels)
        async with asyncnn.open_device(name, settings=settings) as device:
            told = await asyncnn.explain(device, chain(3, 64))
            expected.append(sum(each.expected_us for each in told.segments))
    assert min(expected) > 0
    assert expected[0] == pytest.approx(expected[1])


async def test_devices_of_others_declare_what_the_cpu_of_a_framework_takes(
    tmp_path: Path,
) -> None:
    settings = measured_before(tmp_path, 0.02)
    async with ReferenceDevice() as inner:
        other = CrippledDevice(inner, figure=0.5)
        async with open_framework(
            settings, devices=[OpenDevice("other", other)]
        ) as hal:
            plan = await hal.plan(chain(3, 64).model, ExecutionPreference.LOW_POWER)
        other.bursts.close()
    assert [plan.devices[each.device] for each in plan.division.partitions] == ["other"]
