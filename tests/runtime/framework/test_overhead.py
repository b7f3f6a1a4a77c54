"""What a framework costs a model that needs no partition."""

import math
import time

import numpy as np
import pytest

from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.hal.performance import uniform_performance
from asyncnn.hal.types import Capabilities, ErrorStatus, PerformanceInfo
from asyncnn.runtime.device import Device
from asyncnn.runtime.framework.opening import OpenDevice, open_framework
from asyncnn.runtime.prepared import PreparedModel
from tests.measuring import best_of
from tests.networks import addition
from tests.runtime.framework.mixed import WHEREVER_BETTER, inputs, mixed

pytestmark = pytest.mark.alone

ATTEMPTS = 10


class Shortest:
    """The seconds that one run of each kind takes, at best of all rounds so far."""

    def __init__(
        self, path: str, **kinds: tuple[PreparedModel, dict[str, np.ndarray]]
    ) -> None:
        self._path = path
        self._kinds = kinds
        self.seconds = dict.fromkeys(kinds, math.inf)

    async def measure(self, rounds: int, count: int) -> None:
        """Measure more rounds, the kinds by turns."""
        for _ in range(rounds):
            for kind, (prepared, given) in self._kinds.items():
                began = time.perf_counter()
                for _ in range(count):
                    await prepared.run(given, path=self._path)
                took = (time.perf_counter() - began) / count
                self.seconds[kind] = min(self.seconds[kind], took)


NUMBERS = {"x": [1, 2], "y": [3, 4]}


@pytest.mark.parametrize(
    ("model", "given", "path", "count", "most_us", "most_share"),
    [
        pytest.param(addition(2), NUMBERS, "async", 300, 2.0, 0.2, id="tiny"),
        pytest.param(addition(2), NUMBERS, "fenced", 300, 2.0, 0.2, id="tiny, fenced"),
        pytest.param(
            mixed((288, 288)), inputs((288, 288)), "async", 1, 3.0, 0.03, id="300us"
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
            shortest = Shortest(path, plain=(plain, given), framework=(prepared, given))

            async def excess() -> float:
                """Return the time that is added, as a share of what may be."""
                await shortest.measure(15_000 // (count + 15), count)
                least = shortest.seconds["plain"]
                added = shortest.seconds["framework"] - least
                return added / max(most_us * 1e-6, most_share * least)

            await best_of(ATTEMPTS, excess, 1.0)


def _worse() -> tuple[ErrorStatus, Capabilities]:
    info = PerformanceInfo(5.0, 5.0)
    return ErrorStatus.NONE, Capabilities(
        info, info, uniform_performance(info), info, info
    )
