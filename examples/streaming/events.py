"""Probabilities per frame become keys pressed; detections are judged against the truth.

A key is pressed once its probability has exceeded a half for some frames in a row, and
released once it falls below for as long.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from numpy.typing import NDArray

from framing import FRAME_SECONDS, SILENCE, time_of
from synthesis import KEYS, Press

MIN_FRAMES = 2
"""Shorter ones are taken for noise."""

TOLERANCE = 2 * FRAME_SECONDS
"""How far a detection may lie beside the key pressed, in seconds."""


class Event(NamedTuple):
    """A key has gone down, or, with its time as ``released``, up again."""

    key: str
    pressed: float
    released: float | None = None


class Decoder:
    """Follows the probabilities frame by frame."""

    def __init__(self) -> None:
        self._frame = 0
        self._held: Event | None = None
        self._candidate = SILENCE
        self._since = 0

    def step(self, probabilities: NDArray[Any]) -> Iterator[Event]:
        """Take the probabilities of the next frame, [17]; yield what has happened."""
        best = int(probabilities.argmax())
        if probabilities[best] <= 0.5:
            best = SILENCE
        if best != self._candidate:
            self._candidate, self._since = best, self._frame
        if self._frame - self._since + 1 == MIN_FRAMES:
            yield from self._settle()
        self._frame += 1

    def finish(self) -> Iterator[Event]:
        """Release the key that is held when the stream ends."""
        self._candidate, self._since = SILENCE, self._frame
        yield from self._settle()

    def _settle(self) -> Iterator[Event]:
        key = None if self._candidate == SILENCE else KEYS[self._candidate]
        held = self._held
        if held is not None and held.key != key:
            yield held._replace(released=time_of(self._since))
            self._held = None
        if key is not None and self._held is None:
            self._held = Event(key, time_of(self._since))
            yield self._held


def presses(events: Iterable[Event]) -> tuple[Press, ...]:
    """Return the keys that were pressed and released."""
    return tuple(
        Press(event.key, event.pressed, event.released)
        for event in events
        if event.released is not None
    )


def decode(probabilities: NDArray[Any]) -> tuple[Press, ...]:
    """Return the keys in a whole recording, from its probabilities [frames, 17]."""
    decoder = Decoder()
    events = [event for frame in probabilities for event in decoder.step(frame)]
    return presses([*events, *decoder.finish()])


class Score(msgspec.Struct, frozen=True):
    """How many keys were pressed, missed, and found where there was none."""

    pressed: int = 0
    missed: int = 0
    invented: int = 0

    def __add__(self, other: "Score") -> "Score":
        return Score(
            self.pressed + other.pressed,
            self.missed + other.missed,
            self.invented + other.invented,
        )

    @property
    def error_rate(self) -> float:
        """Errors by key pressed; a key taken for another counts twice."""
        return (self.missed + self.invented) / max(self.pressed, 1)


def judge(expected: Sequence[Press], found: Sequence[Press]) -> Score:
    """Count each expected key as met by at most one found at about the same time."""
    remaining = list(found)
    missed = 0
    for press in expected:
        met = next((other for other in remaining if _meet(press, other)), None)
        if met is None:
            missed += 1
        else:
            remaining.remove(met)
    return Score(len(expected), missed, len(remaining))


def _meet(press: Press, other: Press) -> bool:
    return (
        press.key == other.key
        and other.start < press.end + TOLERANCE
        and other.end > press.start - TOLERANCE
    )
