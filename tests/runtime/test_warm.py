"""Models that are prepared warm have run once: their memory was touched."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from functools import partial

import numpy as np
import pytest

import asyncnn
from asyncnn.tools.mobilenets import mobilenet_v1
from tests.engine.test_control_flow import while_model
from tests.measuring import best_of
from tests.networks import addition
from tests.runtime.onnx.test_packages import path_of
from tests.runtime.stateful import FIRST, X, counting
from tests.waits import cancelled

MIB = 2**20
DEVICES = ("reference", "accelerated")
ENDLESS = while_model((4,), endless=True)


def opened(
    name: str, settings: asyncnn.DeviceSettings | None = None
) -> AbstractAsyncContextManager[asyncnn.Device]:
    if name == "accelerated":
        pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
    if name == "driver":
        return asyncnn.connect(device="reference")
    if name == "framework":
        return asyncnn.open_devices("reference")
    return asyncnn.open_device(name, settings=settings)


@pytest.fixture(params=[*DEVICES, "driver", "framework"])
async def device(request: pytest.FixtureRequest) -> AsyncIterator[asyncnn.Device]:
    async with opened(request.param) as device:
        yield device


@pytest.fixture(params=[*DEVICES, "driver"])
async def counting_device(
    request: pytest.FixtureRequest,
) -> AsyncIterator[asyncnn.Device]:
    """One that keeps statistics."""
    async with opened(request.param) as device:
        yield device


async def runs_of(device: asyncnn.Device) -> int:
    return (await device.statistics()).executions.ended


class TestRunning:
    async def test_it_has_run_once_only_if_that_was_asked_for(
        self, counting_device: asyncnn.Device
    ) -> None:
        device = counting_device
        await device.prepare(addition(4))
        assert await runs_of(device) == 0
        prepared = await device.prepare(addition(4), warm=True)
        assert await runs_of(device) == 1
        x = np.ones(4, np.float32)
        outputs = await prepared.run([x, x])
        np.testing.assert_array_equal(outputs["z"], 2 * x)

    async def test_states_begin_with_their_first_values(
        self, device: asyncnn.Device
    ) -> None:
        prepared = await device.prepare(counting(), warm=True)
        async with prepared.session() as session:
            outputs = await session.run(X)
            np.testing.assert_array_equal(outputs["y"], 2 * X)
            assert (await session.state())["steps"] == FIRST + 1

    async def test_what_leaves_shapes_to_requests_is_refused_before_anything(
        self, device: asyncnn.Device
    ) -> None:
        with pytest.raises(asyncnn.InvalidArgumentError, match="of x, y come with"):
            await device.prepare(addition(0, 4), warm=True)
        assert await device.prepare(addition(0, 4))

    async def test_what_the_run_raises_is_raised(self, device: asyncnn.Device) -> None:
        with pytest.raises(asyncnn.MissedDeadlineError):
            await device.prepare(ENDLESS, warm=True, timeout=0.3)
        assert await device.prepare(addition(4), warm=True)

    async def test_cancelling_stops_the_run(
        self, counting_device: asyncnn.Device
    ) -> None:
        device = counting_device
        preparing = asyncio.create_task(device.prepare(ENDLESS, warm=True))

        async def runs(count: int) -> None:
            async with asyncio.timeout(20):
                while (await device.statistics()).executions.running != count:  # noqa: ASYNC110
                    await asyncio.sleep(0)

        await runs(1)
        await cancelled(preparing)
        await runs(0)


async def resident_bytes(device: asyncnn.Device) -> int:
    return (await device.statistics()).resident_bytes


@pytest.mark.alone
@pytest.mark.parametrize("name", DEVICES)
async def test_only_a_warm_one_takes_the_memory_of_its_runs(name: str) -> None:
    # Of the same contents, they would share what is compiled.
    models = [
        asyncnn.load(mobilenet_v1(quantized=False, size=640, width=0.25, seed=seed))
        for seed in range(3)
    ]
    one_lane = asyncnn.DeviceSettings(lanes=1)  # nor is one made for several threads
    async with opened(name, one_lane) as device:
        kept = [await device.prepare(models[0])]  # what the first one takes of its own
        await kept[0].run(np.zeros((1, 640, 640, 3), np.float32))
        before = await resident_bytes(device)
        kept.append(await device.prepare(models[1]))
        cold = await resident_bytes(device)
        kept.append(await device.prepare(models[2], warm=True))
        warm = await resident_bytes(device)
    assert cold - before < (warm - cold) / 2


async def first_by_second(device: asyncnn.Device, model: asyncnn.NamedModel) -> float:
    """Return how many times as long as the second run the first one takes."""
    prepared = await device.prepare(model, warm=True)
    x = np.zeros(prepared.inputs[0].dimensions, np.float32)
    taken: list[float] = []
    for _ in range(2):
        began = time.perf_counter()
        await prepared.run([x])
        taken.append(time.perf_counter() - began)
    return taken[0] / taken[1]


@pytest.mark.alone
@pytest.mark.parametrize("name", DEVICES)
async def test_the_first_run_takes_about_as_long_as_the_second(name: str) -> None:
    model = asyncnn.load(mobilenet_v1(quantized=False, size=320, width=0.25))
    async with opened(name) as device:
        await best_of(6, partial(first_by_second, device, model), 1.5)


@pytest.mark.alone
async def test_so_it_does_for_a_detector_of_text() -> None:
    path = path_of("rapidocr/models/PP-OCRv6_det_small.onnx")
    model = asyncnn.load(path, input_shapes={"x": (1, 3, 320, 320)})
    async with opened("accelerated") as device:
        await best_of(6, partial(first_by_second, device, model), 1.5)
