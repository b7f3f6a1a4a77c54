"""Pipelines as applications use them."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator

import numpy as np
import pytest

from asyncnn.hal.errors import (
    DeviceUnavailableError,
    InvalidArgumentError,
    MissedDeadlinePersistentError,
    MissedDeadlineTransientError,
    ResourceExhaustedTransientError,
)
from asyncnn.pipeline import Pipeline, PipelineStatistics, Stage, StageStatistics
from asyncnn.runtime.device import Device
from asyncnn.runtime.opening_devices import open_device
from tests.networks import FOREVER, addition, chain, counting_up
from tests.pipeline.conftest import collected, frames, running_sum, slow_frames, values

MISSED = (MissedDeadlinePersistentError, MissedDeadlineTransientError)


@pytest.mark.parametrize("source", [frames, slow_frames])
@pytest.mark.parametrize("in_flight", [1, 2, 7])
async def test_every_frame_runs_through_all_stages_in_order(
    device: Device, source, in_flight: int
) -> None:
    plus_one = await device.prepare(chain(1, 4))
    stages = [Stage(name, plus_one) for name in "abcd"]
    async with Pipeline(*stages, in_flight=in_flight) as pipeline:
        results = await collected(pipeline.process(source(50)))
    assert values(results) == [number + 4 for number in range(50)]
    assert [result.number for result in results] == list(range(50))
    statistics = pipeline.statistics()
    assert (statistics.put, statistics.delivered) == (50, 50)
    assert {name: s.frames for name, s in statistics.stages.items()} == dict.fromkeys(
        "abcd", 50
    )


async def test_before_the_start_statistics_are_all_zero(device: Device) -> None:
    pipeline = Pipeline(Stage("only", await device.prepare(chain(1, 4))))
    assert pipeline.statistics() == PipelineStatistics(
        0, 0, 0, 0, 0, 0, {"only": StageStatistics()}
    )


async def test_frames_are_put_and_results_taken_by_hand(device: Device) -> None:
    plus_one = await device.prepare(chain(1, 4))
    async with Pipeline(Stage("a", plus_one), in_flight=2) as pipeline:
        frame = np.zeros(4, np.float32)
        assert await pipeline.put(frame) == 0
        frame[:] = 5
        assert pipeline.put_nowait([frame]) == 1
        assert (await anext(pipeline))["z"][0] == 1
        pipeline.finish()
        assert values(await collected(pipeline)) == [6]
        with pytest.raises(StopAsyncIteration):
            await anext(pipeline)
        with pytest.raises(RuntimeError, match="no more frames"):
            await pipeline.put(frame)


async def test_results_are_the_callers_to_keep(device: Device) -> None:
    plus_one = await device.prepare(chain(1, 4))
    async with Pipeline(Stage("a", plus_one), in_flight=1) as pipeline:
        results = await collected(pipeline.process(frames(5)))
    assert values(results) == [1, 2, 3, 4, 5]
    assert all(result.latency_us >= 0 for result in results)


async def test_stages_may_be_on_different_devices(device: Device) -> None:
    async with open_device() as other:
        here, there = [await d.prepare(chain(1, 4)) for d in (device, other)]
        stages = [Stage("a", here), Stage("b", there), Stage("c", here)]
        async with Pipeline(*stages) as pipeline:
            results = await collected(pipeline.process(frames(20)))
    assert values(results) == [number + 3 for number in range(20)]


async def test_a_stage_takes_what_it_names(device: Device) -> None:
    plus_one = await device.prepare(chain(1, 4))
    both = await device.prepare(addition(4))
    stages = [
        Stage("a", plus_one),
        Stage("b", plus_one),
        Stage("sum", both, inputs={"x": "a.z", "y": "put.offset"}),
        Stage("last", both, inputs={"x": "put.offset", "y": "sum.z"}),
    ]
    async with Pipeline(*stages) as pipeline:
        one = np.ones(4, np.float32)
        await pipeline.put({"x": one, "offset": 10 * one})
        assert (await anext(pipeline))["z"][0] == 22


class TestBackPressure:
    async def test_put_waits_for_room(self, device: Device) -> None:
        plus_one = await device.prepare(chain(1, 4))
        async with Pipeline(Stage("a", plus_one), in_flight=2) as pipeline:
            for _ in range(2):
                await pipeline.put(np.zeros(4, np.float32))
            waiting = asyncio.create_task(pipeline.put(np.zeros(4, np.float32)))
            await asyncio.sleep(0.01)
            assert not waiting.done()
            with pytest.raises(ResourceExhaustedTransientError):
                pipeline.put_nowait(np.zeros(4, np.float32))
            assert pipeline.statistics().in_flight == 2
            await anext(pipeline)
            assert await asyncio.wait_for(waiting, 20) == 2

    async def test_a_put_that_is_cancelled_leaves_its_room_to_others(
        self, device: Device
    ) -> None:
        plus_one = await device.prepare(chain(1, 4))
        async with Pipeline(Stage("a", plus_one), in_flight=1) as pipeline:
            frame = np.zeros(4, np.float32)
            await pipeline.put(frame)
            first = asyncio.create_task(pipeline.put(frame))
            second = asyncio.create_task(pipeline.put(frame))
            await asyncio.sleep(0.005)
            await anext(pipeline)  # gives room to the first
            first.cancel()
            assert await asyncio.wait_for(second, 20) == 1
            assert first.cancelled()

    async def test_a_frame_that_does_not_fit_takes_no_room(
        self, device: Device
    ) -> None:
        plus_one = await device.prepare(chain(1, 4))
        async with Pipeline(Stage("a", plus_one), in_flight=1) as pipeline:
            for bad in (np.zeros(3, np.float32), np.zeros(4), [None], {"y": 1}):
                with pytest.raises(InvalidArgumentError):
                    await pipeline.put(bad)
            await pipeline.put(np.zeros(4, np.float32))
            assert pipeline.statistics().put == 1

    async def test_the_oldest_frame_outside_is_dropped(self, device: Device) -> None:
        plus_one = await device.prepare(chain(1, 4))
        pipeline = Pipeline(
            Stage("a", plus_one), in_flight=2, backlog=3, when_full="drop_oldest"
        )
        async with pipeline:
            for frame in frames(20):
                await pipeline.put(frame)
            statistics = pipeline.statistics()
            assert (statistics.waiting, statistics.in_flight) == (3, 2)
            assert statistics.dropped == 15
            pipeline.finish()
            results = await collected(pipeline)
        assert [result.number for result in results] == [0, 1, 17, 18, 19]
        assert values(results) == [1, 2, 18, 19, 20]


class TestFailure:
    async def test_it_is_raised_after_the_results_before_it(self) -> None:
        async with open_device() as device:
            plus_one = await device.prepare(chain(1, 4))
            slow = await device.prepare(counting_up())
            stages = [Stage("a", plus_one), Stage("b", slow, inputs={"x": "put.image"})]
            frame = {"x": np.zeros(4, np.float32), "image": FOREVER}
            async with Pipeline(*stages, timeout=0.001) as pipeline:
                await pipeline.put(frame)
                with pytest.raises(MISSED) as raised:
                    await anext(pipeline)
                assert raised.value.__notes__[0].startswith("in stage ")
                for _ in range(20):  # without keeping what was on the way each time
                    with pytest.raises(MISSED) as raised:
                        await pipeline.put(frame)
                assert len(raised.traceback) < 10
                assert pipeline.statistics().failed == 1

    async def test_frames_that_fail_are_skipped_if_that_is_wanted(self) -> None:
        async with open_device() as device:
            slow = await device.prepare(counting_up())
            pipeline = Pipeline(Stage("slow", slow), timeout=0.001, when_failed="skip")
            async with pipeline:
                results = await collected(pipeline.process([FOREVER] * 6))
            statistics = pipeline.statistics()
            assert not results
            assert statistics.failed == 6
            assert statistics.stages["slow"].failed == 6

    async def test_a_closed_device_ends_the_pipeline(self) -> None:
        async with open_device() as device:
            plus_one = await device.prepare(chain(1, 4))
        async with Pipeline(Stage("a", plus_one)) as pipeline:
            with pytest.raises(DeviceUnavailableError):
                await collected(pipeline.process(frames(10)))

    async def test_very_many_that_wait_fail_one_after_the_other(self) -> None:
        device, count = await open_device(), 500
        slow = await device.prepare(counting_up())
        async with Pipeline(
            Stage("slow", slow),
            in_flight=1,
            backlog=count,
            when_full="drop_oldest",
            when_failed="skip",
        ) as pipeline:
            for _ in range(count):
                pipeline.put_nowait(FOREVER)
            await device.aclose()
            pipeline.finish()
            async with asyncio.timeout(20):
                assert not [result async for result in pipeline]
            assert pipeline.statistics().failed == count

    async def test_a_device_that_closes_fails_stages_with_state_too(self) -> None:
        async with open_device() as device:
            plus_one = await device.prepare(chain(1, 4))
            async with open_device() as other:
                model = await other.prepare(running_sum())
            stages = [
                Stage("a", plus_one),
                Stage("sum", model, state={"total": "before"}),
            ]
            pipeline = Pipeline(*stages, when_failed="skip")
            async with pipeline:
                assert not await collected(pipeline.process(frames(20)))
            assert pipeline.statistics().stages["sum"].failed == 20

    async def test_who_waits_to_put_is_told(self) -> None:
        async with open_device() as device:
            slow = await device.prepare(counting_up())
            pipeline = Pipeline(Stage("slow", slow), in_flight=1, timeout=0.005)
            async with pipeline:
                await pipeline.put(FOREVER)
                with pytest.raises(MISSED):
                    await asyncio.wait_for(pipeline.put(FOREVER), 20)

    @pytest.mark.parametrize("turns", range(4))
    async def test_who_puts_as_it_ends_is_told(self, turns: int) -> None:
        async with open_device() as device:
            slow = await device.prepare(counting_up())
            pipeline = Pipeline(Stage("slow", slow), in_flight=1, timeout=0.005)
            async with pipeline, asyncio.timeout(20):
                await pipeline.put(FOREVER)
                time.sleep(0.1)  # noqa: ASYNC251 - its end is there, unread
                for _ in range(turns):
                    await asyncio.sleep(0)
                with pytest.raises(MISSED):
                    await pipeline.put(FOREVER)

    async def test_an_error_of_the_source_comes_after_its_frames(
        self, device: Device
    ) -> None:
        async def breaking() -> AsyncIterator[dict[str, np.ndarray]]:
            async for frame in slow_frames(3):
                yield frame
            raise OSError("the microphone is gone")

        plus_one = await device.prepare(chain(1, 4))
        async with Pipeline(Stage("a", plus_one)) as pipeline:
            stream = pipeline.process(breaking())
            assert values([await anext(stream) for _ in range(3)]) == [1, 2, 3]
            with pytest.raises(OSError, match="microphone"):
                await anext(stream)


class TestClosing:
    async def test_all_who_close_it_are_told_of_the_end(self) -> None:
        async with open_device() as device:
            slow = await device.prepare(counting_up())
            pipeline = await Pipeline(Stage("a", slow))
            await pipeline.put(FOREVER)
            async with asyncio.timeout(20):
                await asyncio.gather(*(pipeline.aclose() for _ in range(3)))
            assert pipeline.statistics().in_flight == 0

    async def test_leaving_ends_what_is_on_its_way(self) -> None:
        async with open_device() as device:
            slow = await device.prepare(counting_up())
            async with Pipeline(Stage("a", slow), Stage("b", slow)) as pipeline:
                stream = pipeline.process([FOREVER] * 100)
                await asyncio.sleep(0.01)
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
            with pytest.raises(RuntimeError):
                await pipeline.put(FOREVER)
            assert pipeline.statistics().in_flight == 0

    async def test_a_consumer_that_breaks_leaves_no_task_and_no_pool(
        self, device: Device
    ) -> None:
        plus_one = await device.prepare(chain(1, 4))
        tasks = asyncio.all_tasks()
        async with Pipeline(Stage("a", plus_one), in_flight=2) as pipeline:
            async for _ in pipeline.process(slow_frames(1000)):
                break
        assert asyncio.all_tasks() == tasks
        assert pipeline.statistics().in_flight == 0

    async def test_a_cancelled_consumer_leaves_the_pipeline_usable(
        self, device: Device
    ) -> None:
        plus_one = await device.prepare(chain(1, 4))
        async with Pipeline(Stage("a", plus_one)) as pipeline:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(pipeline), 0.002)
            await pipeline.put(np.zeros(4, np.float32))
            assert (await anext(pipeline))["z"][0] == 1

    async def test_finishing_ends_the_feeding(self, device: Device) -> None:
        plus_one = await device.prepare(chain(1, 4))
        async with Pipeline(Stage("a", plus_one), in_flight=2) as pipeline:
            stream = pipeline.process(slow_frames(1000))
            with pytest.raises(RuntimeError, match="already"):
                pipeline.process([])
            await anext(stream)
            pipeline.finish()
            assert len(await collected(stream)) < 10

    async def test_it_is_used_once(self, device: Device) -> None:
        plus_one = await device.prepare(chain(1, 4))
        pipeline = Pipeline(Stage("a", plus_one))
        with pytest.raises(RuntimeError, match="not open"):
            pipeline.put_nowait(np.zeros(4, np.float32))
        async with pipeline:
            pass
        with pytest.raises(RuntimeError, match="once"):
            await pipeline.__aenter__()


async def test_statistics_tell_busy_from_queued(device: Device) -> None:
    plus_one = await device.prepare(chain(200, 4))
    async with Pipeline(Stage("a", plus_one), Stage("b", plus_one)) as pipeline:
        await collected(pipeline.process(frames(20)))
    for stage in pipeline.statistics().stages.values():
        assert 0 < stage.longest_us <= stage.busy_us
        assert stage.queued_us >= 0
    assert "20 put, 20 delivered" in repr(pipeline)


@pytest.mark.unrecorded
async def test_what_is_done_keeps_no_memory(device: Device) -> None:
    plus_one = await device.prepare(running_sum())
    stage = Stage("sum", plus_one, state={"total": "before"})

    async def after(count: int) -> int:
        async with Pipeline(stage, in_flight=3) as pipeline:
            async for _ in pipeline.process(frames(count)):
                pass
            gc.collect()
            return len(gc.get_objects())

    await after(300)  # what is kept of the latest requests has come together
    few = await after(50)
    assert await after(1000) < few + 700  # less than one for each frame
