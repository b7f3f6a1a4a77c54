"""Devices by name: built in, brought by packages, and broken ones."""

import importlib.metadata
import logging
from contextlib import asynccontextmanager
from importlib.metadata import EntryPoint, EntryPoints

import numpy as np
import pytest

import asyncnn
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.hal.errors import (
    EngineUnavailableError,
    GeneralFailureError,
    InvalidArgumentError,
)
from asyncnn.hal.types import DeviceType, OperationType
from asyncnn.runtime.framework.device_registry import ENTRY_POINTS, registered_devices
from asyncnn.runtime.framework.sample_devices import Minimal, Quant
from tests.runtime.framework.mixed import assert_same, expected, inputs, mixed

HERE = __name__


@asynccontextmanager
async def working(settings: DeviceSettings):
    async with ReferenceDevice(settings) as device:
        yield device


def raising(settings: DeviceSettings):
    raise ZeroDivisionError("out of\norder")


def nonsense(settings: DeviceSettings):
    return 7


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {
        "good": f"{HERE}:working",
        "raising": f"{HERE}:raising",
        "nonsense": f"{HERE}:nonsense",
        "missing": "no_such_module:device",
        "no-attribute": f"{HERE}:absent",
        "no-callable": f"{HERE}:HERE",
        "reference": f"{HERE}:nonsense",
        "a,b": f"{HERE}:working",
    }
    points = EntryPoints(EntryPoint(n, p, ENTRY_POINTS) for n, p in places.items())
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)


def test_those_of_packages_come_last(
    packages: None, caplog: pytest.LogCaptureFixture
) -> None:
    names = asyncnn.device_names()
    assert " is not used: asyncnn has a device of that name" in caplog.text
    assert " is not used: a name has no comma and no colon" in caplog.text
    assert names[0] == "reference"
    assert names.index("good") > names.index("sample-all")
    assert "a,b" not in names
    assert registered_devices()["reference"].origin == "asyncnn"


async def test_a_device_of_a_package_is_opened_by_its_name(packages: None) -> None:
    async with asyncnn.open_device("good") as device:
        assert device.name == "good"
        assert_same(
            await (await device.prepare(mixed())).run(inputs()),
            await expected(inputs()),
        )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raising", "ZeroDivisionError: out of order"),
        ("nonsense", "no asynchronous context manager"),
        ("missing", "No module named 'no_such_module'"),
        ("no-attribute", "absent"),
        ("no-callable", "cannot be called"),
    ],
)
async def test_a_broken_one_is_one_clear_line(
    packages: None, name: str, reason: str
) -> None:
    with pytest.raises(GeneralFailureError, match=reason) as caught:
        async with asyncnn.open_device(name):
            pass
    assert f"device {name!r} of " in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_broken_ones_are_left_out_of_a_framework(
    packages: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with asyncnn.open_device("framework") as device:
            names = [member.name for member in device.hal.members]
            assert names[-1] == "reference"
            assert "good" in names
            assert "auto" not in names or not {"accelerated", "onnxruntime"} & {*names}
            assert not {"raising", "nonsense", "missing"} & set(names)
            outputs = await (await device.prepare(mixed())).run(inputs())
            for name, right in (await expected(inputs())).items():
                # The accelerated device is one of them: codes are within one step.
                np.testing.assert_allclose(outputs[name], right, atol=0.051)
    assert "out of order" in caplog.text
    with pytest.raises(GeneralFailureError, match="out of order"):
        async with asyncnn.open_devices("raising"):
            pass


async def test_a_framework_knows_providers_that_are_not_installed() -> None:
    with pytest.raises(EngineUnavailableError, match="nowhere"):
        async with asyncnn.open_device("framework:onnxruntime-nowhere"):
            pass


@pytest.mark.parametrize(
    "name", ["nobody", "framework:nobody", "framework:", "framework:framework"]
)
async def test_an_unknown_name_tells_what_there_is(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="known: reference"):
        async with asyncnn.open_device(name):
            pass


async def test_a_framework_of_devices_that_are_named() -> None:
    async with asyncnn.open_device("framework:sample-quant,reference") as device:
        assert [m.name for m in device.hal.members] == ["sample-quant", "reference"]
        assert device.type is DeviceType.CPU
        assert "sample-quant=" in device.version
        assert device.capabilities.operand_performance[5].info.exec_time == 0.5


async def test_samples_refuse_what_is_not_of_their_kind() -> None:
    model = mixed()
    async with Quant() as quant, Minimal() as minimal:
        _, supports = await quant.get_supported_operations_1_3(model.model)
        kinds = [each.type for each in model.model.main.operations]
        taken = {k for k, can in zip(kinds, supports, strict=True) if can}
        assert taken == {OperationType.RELU6, OperationType.DEQUANTIZE}
        _, supports = await minimal.get_supported_operations_1_3(model.model)
        assert not any(supports)
        with pytest.raises(GeneralFailureError, match="does not support all"):
            async with asyncnn.open_device("sample-quant") as device:
                await device.prepare(model)


@pytest.mark.parametrize("partition", [0, 1, 2])
async def test_models_are_divided_as_the_setting_says(partition: int) -> None:
    shape = (768, 768)
    async with asyncnn.open_devices(
        "sample-float-fast", "sample-quant", partition=partition
    ) as device:
        prepared = await device.prepare(mixed(shape))
        outputs = await prepared.run(inputs(shape))
        assert_same(outputs, await expected(inputs(shape), mixed(shape)))
        if partition:
            assert {"sample-float-fast", "sample-quant"} <= set(outputs.route.devices)
        else:
            assert outputs.route.devices == ("reference",)
