"""Whose regions a driver gives to its engines."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import asyncnn
from asyncnn import NamedModel
from asyncnn.devices.auto_device import AutoDevice
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.interfaces import IPreparedModel
from asyncnn.hal.refusals import PrepareArguments
from asyncnn.hal.types import ExecutionPreference, Priority
from asyncnn.runtime.model_cache import prepare
from asyncnn.runtime.opening_devices import connect
from asyncnn.service import Server
from asyncnn.service.driver import server
from asyncnn.service.process import Peer
from tests.tools.test_comparison import addition_in_onnx

OTHER_UID = 4711
TWO = np.full((4, 2), 2, np.float32)


@pytest.fixture
def region() -> NamedModel:
    pytest.importorskip("onnxruntime")
    return asyncnn.load(addition_in_onnx(), input_shapes={"x": (4, 2)})


@pytest.fixture(params=["own", "other", "trusted"])
def user(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    who: str = request.param
    if who != "own":
        monkeypatch.setattr(server, "peer_of", lambda _: Peer(7, OTHER_UID))
    return who


async def test_other_users_have_regions_translated_unless_they_are_trusted(
    region: NamedModel, user: str, tmp_path: Path
) -> None:
    path = tmp_path / "driver.sock"
    options = {"allowed_uids": [OTHER_UID], "trust_regions": user == "trusted"}
    async with (
        AutoDevice() as hal,
        Server(hal, path, **options),
        connect(path) as device,
    ):
        names = [each.name for each in device.hal.get_supported_extensions()[1]]
        is_run = user != "other"
        assert ("org.asyncnn.onnx" in names) == is_run
        prepared = await device.prepare(region)
        given = {
            info.name: np.full(info.shape, 2, np.float32) for info in region.inputs
        }
        (result,) = (await prepared.run(given)).values()
        assert np.all(result == 4)
        if is_run:
            await bare(device, region)
            return
        with pytest.raises(GeneralFailureError, match="for its own user alone"):
            await bare(device, region)
        status, _ = await device.hal.get_supported_operations_1_3(region.model)
        assert status is GeneralFailureError.status


async def bare(device: asyncnn.Device, named: NamedModel) -> IPreparedModel:
    """Prepare a model as a client does that asks for nothing first."""
    given = ExecutionPreference.FAST_SINGLE_ANSWER, Priority.MEDIUM, None
    return await prepare(device.hal, PrepareArguments(replace(named.model), *given))
