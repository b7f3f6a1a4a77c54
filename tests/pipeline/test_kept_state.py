"""State of stages from frame to frame: named by the application, or the model's own."""

from typing import Literal

import numpy as np
import pytest

from asyncnn.pipeline import Pipeline, Stage
from asyncnn.runtime.device import Device
from tests.networks import chain, picking
from tests.pipeline.conftest import collected, frames, running_sum, values
from tests.runtime.stateful import counting


class TestState:
    @pytest.fixture(params=["shared", "in the driver"])
    def keeper(self, request: pytest.FixtureRequest, device: Device) -> Device | None:
        """The device that keeps the state, if one does."""
        return device if request.param == "in the driver" else None

    async def test_it_is_fed_back_from_frame_to_frame(
        self, device: Device, keeper: Device | None
    ) -> None:
        model = await device.prepare(running_sum())
        stage = Stage("sum", model, state={"total": "before"}, state_on=keeper)
        async with Pipeline(stage, in_flight=3) as pipeline:
            results = await collected(pipeline.process(frames(30)))
        assert values(results, "y") == [10.0 * n * (n + 1) / 2 for n in range(30)]
        assert set(results[0]) == {"y"}

    async def test_it_begins_with_what_is_initial(
        self, device: Device, keeper: Device | None
    ) -> None:
        model = await device.prepare(running_sum())
        stage = Stage(
            "sum",
            model,
            state={"total": "before"},
            state_on=keeper,
            initial={"before": np.full(4, 100, np.float32)},
        )
        async with Pipeline(stage) as pipeline:
            results = await collected(pipeline.process(frames(3)))
        assert values(results, "y") == [1000, 1010, 1030]

    @pytest.mark.parametrize("when_failed", ["raise", "skip"])
    async def test_the_models_own_is_kept_as_by_a_session(
        self,
        device: Device,
        keeper: Device | None,
        when_failed: Literal["raise", "skip"],
    ) -> None:
        model = await device.prepare(counting())
        source = [{"x": np.float32([n, 2 * n, 3, 1 / (n + 1)])} for n in range(30)]
        stages = [
            Stage("count", model, state_on=keeper, keeps_state=True),
            Stage("after", await device.prepare(chain(1, 4))),
        ]
        pipeline = Pipeline(*stages, in_flight=3, when_failed=when_failed)
        async with pipeline, model.session() as session:
            number = 0
            async for result in pipeline.process(source):
                expected = (await session.run(source[number]))["y"]
                (name,) = result
                np.testing.assert_array_equal(result[name], expected + 1)
                number += 1
        assert number == 30

    async def test_the_models_own_may_begin_elsewhere(
        self, device: Device, keeper: Device | None
    ) -> None:
        model = await device.prepare(counting())
        total = np.full(4, 100, np.float32)
        stage = Stage(
            "count", model, state_on=keeper, keeps_state=True, initial={"total": total}
        )
        async with Pipeline(stage) as pipeline:
            results = await collected(pipeline.process(frames(3)))
        assert values(results, "y") == [200, 202, 206]
        assert set(results[0]) == {"y"}

    async def test_the_models_own_is_not_kept_unless_told(self, device: Device) -> None:
        model = await device.prepare(counting())
        async with Pipeline(Stage("count", model)) as pipeline:
            results = await collected(pipeline.process(frames(4)))
        assert values(results, "y") == [0, 2, 4, 6]

    async def test_later_stages_may_take_it(
        self, device: Device, keeper: Device | None
    ) -> None:
        model = await device.prepare(running_sum())
        plus_one = await device.prepare(chain(1, 4))
        stages = [
            Stage("sum", model, state={"total": "before"}, state_on=keeper),
            Stage("after", plus_one, inputs={"x": "sum.total"}),
        ]
        async with Pipeline(*stages, in_flight=4) as pipeline:
            results = await collected(pipeline.process(frames(20)))
        assert values(results) == [n * (n + 1) / 2 + 1 for n in range(20)]

    @pytest.mark.parametrize("when_full", ["wait", "drop_oldest"])
    @pytest.mark.parametrize("in_flight", [1, 2, 5])
    async def test_after_a_failure_the_last_good_one_goes_on(
        self,
        device: Device,
        keeper: Device | None,
        in_flight: int,
        when_full: Literal["wait", "drop_oldest"],
    ) -> None:
        stages = [
            Stage("pick", await device.prepare(picking(4))),
            Stage(
                "sum",
                await device.prepare(running_sum()),
                state={"total": "before"},
                state_on=keeper,
            ),
        ]
        source = list(frames(60))
        bad = (0, 7, 8, 30, 59)
        for number, frame in enumerate(source):
            frame["index"] = np.full(4, 4 if number in bad else 0, np.int32)
        pipeline = Pipeline(
            *stages,
            in_flight=in_flight,
            backlog=60,
            when_full=when_full,
            when_failed="skip",
        )
        async with pipeline:
            results = await collected(pipeline.process(source))
        total = 0
        for result in results:
            total += result.number
            assert float(result["y"][0]) == 10.0 * total
        statistics = pipeline.statistics()
        assert statistics.failed + statistics.delivered == 60
        assert statistics.stages["pick"].failed == len(bad)
        assert statistics.failed <= len(bad) * in_flight
