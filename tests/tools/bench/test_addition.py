"""The model of benchmarks that time everything but computing."""

import numpy as np

from asyncnn.runtime.device import open_device
from asyncnn.tools.bench.addition import tiny_addition


async def test_the_model_adds() -> None:
    x, y = np.arange(4, dtype=np.float32), np.full(4, 0.5, np.float32)
    async with open_device() as device:
        prepared = await device.prepare(tiny_addition())
        outputs = await prepared.run([x, y])
    np.testing.assert_array_equal(outputs["sum"], x + y)
