"""What a pipeline reports: the result of a frame, and the statistics of its stages."""

from collections.abc import Iterable

import msgspec

from asyncnn.execution import RunTiming
from asyncnn.hal.operations.bound import Array


class FrameResult(dict[str, Array]):
    """Outputs of the last stage by name, without its state; the arrays are copies.

    ``number`` counts the frames that were put, from 0, dropped ones included.
    ``latency_us`` is the time since then, in microseconds.
    """

    def __init__(
        self, number: int, latency_us: int, outputs: Iterable[tuple[str, Array]]
    ) -> None:
        super().__init__(outputs)
        self.number = number
        self.latency_us = latency_us

    def __repr__(self) -> str:
        return f"<FrameResult {self.number} {list(self)} {self.latency_us} us>"


class StageStatistics(msgspec.Struct, frozen=True):
    """Counts and times of one stage, over all frames; times in microseconds.

    ``busy_us`` is the time on the device, of which ``longest_us`` is the longest of one
    frame. ``queued_us`` is what frames waited for the device after all that they needed
    was there. Frames in ``failed`` failed in this stage first.
    """

    frames: int = 0
    failed: int = 0
    busy_us: int = 0
    longest_us: int = 0
    queued_us: int = 0


class PipelineStatistics(msgspec.Struct, frozen=True):
    """Counts of frames, and the statistics of each stage by name.

    ``put = dropped + failed + delivered + in_flight + waiting``, but for frames that
    the end of the pipeline has cut off. ``delivered`` counts results that were taken,
    ``in_flight`` those on their way or not taken, ``waiting`` those outside.
    """

    put: int
    dropped: int
    failed: int
    delivered: int
    in_flight: int
    waiting: int
    stages: dict[str, StageStatistics]


class StageCounter(msgspec.Struct, eq=False):
    """Counts for `StageStatistics`."""

    failed: int = 0
    _frames: int = 0
    _busy_us: int = 0
    _longest_us: int = 0
    _queued_us: int = 0

    def count(self, timing: RunTiming | None) -> None:
        """Count a frame that went well; ``timing`` is that since its last fence."""
        self._frames += 1
        if timing is None:
            return
        if timing.on_device_ns is None:
            return
        on_device = timing.on_device_ns // 1000
        self._busy_us += on_device
        if on_device > self._longest_us:
            self._longest_us = on_device
        if timing.in_driver_ns is not None:
            self._queued_us += timing.in_driver_ns // 1000 - on_device

    def statistics(self) -> StageStatistics:
        """Return the counts."""
        return StageStatistics(
            self._frames, self.failed, self._busy_us, self._longest_us, self._queued_us
        )
