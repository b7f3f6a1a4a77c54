"""Floor 1: where the time of executions and preparations goes.

`recording`
    records while its block runs, and writes a JSON file for Perfetto
`recording_to`
    records this process alone, and hands the spans to a function
`span`
    marks a block of code of one's own, to be seen among asyncnn's spans

Nothing is recorded, and next to nothing spent, unless a recording is on. It is on for
the whole process, whose threads may all add spans, until its block is left. `recording`
has driver processes that are started meanwhile join, by the environment variable
``ASYNCNN_TRACE`` (`join_recording`). Those that have ended when the block is left are
in the same file, all on one timeline.

A `Span` is from ``started_ns`` to ``ended_ns``, nanoseconds of `time.monotonic_ns`, on
one thread. `Layer` says which part of the system it was, and `Phase` what for; labels
are as in the HAL's own trace tools. Spans of one execution or preparation have the
same ``group``: `begin` returns the `Trace` that adds them, or None while nothing
records. A block of `span` must not await anything, as other tasks would run in it. The
`Recorder` hands spans on some thousands at a time, on the thread that added the last;
`Recorder.flush` does so at once.

`RuntimeError` is raised if the process records already, `OSError` if the file cannot be
written, both on entering. An error that ends a block of `span` is recorded as its
``failure`` and raised on. ``asyncnn.tracing.active.OpenTelemetrySink`` is a function
for `recording_to` that passes spans to OpenTelemetry.

>>> import asyncio
>>> import numpy as np
>>> from asyncnn import ModelBuilder, OperandType, OperationType, hal, open_device
>>> from asyncnn.tracing import Layer, Phase, recording_to, span
>>> builder = ModelBuilder()
>>> x = builder.input("x", OperandType.TENSOR_FLOAT32, (2,))
>>> y = hal.Operand(OperandType.TENSOR_FLOAT32, (2,))
>>> builder.output(builder.operation(OperationType.ABS, [x], y), "y")
>>> async def main():
...     async with open_device() as device:
...         model = await device.prepare(builder.build())
...         with span("make input", Layer.APPLICATION, Phase.INPUTS_AND_OUTPUTS):
...             x = np.float32([-1, 1])
...         await model.run({"x": x})
>>> spans = []
>>> with recording_to(spans.extend):
...     asyncio.run(main())
>>> labels = {each.label for each in spans}
>>> {"[NN_LA_PIO]make input", "[NN_LR_PE]run"} <= labels
True
"""

from asyncnn.lazy import exported as _exported
from asyncnn.tracing.active import Layer as Layer
from asyncnn.tracing.active import Phase as Phase
from asyncnn.tracing.active import Recorder as Recorder
from asyncnn.tracing.active import Span as Span
from asyncnn.tracing.active import Trace as Trace
from asyncnn.tracing.active import begin as begin
from asyncnn.tracing.active import join_recording as join_recording
from asyncnn.tracing.active import recording as recording
from asyncnn.tracing.active import recording_to as recording_to
from asyncnn.tracing.active import span as span

__all__ = _exported(__name__)
