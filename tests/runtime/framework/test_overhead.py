"""What a framework costs a model that needs no partition."""

import time

import numpy as np
import pytest

from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.hal.performance import uniform_performance
from asyncnn.hal.types import Capabilities, ErrorStatus, PerformanceInfo
from asyncnn.runtime.device import Device
from asyncnn.runtime.framework.opening import OpenDevice, open_framework
from tests.networks import addition
from tests.runtime.framework.mixed import WHEREVER_BETTER, inputs, mixed

pytestmark = pytest.mark.alone


async def seconds_of(
    runs: dict[str, tuple], path: str, rounds: int, count: int
) -> dict[str, float]:
    """Return the seconds that one run takes, interleaved, in the best round."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, (prepared, given) in runs.items():
            began = time.perf_counter()
            for _ in range(count):
                await prepared.run(given, path=path)
            found[name].append((time.perf_counter() - began) / count)
    return {name: min(each) for name, each in found.items()}


NUMBERS = {"x": [1, 2], "y": [3, 4]}


@pytest.mark.parametrize(
    ("model", "given", "path", "count", "most_us", "most_share"),
    [
        pytest.param(addition(2), NUMBERS, "async", 300, 2.0, 0.2, id="tiny"),
        pytest.param(addition(2), NUMBERS, "fenced", 300, 2.0, 0.2, id="tiny, fenced"),
        pytest.param(
            mixed((192, 192)), inputs((192, 192)), "async", 1, 3.0, 0.03, id="300us"
        ),
    ],
)
async def test_a_model_on_one_device_costs_hardly_more(
    model, given, path: str, count: int, most_us: float, most_share: float
) -> None:
    given = {name: np.asarray(value, np.float32) for name, value in given.items()}
    async with ReferenceDevice() as inner:
        plain = await Device("plain", inner).prepare(model)
        async with open_framework(
            DeviceSettings(),
            devices=[OpenDevice("other", inner)],
            framework=WHEREVER_BETTER,
        ) as watched:
            watched.members[-1].hal.get_capabilities_1_3 = _worse  # type: ignore[method-assign]
            prepared = await Device("framework", watched).prepare(model)
            assert prepared.hal.usual_route.devices == ("other",)
            took = await seconds_of(
                {"plain": (plain, given), "framework": (prepared, given)},
                path,
                15_000 // (count + 15),
                count,
            )
    more = took["framework"] - took["plain"]
    assert more * 1e6 <= most_us or more <= most_share * took["plain"], took


def _worse() -> tuple[ErrorStatus, Capabilities]:
    info = PerformanceInfo(5.0, 5.0)
    return ErrorStatus.NONE, Capabilities(
        info, info, uniform_performance(info), info, info
    )
