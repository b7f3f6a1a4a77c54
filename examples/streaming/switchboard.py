"""Hears the keys pressed on a line: samples in, events out, three models between."""

import math
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import asyncnn
import models
from asyncnn import Priority
from asyncnn.pipeline import Pipeline, Stage
from events import Decoder, Event
from framing import FRAME_SECONDS, Floats, Framer
from pacing import Arrivals
from report import Timing

IN_FLIGHT = 4
"""Frames under way at a time: while one is decided upon, the next is measured."""


class Switchboard:
    """Listens to one line after another; the attributes are the state to be shown."""

    def __init__(self, stages: tuple[Stage, ...]) -> None:
        self.frames = 0
        self.keys = ""
        self.held: str | None = None
        self.loudness_db = -math.inf
        self.stages: dict[str, float] = {}
        self._stages = stages
        self._arrivals: Arrivals[Floats] = Arrivals()

    @classmethod
    async def on(
        cls, device: asyncnn.Device, priority: Priority = Priority.HIGH
    ) -> "Switchboard":
        """Prepare the models on ``device``."""
        weights = models.load_weights()
        features, recurrent, decision = [
            await device.prepare(model, priority=priority)
            for model in (
                models.features(),
                models.recurrent(weights),
                models.decision(weights),
            )
        ]
        state = {"next_state": "state", "next_cell": "cell"}
        return cls(
            (
                Stage("features", features),
                Stage("recurrent", recurrent, state=state, state_on=device),
                Stage("decision", decision),
            )
        )

    async def listen(
        self, samples: AsyncIterable[NDArray[np.int16]]
    ) -> AsyncGenerator[Event, None]:
        """Yield what happens on a line until its samples end.

        Close the generator (`contextlib.aclosing`) to hang up before.
        """
        decoder = Decoder()
        self._arrivals = Arrivals()
        async with Pipeline(*self._stages, in_flight=IN_FLIGHT) as pipeline:
            async for result in pipeline.process(self._windows(samples)):
                window = self._arrivals.leave(result.number)
                self.frames += 1
                self.loudness_db = _decibels(window)
                for event in decoder.step(result["probabilities"][0]):
                    yield self._noted(event)
            self.stages = {
                name: round(stage.busy_us / max(stage.frames, 1), 1)
                for name, stage in pipeline.statistics().stages.items()
            }
        for event in decoder.finish():
            yield self._noted(event)

    def timing(self) -> Timing:
        """Return how long the frames of the last line took."""
        return Timing.of(self._arrivals.seconds, FRAME_SECONDS)

    async def _windows(
        self, samples: AsyncIterable[NDArray[np.int16]]
    ) -> AsyncIterator[Floats]:
        framer = Framer()
        async for chunk in samples:
            for window in framer.windows(chunk):
                self._arrivals.enter(window)
                yield window

    def _noted(self, event: Event) -> Event:
        if event.released is None:
            self.held = event.key
            self.keys += event.key
        else:
            self.held = None
        return event


def _decibels(window: NDArray[Any]) -> float:
    return 10 * math.log10(float(np.square(window).mean()) + 1e-10)
