"""What a run has shown: how fast, and how right."""

from collections.abc import Collection

import msgspec
import numpy as np

from events import Score

MAX_ERROR_RATE = 0.02


class Timing(msgspec.Struct, frozen=True):
    """Milliseconds from a frame's arrival to its answer, beside those of a frame."""

    frame_ms: float
    median_ms: float
    p99_ms: float
    worst_ms: float
    headroom: float
    """How often the median fits into the time of a frame."""

    @classmethod
    def of(cls, seconds: Collection[float], frame_seconds: float) -> "Timing":
        """Summarise the processing times of frames."""
        times = 1e3 * np.array(list(seconds) or [0.0])
        frame_ms = 1e3 * frame_seconds
        median, p99, worst = np.percentile(times, [50, 99, 100]).tolist()
        return cls(
            frame_ms=round(frame_ms, 3),
            median_ms=round(median, 3),
            p99_ms=round(p99, 3),
            worst_ms=round(worst, 3),
            headroom=round(frame_ms / max(median, 1e-3), 1),
        )

    def __str__(self) -> str:
        return (
            f"{self.median_ms:.2f} ms of {self.frame_ms:.1f} ms, headroom "
            f"{self.headroom:.0f}x (p99 {self.p99_ms:.2f} ms)"
        )


class LineReport(msgspec.Struct, frozen=True):
    """What was heard on the line in real time."""

    frames: int
    keys: str
    timing: Timing
    stages_us: dict[str, float]
    """Microseconds that each stage spends on the device for a frame, on average."""

    def __str__(self) -> str:
        stages = ", ".join(f"{name} {us:.0f}" for name, us in self.stages_us.items())
        return (
            f"line: {self.frames} frames, {len(self.keys)} keys; {self.timing}; "
            f"on the device {stages} us"
        )


class CameraReport(msgspec.Struct, frozen=True):
    """What the finder found and the reader read."""

    frames: int
    read: int
    skipped: int
    right: float
    """Share of the pieces read in which the digit was named rightly."""
    finder: Timing
    reader: Timing

    def __str__(self) -> str:
        return (
            f"camera: {self.frames} frames, {self.skipped} skipped; finder "
            f"{self.finder}; reader {self.reader}, {self.right:.0%} right"
        )


class HeldOutReport(msgspec.Struct, frozen=True):
    """How many keys in recordings not trained on were recognised."""

    recordings: int
    score: Score
    error_rate: float
    times_real_time: float
    """Seconds of sound processed in a second."""

    def __str__(self) -> str:
        score = self.score
        return (
            f"held out: {self.recordings} recordings, {self.times_real_time:.0f} times "
            f"faster than real time; {score.pressed} keys, {score.missed} missed, "
            f"{score.invented} invented: error rate {self.error_rate:.2%}"
        )


class Report(msgspec.Struct, frozen=True):
    """All that ran; ``camera`` is None where it was left out."""

    line: LineReport
    camera: CameraReport | None
    held_out: HeldOutReport

    @property
    def is_good(self) -> bool:
        """Return whether frames kept up with real time and few keys were mistaken."""
        timings = [self.line.timing]
        if self.camera is not None:
            timings.append(self.camera.finder)
        keeps_up = all(timing.headroom > 1 for timing in timings)
        return keeps_up and self.held_out.error_rate < MAX_ERROR_RATE

    def __str__(self) -> str:
        parts = self.line, self.camera, self.held_out
        return "\n".join(str(part) for part in parts if part is not None)
