"""Floor 6: streams of frames through stages of models, connected by fences.

`Pipeline`
    a context manager: put frames in, iterate over it for results
`Stage`
    one prepared model that every frame runs through, and where its inputs come from
`FrameResult`
    the outputs of the last stage by name, with the frame's number and latency

Every frame runs through all stages. The application submits it as a whole and hears of
its end; between two stages nothing happens in Python but what the devices do. Stages
may be on different devices. Each frame on its way has its own arrays in shared pools,
so that a stage works on one frame while the stage before works on the next. A stage may
hand state to itself in the next frame: `Stage.state`.

Results come in the order of the frames. What is put is copied, and can be used again at
once; the arrays of results are the caller's. A pipeline belongs to one event loop and
is used once. Leaving its context ends what is on its way and waits for that; the
devices stay open, and have to outlive it. ``timeout`` is seconds from `Pipeline.put` to
the end of the last stage; the times of results and of `StageStatistics` are
microseconds. `PipelineStatistics` counts frames, in all and by stage.

Back-pressure: with ``in_flight`` frames on their way, results not taken included,
`Pipeline.put` waits, or, with ``when_full="drop_oldest"``, frames wait outside, of
which the oldest makes room. `Pipeline.put_nowait` raises
`ResourceExhaustedTransientError` instead of waiting.

`InvalidArgumentError` is raised for stages that do not fit together, and for a frame
with wrong inputs, which is not put. When a frame fails, iterating raises its error, say
`MissedDeadlineTransientError`, with a note that names stage and frame, and the pipeline
is at its end; with ``when_failed="skip"`` the frame is left out. `RuntimeError` stands
for a pipeline that is not open, or finished.

>>> import asyncio
>>> import numpy as np
>>> from asyncnn import ModelBuilder, OperandType, OperationType, hal, open_device
>>> from asyncnn.pipeline import Pipeline, Stage
>>> def unary(operation):
...     builder = ModelBuilder()
...     x = builder.input("x", OperandType.TENSOR_FLOAT32, (2,))
...     y = hal.Operand(OperandType.TENSOR_FLOAT32, (2,))
...     builder.output(builder.operation(operation, [x], y), "y")
...     return builder.build()
>>> async def main():
...     frames = ({"x": np.float32([-number, 4])} for number in (0, 1, 9))
...     async with open_device() as device:
...         pipeline = Pipeline(
...             Stage("abs", await device.prepare(unary(OperationType.ABS))),
...             Stage("root", await device.prepare(unary(OperationType.SQRT))),
...             in_flight=2,
...         )
...         async with pipeline:
...             async for result in pipeline.process(frames):
...                 print(result.number, result["y"])
>>> asyncio.run(main())
0 [0. 2.]
1 [1. 2.]
2 [3. 2.]
"""

from asyncnn.pipeline.pipeline import Pipeline
from asyncnn.pipeline.results import FrameResult, PipelineStatistics, StageStatistics
from asyncnn.pipeline.wiring import Stage

__all__ = ("FrameResult", "Pipeline", "PipelineStatistics", "Stage", "StageStatistics")
