"""Preparing, caching, asking, and tensors that stay in the driver."""

import asyncio
import tempfile
from pathlib import Path

import numpy as np

from asyncnn.hal.types import ErrorStatus
from asyncnn.runtime.device import Device
from asyncnn.runtime.model_cache import ModelCache
from tests.networks import chain
from tests.runtime.test_buffers import accumulating
from tests.sweep.scenario import EVERYWHERE, ON_ONE_LOOP, scenario
from tests.sweep.stages import LENGTH, SIZE, Stage, X, check


@scenario(*EVERYWHERE)
async def prepare(stage: Stage) -> None:
    model = await stage.device.prepare(chain(LENGTH, SIZE))
    check(await model.run(X))


@scenario(*EVERYWHERE)
async def several_preparations(stage: Stage) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(stage.device.prepare(chain(60, 4)))


@scenario(*ON_ONE_LOOP)
async def prepare_with_timeout(stage: Stage) -> None:
    await stage.device.prepare(chain(3, 4), timeout=30)


@scenario("remote", "process")
async def supported_operations(stage: Stage) -> None:
    status, supported = await stage.device.hal.get_supported_operations_1_3(
        chain(3, 4).model
    )
    assert status is ErrorStatus.NONE
    assert supported == (True,) * 3


@scenario("remote", "process")
async def statistics(stage: Stage) -> None:
    assert (await stage.device.statistics()).threads


@scenario(*EVERYWHERE)
async def buffers(stage: Stage) -> None:
    model = await stage.device.prepare(accumulating())
    slots = model.output("total"), model.input("h")
    now, following = [await stage.device.buffer_for(*slots) for _ in range(2)]
    ones = np.ones(4, np.float32)
    await now.write(ones)
    await model.run({"x": ones, "h": now}, out={"y": None, "total": following})
    np.testing.assert_array_equal(await following.read(), 2 * ones)


@scenario("lane", "remote", "process")
async def into_a_cache(stage: Stage) -> None:
    folder = Path(tempfile.mkdtemp(dir=stage.folder))
    device = Device("cached", stage.device.hal, cache=ModelCache(folder))
    stage.witness.notice(
        lambda: "" if not any(folder.glob("*.draft")) else "a draft is left"
    )
    model = await device.prepare(chain(LENGTH, SIZE))
    check(await model.run(X))


@scenario("lane", "remote", "process")
async def out_of_a_cache(stage: Stage) -> None:
    cache = ModelCache(stage.folder / "kept")
    device = Device("cached", stage.device.hal, cache=cache)
    model = await device.prepare(chain(LENGTH, SIZE))
    check(await model.run(X))
