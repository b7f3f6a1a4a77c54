"""Executions in a driver process, as they are measured."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncnn.devices import ReferenceDevice
from asyncnn.hal.types import ErrorStatus
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.service import Server
from asyncnn.service.channel import Channel
from asyncnn.tools.bench.bench_waits import execute_call, image_call
from asyncnn.tools.bench.peers import IMAGE_SHAPE, cut, exchanged_bytes


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    return np.random.default_rng(1).random(IMAGE_SHAPE, np.float32)


@pytest.mark.parametrize("in_place", [True, False])
async def test_the_driver_cuts_the_same(image: np.ndarray, in_place: bool) -> None:
    async with open_device() as device:
        call = await image_call(device, image, in_place)
        result = await call()
    assert result.size == 1001
    np.testing.assert_array_equal(result, cut(image))


async def test_echoes_are_as_long_as_messages_of_an_execution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    send = Channel.send

    def watched(self: Channel, data: bytes, fds: Any = ()) -> None:
        sent.append(len(data))
        send(self, data, fds)

    path = tmp_path / "driver.sock"
    async with ReferenceDevice() as hal, Server(hal, path), connect(path) as device:
        call = await execute_call(device)
        for _ in range(2):  # the second one binds the request
            await call()
        monkeypatch.setattr(Channel, "send", watched)
        assert (await call()).status is ErrorStatus.NONE
    exchange = exchanged_bytes()
    # Small numbers take up to two bytes less, timings are what they are.
    assert sent == [
        pytest.approx(exchange.request, abs=12),
        pytest.approx(exchange.response, abs=20),
    ]
