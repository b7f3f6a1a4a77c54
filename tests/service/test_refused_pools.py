"""What a driver had no room for once is usable when there is room again."""

import numpy as np
import pytest

from asyncnn import connect, shared_array
from asyncnn.hal.errors import ResourceExhaustedTransientError
from asyncnn.service.driver.quotas import Holding
from tests.networks import addition
from tests.service.conftest import Service


def refuse(*_: object) -> None:
    raise ResourceExhaustedTransientError("for now")


@pytest.mark.parametrize("is_shared", [False, True], ids=["plain", "shared"])
@pytest.mark.parametrize("is_reusable", [False, True], ids=["run", "reusable"])
async def test_arrays_are_announced_anew_after_a_refusal(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    is_shared: bool,
    is_reusable: bool,
) -> None:
    async with connect(service.path) as device:
        model = await device.prepare(addition(4))
        x = shared_array(4) if is_shared else np.zeros(4, np.float32)
        inputs = {"x": x, "y": x}
        reusable = model.reusable(inputs)

        async def run() -> object:
            return await (reusable.run() if is_reusable else model.run(inputs))

        with monkeypatch.context() as short:
            short.setattr(Holding, "check_room", refuse)
            for _ in range(3):  # it is bound from the second time on
                with pytest.raises(ResourceExhaustedTransientError):
                    await run()
        for _ in range(3):
            await run()


async def test_so_are_those_of_fenced_executions(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(service.path) as device:
        model = await device.prepare(addition(4))
        x = shared_array(4)
        with monkeypatch.context() as short:
            short.setattr(Holding, "check_room", refuse)
            for _ in range(3):
                with pytest.raises(ResourceExhaustedTransientError):
                    await model.run_fenced({"x": x, "y": x})
        await model.run_fenced({"x": x, "y": x})
