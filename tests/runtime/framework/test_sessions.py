"""Sessions on several devices as one, whichever of them keeps the state."""

from typing import Any

import numpy as np
import pytest

import asyncnn
from tests.conftest import one_in
from tests.runtime.stateful import X, counting

DEVICES: list[tuple[str, ...]] = [
    (),
    ("sample-float-fast",),
    ("sample-minimal", "sample-float-slow"),
    ("sample-quant",),
]


@pytest.mark.parametrize("path", ["async", "sync", "fenced", "burst"])
@pytest.mark.parametrize("names", one_in(2, DEVICES))
async def test_steps_equal_the_formula(names: tuple[str, ...], path: Any) -> None:
    async with asyncnn.open_devices(*names) as device:
        prepared = await device.prepare(counting())
        async with prepared.session(path=path) as session:
            assert session.is_managed
            for step in range(1, 6):
                outputs = await session.run(X)
                np.testing.assert_array_equal(outputs["y"], 2 * step * X)
            np.testing.assert_array_equal((await session.state())["total"], 5 * X)
        np.testing.assert_array_equal((await prepared.run(X))["y"], 2 * X)
