"""Outputs whose size nobody knows before a run, found out by many runs at once."""

import asyncio

import numpy as np
import pytest

import asyncnn
from tests.networks import addition

AT_ONCE = 24


@pytest.mark.parametrize("is_remote", [False, True], ids=["inprocess", "remote"])
async def test_many_runs_at_once_find_no_more_space_than_they_need(
    is_remote: bool,
) -> None:
    opened = asyncnn.connect() if is_remote else asyncnn.open_device()
    x = np.arange(25_600, dtype=np.float32).reshape(100, 256)
    async with opened as device:
        prepared = await device.prepare(addition(0, 256))
        runs = [prepared.run([x, x]) for _ in range(AT_ONCE)]
        for outputs in await asyncio.gather(*runs):
            np.testing.assert_array_equal(outputs["z"], 2 * x)
        (z,) = (await prepared.run([x[:1], x[:1]])).values()
        base = z if z.base is None else z.base
        assert base.nbytes <= 4 * x.nbytes
