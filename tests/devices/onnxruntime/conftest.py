"""The device, in this process and in a driver."""

import importlib.util
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest

import asyncnn
from asyncnn.devices import DeviceSettings

pytest.importorskip("onnx", reason="the package onnx is not installed")
if importlib.util.find_spec("onnxruntime") is None:  # the module is not to be imported
    pytest.skip("ONNX Runtime is not installed", allow_module_level=True)


def opened(where: str) -> AbstractAsyncContextManager[asyncnn.Device]:
    """Open the device in this process, on its lanes only, or a driver with it."""
    if where == "driver":
        return asyncnn.connect(device="onnxruntime")
    return asyncnn.open_device(
        "onnxruntime", settings=DeviceSettings(inline_below_us=0, lanes=2)
    )


@pytest.fixture(params=["inprocess", "driver"])
async def device(request: pytest.FixtureRequest) -> AsyncIterator[asyncnn.Device]:
    async with opened(request.param) as device:
        yield device
