"""Frames under way: their stages, and results in order."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from asyncnn.fences import SyncFence
from asyncnn.hal.operations.bound import Array
from asyncnn.pipeline.frame import FrameSlot, PipelineFrame, StateMemory
from asyncnn.pipeline.results import StageCounter, StageStatistics
from asyncnn.pipeline.wiring import Stage, Wiring


class FrameFlow:
    """Sends frames through ``stages`` and reports their ends to ``ended``, in order.

    ``in_flight`` may be on their way at a time, and ``outside`` more have arrays.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        wiring: Wiring,
        memories: Sequence[StateMemory | None],
        in_flight: int,
        outside: int,
        ended: Callable[[PipelineFrame], None],
    ) -> None:
        self._stages = stages
        self._wiring = wiring
        self._memories = memories
        self._free = [
            FrameSlot(stages, wiring, self._memories)
            for _ in range(in_flight + outside)
        ]
        self._frames: deque[PipelineFrame] = deque()
        self._counters = [StageCounter() for _ in stages]
        self._ended = ended
        self._is_watching = False
        self._is_advancing = False
        self._drained = asyncio.Event()

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def statistics(self) -> dict[str, StageStatistics]:
        """Statistics by name of the stage."""
        return {
            stage.name: counter.statistics()
            for stage, counter in zip(self._stages, self._counters, strict=True)
        }

    def frame(
        self, number: int, arrays: Sequence[Array], timeout_ns: int | None
    ) -> PipelineFrame:
        """Return a frame with copies of ``arrays``, to be launched or dropped."""
        slot = self._free.pop()
        for target, array in zip(slot.put, arrays, strict=True):
            target[...] = array
        return PipelineFrame(number, slot, self._memories, timeout_ns)

    def drop(self, frame: PipelineFrame) -> None:
        """Take back a frame that was not launched."""
        self._free.append(frame.slot)

    def launch(self, frame: PipelineFrame) -> None:
        """Send ``frame`` on its way; it may have ended when this returns."""
        frame.launch(self._wiring)
        self._frames.append(frame)
        self._advance()

    def cancel(self) -> None:
        """End all frames soon."""
        for frame in self._frames:
            frame.cancel()

    async def drain(self) -> None:
        """Wait until no frame is on its way."""
        if self._frames:
            self._drained.clear()
            await self._drained.wait()

    def _advance(self) -> None:
        """Report the frames that have ended, up to the first that has not."""
        if self._is_advancing:
            return  # one that has ended makes room for the next, which may end at once
        self._is_advancing = True
        try:
            while self._frames and not self._is_watching:
                run = self._frames[0].unfinished()
                if run is None:
                    self._settle(self._frames.popleft())
                else:
                    self._is_watching = True
                    run.fence.add_done_callback(self._run_has_ended)
        finally:
            self._is_advancing = False
        if not self._frames:
            self._drained.set()

    def _run_has_ended(self, _: SyncFence) -> None:
        self._is_watching = False
        self._advance()

    def _settle(self, frame: PipelineFrame) -> None:
        frame.settle(self._counters)
        self._ended(frame)
        self._free.append(frame.slot)
