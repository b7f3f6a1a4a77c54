"""Many runs at once, cancelled and late at random: each ends once, as it should."""

import asyncio
import random
from collections import Counter

import numpy as np
import pytest

from asyncnn import Device, PreparedModel
from asyncnn.hal.errors import MissedDeadlineError
from asyncnn.hal.types import Priority
from tests.devices.onnxruntime.conftest import opened
from tests.devices.onnxruntime.graphs import (
    F32,
    looping,
    port,
    region,
    tiling,
    turned,
    turns,
)

AT_ONCE = 40


async def models(device: Device) -> list[PreparedModel]:
    """Return the same graph of all priorities, and two with open lengths.

    Of the last, lengths of outputs mostly follow from those of inputs, but not always.
    """
    fixed = looping()
    buffer = fixed.model.pools[0].buffer
    assert buffer is not None
    ends = [port(np.int64, 1), port(F32, 0, 0)]
    open_ = region(bytes(buffer), ends, [port(F32, 0, 0)])
    made = [await device.prepare(fixed, priority=priority) for priority in Priority]
    return [*made, *[await device.prepare(each) for each in (open_, tiling("n"))]]


async def one(prepared: PreparedModel, dice: random.Random) -> str:
    is_tiling = prepared.outputs[0].name == "y"
    if is_tiling:
        times = dice.choice([1000, 1000, 1000, 1000, 1000, 1000, 1001])
        x = np.arange(dice.choice([20, 30]), dtype=F32)
        inputs, expected = [x, np.array([times])], np.tile(x, times)
    else:
        times = dice.choice([0, 1, 5, 200, 2000])
        inputs, expected = turns(times), turned(times)
    timeout = dice.choice([None, None, 1e-4, 1e-3, 0.02, 5.0])
    path = dice.choice(["async", "sync"])
    run = asyncio.ensure_future(prepared.run(inputs, timeout=timeout, path=path))
    if dice.random() < 0.3:
        await asyncio.sleep(dice.choice([0, 0, 1e-4, 1e-3]))
        run.cancel()
    try:
        outputs = await run
    except asyncio.CancelledError:
        return "cancelled"
    except MissedDeadlineError:
        assert timeout is not None
        return "late"
    np.testing.assert_allclose(outputs[0], expected, rtol=1e-5)
    return "done"


@pytest.mark.parametrize("where", ["inprocess", "driver"])
@pytest.mark.parametrize(
    "runs", [400, pytest.param(8_000, marks=pytest.mark.exhaustive)]
)
async def test_every_run_ends_once(where: str, runs: int) -> None:
    dice = random.Random(runs)
    outcomes: Counter[str] = Counter()
    async with opened(where) as device:
        prepared = await models(device)
        for _ in range(runs // AT_ONCE):
            ended = await asyncio.gather(
                *(one(dice.choice(prepared), dice) for _ in range(AT_ONCE))
            )
            outcomes.update(ended)
        statistics = await device.statistics()
        while statistics.executions.running:
            statistics = await device.statistics()
    assert sum(outcomes.values()) == runs
    assert outcomes["done"] > runs / 10
