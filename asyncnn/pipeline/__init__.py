"""Floor 6: streams of frames through stages of models, connected by fences.

    pipeline = Pipeline(
        Stage("features", features),
        Stage("recognise", recurrent, state={"memory_out": "memory_in"}),
        Stage("decide", decide),
        in_flight=4,
    )
    async with pipeline:
        async for result in pipeline.process(microphone):
            print(result.number, result["digit"])

Every frame runs through all stages. The application submits it as a whole and hears of
its end; between two stages nothing happens in Python but what the devices do. Stages
may be on different devices. Each frame on its way has its own arrays in shared pools,
so that a stage works on one frame while the stage before works on the next.

Back-pressure: with ``in_flight`` frames on their way, results not taken included,
`Pipeline.put` waits, or, with ``when_full="drop_oldest"``, frames wait outside, of
which the oldest makes room.
"""

from asyncnn.pipeline.pipeline import Pipeline
from asyncnn.pipeline.results import FrameResult, PipelineStatistics, StageStatistics
from asyncnn.pipeline.wiring import Stage

__all__ = (
    "FrameResult",
    "Pipeline",
    "PipelineStatistics",
    "Stage",
    "StageStatistics",
)
