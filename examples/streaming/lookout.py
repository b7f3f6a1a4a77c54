"""Watches the camera: the finder answers every frame, the reader when it has time."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator

import numpy as np

import asyncnn
import camera
from asyncnn import PreparedModel, Priority
from asyncnn.pipeline import Pipeline, Stage
from camera import FRAME_RATE, Sight
from framing import Floats
from pacing import Arrivals
from report import CameraReport, Timing


class Lookout:
    """Two pipelines, of high and of low priority; attributes are there to be shown."""

    def __init__(self, finder: PreparedModel, reader: PreparedModel) -> None:
        self.image: Floats = np.zeros((1, camera.SIDE, camera.SIDE, 1), np.float32)
        self.place = 0
        self.digit: int | None = None
        self.frames = 0
        self.read = 0
        self._right = 0
        self._finder = _newest_first("finder", finder)
        self._reader = _newest_first("reader", reader)
        self._seen: Arrivals[Sight] = Arrivals()
        self._pieces: Arrivals[Sight] = Arrivals()

    @classmethod
    async def on(cls, device: asyncnn.Device) -> "Lookout":
        """Prepare the models on ``device``."""
        finder = await device.prepare(camera.finder(), priority=Priority.HIGH)
        reader = await device.prepare(await camera.reader(), priority=Priority.LOW)
        return cls(finder, reader)

    async def watch(self, sights: AsyncIterable[Sight]) -> None:
        """Look at frames until they end; once only."""
        async with (
            self._finder as finder,
            self._reader as reader,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(self._read(reader))
            async for result in finder.process(self._images(sights)):
                sight = self._seen.leave(result.number)
                self.frames += 1
                self.image, self.place = sight.image, int(result["place"][0])
                self._pieces.enter(sight)
                reader.put_nowait(camera.piece(self.image, self.place))
            reader.finish()

    async def _read(self, reader: Pipeline) -> None:
        async for result in reader:
            sight = self._pieces.leave(result.number)
            self.read += 1
            self.digit = int(result["probabilities"].argmax())
            self._right += self.digit == sight.digit

    def finder_timing(self) -> Timing:
        """Return how long the finder took for each frame."""
        return Timing.of(self._seen.seconds, 1 / FRAME_RATE)

    def report(self) -> CameraReport:
        """Return what has been seen so far."""
        return CameraReport(
            frames=self.frames,
            read=self.read,
            skipped=self.skipped,
            right=round(self._right / max(self.read, 1), 4),
            finder=self.finder_timing(),
            reader=Timing.of(self._pieces.seconds, 1 / FRAME_RATE),
        )

    @property
    def skipped(self) -> int:
        """Frames that a newer one has overtaken, at the finder or at the reader."""
        return self._seen.lost + self._pieces.lost

    async def _images(self, sights: AsyncIterable[Sight]) -> AsyncIterator[Floats]:
        async for sight in sights:
            self._seen.enter(sight)
            yield sight.image


def _newest_first(name: str, model: PreparedModel) -> Pipeline:
    """Return a pipeline in which a frame that waits makes room for a newer one."""
    return Pipeline(Stage(name, model), in_flight=1, when_full="drop_oldest")
