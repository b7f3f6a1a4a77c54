"""Where tests have a device: in this process or behind a socket, and as regions."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from asyncnn.devices import DeviceSettings, InProcessDevice, ReferenceDevice
from asyncnn.devices.accelerated import AcceleratedDevice
from asyncnn.devices.onnxruntime.onnx_device import OnnxRuntimeDevice
from asyncnn.extensions.regions import LITERT, ONNX
from asyncnn.hal.interfaces import IDevice
from asyncnn.runtime.device import Device
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.service import Server
from asyncnn.service.process import DriverProcess, driver_process
from tests.networks import as_regions

PLACES = ("inprocess", "remote")
WAYS = ("lane", "inline", "remote")
"""Runs of the first are on its lane only, those of the second inline if they can be."""

REGIONS = {
    "accelerated regions": (AcceleratedDevice, LITERT),
    "onnxruntime regions": (OnnxRuntimeDevice, ONNX),
}
"""Devices with an engine, and whose regions the models of `networks` are there."""

_INLINE_BELOW_US = {"lane": 0.0, "inline": 1e9}


@contextmanager
def kind_at(place: str) -> Iterator[type[InProcessDevice]]:
    """Give the kind of device that is meant; let models be regions where it says so."""
    kind: type[InProcessDevice] = ReferenceDevice
    if place == "accelerated":
        pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
        kind = AcceleratedDevice
    if place not in REGIONS:
        yield kind
        return
    kind, engine = REGIONS[place]
    package = "ai_edge_litert" if engine == LITERT else "onnxruntime"
    if find_spec(package) is None or find_spec("onnx") is None:
        pytest.skip(f"{package} or onnx is not installed")
    with as_regions(engine):
        yield kind


@asynccontextmanager
async def faced(
    place: str, opening: AbstractAsyncContextManager[IDevice], folder: Path
) -> AsyncIterator[Device]:
    """Give applications a device, by a server in ``folder`` if it is ``remote``."""
    async with opening as hal:
        if place != "remote":
            yield Device(place, hal)
            return
        path = folder / "driver.sock"
        async with Server(hal, path), connect(path) as remote:
            yield remote


@asynccontextmanager
async def placed(
    place: str, opening: AbstractAsyncContextManager[IDevice], folder: Path
) -> AsyncIterator[IDevice]:
    """Give the HAL's interface of such a device."""
    async with faced(place, opening, folder) as device:
        yield device.hal


@asynccontextmanager
async def served(
    path: Path, settings: DeviceSettings | None = None, **options: Any
) -> AsyncIterator[Device]:
    """Give a client of a server that has the reference device, and these options."""
    async with (
        ReferenceDevice(settings) as hal,
        Server(hal, path, **options),
        connect(path) as device,
    ):
        yield device


def device_at(*places: str, settings: DeviceSettings | None = None) -> Any:
    """Return a fixture: a device as applications have it, in each of some places."""
    wanted = settings or DeviceSettings()

    @pytest.fixture(params=places)
    async def device(
        request: pytest.FixtureRequest, tmp_path: Path
    ) -> AsyncIterator[Device]:
        place = request.param
        limit = _INLINE_BELOW_US.get(place, wanted.inline_below_us)
        with kind_at(place) as kind:
            opening = kind(replace(wanted, inline_below_us=limit))
            async with faced(place, opening, tmp_path) as opened:
                yield opened

    return device


def driver_of(device: str | None = None) -> Any:
    """Return a fixture: a driver for all tests of a module, which leave it as it is.

    To start one takes longer than what most tests do with it.
    """

    @pytest.fixture(scope="module")
    def driver() -> Iterator[DriverProcess]:
        with driver_process(device=device) as driver:
            yield driver

    return driver


def opened(where: str, request: pytest.FixtureRequest) -> Any:
    """Open a device by its name, or the fixture ``driver``."""
    if where == "driver":
        return connect(request.getfixturevalue(where).path)
    return open_device(where)
