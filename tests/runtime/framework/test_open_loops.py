"""Loops over values of unknown size: a framework runs them, drivers need not."""

import numpy as np
import pytest
from msgspec.structs import replace

import asyncnn
from asyncnn import NamedModel
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.types import Model
from asyncnn.hal.validate import validate_model
from asyncnn.runtime.device import Device
from tests.engine.test_control_flow import X, scalar, while_model

OPEN = (0,)


def loop() -> NamedModel:
    """``while i < n: i, x = i + 1, x + x``, and x is of any length."""
    return NamedModel.of(while_model(OPEN), ("i", "x", "n"), ("count", "y"))


async def doubled(device: Device, times: int) -> np.ndarray:
    prepared = await device.prepare(loop())
    outputs = await prepared.run({"i": scalar(0), "x": X, "n": scalar(times)})
    assert outputs["count"].tolist() == [times]
    return outputs["y"]


def test_they_are_legal_for_client_libraries_alone() -> None:
    model = while_model(OPEN)
    for _ in range(2):  # what one of them knows is not what the other does
        validate_model(model, runtime_only_features=True)
        with pytest.raises(InvalidArgumentError, match=r"unknown dimensions \[0\]"):
            validate_model(model)


def test_all_other_rules_hold_for_them() -> None:
    model = while_model(OPEN)
    operands = list(model.main.operands)
    operands[-1] = replace(operands[-1], number_of_consumers=1)
    wrong: Model = replace(model, main=replace(model.main, operands=tuple(operands)))
    with pytest.raises(InvalidArgumentError, match="M13"):
        validate_model(wrong, runtime_only_features=True)


@pytest.mark.parametrize("name", ["framework", "framework:sample-float-fast"])
async def test_a_framework_runs_them_on_its_cpu(name: str) -> None:
    async with asyncnn.open_device(name) as device:
        np.testing.assert_array_equal(await doubled(device, 3), X * 8)
        np.testing.assert_array_equal(await doubled(device, 0), X)


async def test_a_framework_runs_them_here_and_not_in_a_driver() -> None:
    async with (
        asyncnn.connect(device="reference") as driver,
        asyncnn.open_devices(driver) as device,
    ):
        np.testing.assert_array_equal(await doubled(device, 3), X * 8)
        with pytest.raises(InvalidArgumentError, match="unknown dimensions"):
            await doubled(driver, 3)


async def test_a_driver_refuses_them() -> None:
    async with asyncnn.open_device("reference") as device:
        with pytest.raises(InvalidArgumentError, match="unknown dimensions"):
            await doubled(device, 3)
        # So does a framework whose CPU it is.
        async with asyncnn.open_devices(device) as framework:
            with pytest.raises(AsyncnnError, match="unknown dimensions"):
                await doubled(framework, 3)
