"""What cannot be opened, and why; on which devices a model was computed."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

import asyncnn
from asyncnn import Device
from asyncnn.runtime.framework import Fallback
from tests.networks import addition
from tests.runtime.framework.mixed import DEVICES, WHEREVER_BETTER, inputs, mixed


@pytest.mark.parametrize(
    ("open_it", "words"),
    [
        (lambda: asyncnn.open_device("gpu"), r"no device 'gpu' \(known: reference, "),
        (lambda: asyncnn.open_device("framework:gpu"), "no device 'gpu'"),
        (lambda: asyncnn.open_devices("gpu"), "no device 'gpu'"),
        (lambda: asyncnn.open_devices(7), "7 is no device"),  # type: ignore[arg-type]
        (lambda: asyncnn.open_devices(partition=7), "partition is 7"),
        (lambda: asyncnn.open_devices(fallback="sometimes"), "known: forbid, partial"),
        (
            lambda: asyncnn.open_devices("sample-all", "sample-all"),
            r"two devices of a framework have the name 'sample-all' \(give each",
        ),
    ],
)
async def test_what_cannot_be_opened_says_why(
    open_it: Callable[[], AbstractAsyncContextManager[Device]], words: str
) -> None:
    with pytest.raises(asyncnn.InvalidArgumentError, match=words):
        async with open_it():
            pass


async def test_a_model_that_no_device_supports_names_what_to_ask() -> None:
    async with asyncnn.open_device("sample-quant") as device:
        with pytest.raises(asyncnn.GeneralFailureError, match=r"asyncnn\.explain says"):
            await device.prepare(addition(4))


async def test_the_route_tells_which_device_has_computed() -> None:
    async with asyncnn.open_devices(*DEVICES, framework=WHEREVER_BETTER) as device:
        outputs = await (await device.prepare(mixed())).run(inputs())
    assert outputs.route is not None
    assert outputs.route.devices == (DEVICES[0], DEVICES[1], DEVICES[0])
    assert "operations on sample-quant" in str(outputs.route)


@pytest.mark.parametrize("given", [{}, {"fallback": "partial"}])
async def test_a_setting_of_its_own_goes_before_the_same_one_of_all(given) -> None:
    settings = asyncnn.FrameworkSettings(partition=0, fallback="full")
    async with asyncnn.open_devices(framework=settings, **given) as device:
        assert device.hal.settings.partition == 0
        assert device.hal.settings.fallback is Fallback(given.get("fallback", "full"))
        outputs = await (await device.prepare(mixed())).run(inputs())
    assert outputs.route.devices == ("reference",)
