"""Pipelines that stream a few frames."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import numpy as np

from asyncnn.pipeline import Pipeline
from asyncnn.pipeline import Stage as PipelineStage
from tests.networks import chain
from tests.pipeline.test_pipeline import running_sum
from tests.sweep.scenario import EVERYWHERE, ON_ONE_LOOP, scenario
from tests.sweep.stages import LENGTH, Stage, X

FRAMES = 4


def frames() -> Iterator[dict[str, np.ndarray]]:
    for _ in range(FRAMES):
        yield {"x": X}


async def slow_frames() -> AsyncIterator[dict[str, np.ndarray]]:
    for frame in frames():
        await asyncio.sleep(0)
        yield frame


@scenario(*EVERYWHERE)
async def pipeline_of_frames(stage: Stage) -> None:
    stages = [PipelineStage(name, stage.model) for name in "ab"]
    async with Pipeline(*stages, in_flight=2) as pipeline:
        count = 0
        async for result in pipeline.process(slow_frames()):
            np.testing.assert_array_equal(result["z"], X + 2 * LENGTH)
            count += 1
    assert count == FRAMES


@scenario(*ON_ONE_LOOP)
async def pipeline_that_is_put_to(stage: Stage) -> None:
    async with Pipeline(PipelineStage("a", stage.model), in_flight=2) as pipeline:
        for frame in frames():
            await pipeline.put(frame)
            await anext(pipeline)
        pipeline.finish()


@scenario(*ON_ONE_LOOP)
async def pipeline_that_is_left(stage: Stage) -> None:
    async with Pipeline(PipelineStage("a", stage.model), in_flight=2) as pipeline:
        results = pipeline.process(frames())
        await anext(results)


@scenario(*ON_ONE_LOOP)
async def pipeline_that_drops(stage: Stage) -> None:
    stages = PipelineStage("a", stage.model)
    async with Pipeline(stages, in_flight=1, when_full="drop_oldest") as pipeline:
        async for _ in pipeline.process(slow_frames()):
            pass


@scenario(*EVERYWHERE)
async def pipeline_with_state(stage: Stage) -> None:
    model = await stage.device.prepare(running_sum())
    sums = PipelineStage(
        "sums", model, state={"total": "before"}, state_on=stage.device
    )
    ones = np.ones(4, np.float32)
    async with Pipeline(sums, in_flight=2) as pipeline:
        results = [result async for result in pipeline.process([{"x": ones}] * 3)]
    assert [result["y"][0] for result in results] == [10, 20, 30]


@scenario(*ON_ONE_LOOP)
async def pipeline_whose_puts_wait(stage: Stage) -> None:
    async with Pipeline(PipelineStage("a", stage.model), in_flight=1) as pipeline:
        async with asyncio.TaskGroup() as group:
            puts = [group.create_task(pipeline.put({"x": X})) for _ in range(3)]
            for _ in puts:
                await anext(pipeline)
        pipeline.finish()


@scenario(*ON_ONE_LOOP)
async def pipeline_of_other_models(stage: Stage) -> None:
    short = await stage.device.prepare(chain(1, 4))
    zeros = np.zeros(4, np.float32)
    async with Pipeline(PipelineStage("a", short)) as pipeline:
        async for result in pipeline.process([zeros] * 2):
            assert result["z"][0] == 1
