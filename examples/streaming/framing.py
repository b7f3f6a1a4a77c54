"""Samples become overlapping windows, one per frame of 16 ms."""

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from synthesis import KEYS, RATE, Recording

Floats: TypeAlias = NDArray[np.float32]

HOP = 128
"""Samples from one window to the next."""

WINDOW = 2 * HOP

FRAME_SECONDS = HOP / RATE

LAG = 1
"""Frames by which the detector's answer is late: it may look ahead a little."""

SILENCE = len(KEYS)
"""Class of a frame in which no key is held; the others are indexes into `KEYS`."""

CLASSES = len(KEYS) + 1


class Framer:
    """Cuts a stream of samples into windows; the one before the first is silence."""

    def __init__(self) -> None:
        self._pending = np.zeros(HOP, np.int16)

    def windows(self, samples: NDArray[np.int16]) -> Iterator[Floats]:
        """Yield each window that ``samples`` complete, float32 [1, 256], in [-1, 1)."""
        pending = np.concatenate([self._pending, samples])
        last = len(pending) - WINDOW
        for start in range(0, last + 1, HOP):
            window = pending[start : start + WINDOW]
            yield np.asarray(window[None] / np.float32(32768))
        self._pending = pending[max(0, (last // HOP + 1) * HOP) :]


def all_windows(samples: NDArray[np.int16]) -> Floats:
    """Return the windows of a whole recording at once, float32 [frames, 256]."""
    return np.concatenate(list(Framer().windows(samples)))


def time_of(frame: int) -> float:
    """Return the moment in seconds that the answer to a frame is about."""
    return (frame + 1 - LAG) * FRAME_SECONDS


def labels(recording: Recording, frames: int) -> NDArray[np.intp]:
    """Return the class that each of the first ``frames`` answers should name."""
    times = time_of(0) + np.arange(frames) * FRAME_SECONDS
    classes = np.full(frames, SILENCE)
    for key, start, end in recording.presses:
        classes[(times >= start) & (times < end)] = KEYS.index(key)
    return classes
