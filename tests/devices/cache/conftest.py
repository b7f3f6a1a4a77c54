"""Caching devices on either side of a socket, models, and the files of a client."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.hal.interfaces import IDevice
from tests.devices.cache.client import CacheClient
from tests.places import PLACES, placed


@pytest.fixture
def settings(tmp_path: Path) -> DeviceSettings:
    return DeviceSettings(cache_key_file=str(tmp_path / "state" / "key"))


@pytest.fixture(params=PLACES)
async def device(
    request: pytest.FixtureRequest, settings: DeviceSettings, tmp_path: Path
) -> AsyncIterator[IDevice]:
    """A device that caches models, in this process or behind a socket."""
    async with placed(request.param, ReferenceDevice(settings), tmp_path) as device:
        yield device


@pytest.fixture
def client(device: IDevice, tmp_path: Path) -> CacheClient:
    return CacheClient(device, tmp_path)
