"""Devices that have the extension of these tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from asyncnn.devices import DeviceSettings
from asyncnn.runtime.device import Device
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.service import Server
from tests.extensions.vendor import vendor

SETTINGS = DeviceSettings(extensions=(vendor,))


@pytest.fixture(params=["lane", "inline", "remote"])
async def device(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Device]:
    limit = {"lane": 0.0, "inline": 1e9, "remote": 50.0}[request.param]
    settings = replace(SETTINGS, inline_below_us=limit)
    async with open_device(settings=settings) as device:
        if request.param != "remote":
            yield device
            return
        path = tmp_path / "driver.sock"
        async with Server(device.hal, path), connect(path) as remote:
            yield remote
