"""Recordings of a telephone line, made up: keys pressed amid noise, talk and tones.

A key is heard as two sine waves at once, one for its row and one for its column: DTMF.
Around them is what makes the task real: hiss and hum, a talker in the background or in
the pauses, the network's own dial and busy tones, a level that drifts, oscillators that
are off by a percent, and keys as short as 40 ms.
"""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from voice import talk

Signal: TypeAlias = NDArray[np.float64]
"""Samples; full scale is 1."""

RATE = 8000
"""Samples a second."""

ROWS = (697, 770, 852, 941)
COLUMNS = (1209, 1336, 1477, 1633)
KEYS = "123A456B789C*0#D"
"""Row by row."""

SIGNALLING = ((350, 440), (480, 620), (425,), (1004,), (1400,), (2100,))
"""Tones in Hz that are no keys: dialling, busy, test and fax."""

MAX_DETUNING = 0.015
SHORTEST = 0.04
"""Seconds that a key, or a pause between keys, lasts at least."""

MAX_TWIST_DB = 8.0
"""Loudness of one sine wave of a key against the other."""

_RAMP_SECONDS = 0.003
_LONG_PAUSE = 0.5
"""Pauses in which somebody may talk or a signalling tone may sound."""


class Press(NamedTuple):
    """A key held from ``start`` to ``end``, in seconds."""

    key: str
    start: float
    end: float


class Recording(NamedTuple):
    """Samples at 8 kHz and the keys pressed in them, in order of time."""

    samples: NDArray[np.int16]
    presses: tuple[Press, ...]


def record(seed: int, seconds: float = 12.0) -> Recording:
    """Return the recording that ``seed`` stands for."""
    rng = np.random.default_rng(seed)
    presses = tuple(_presses(rng, seconds))
    samples = np.zeros(round(seconds * RATE))
    level_db = rng.uniform(-30, -10)
    for press in presses:
        loudness = level_db + rng.uniform(-3, 3)
        _add(samples, press.start, _key_tone(rng, press, loudness))
    for start, end in _long_pauses(presses, seconds):
        _add(samples, start, _between_presses(rng, end - start, level_db))
    if rng.random() < 0.5:
        loudness = level_db - rng.uniform(3, 25)
        samples += gain(loudness) * talk(rng, len(samples), RATE)
    samples += _noise(rng, len(samples), level_db - rng.uniform(2, 40))
    samples *= gain(_drift(rng, len(samples)))
    codes = np.clip(np.rint(samples * 32768), -32768, 32767)
    return Recording(codes.astype(np.int16), presses)


def gain(decibels: float | Signal) -> Signal:
    """Return the factor of amplitude."""
    return np.asarray(10 ** (np.asarray(decibels) / 20))


def _presses(rng: np.random.Generator, seconds: float) -> Iterator[Press]:
    """Yield numbers dialled quickly, with longer pauses between them."""
    time = rng.uniform(0.2, 1.5)
    while time < seconds - 2:
        hold, gap = rng.uniform(SHORTEST, 0.2, 2).tolist()
        for key in rng.choice(list(KEYS), rng.integers(3, 12)):
            end = time + max(SHORTEST, hold * rng.uniform(0.8, 1.2))
            if end > seconds - 0.2:
                return
            yield Press(str(key), time, end)
            time = end + max(SHORTEST, gap * rng.uniform(0.8, 1.2))
        time += rng.uniform(0.3, 2.5)


def _key_tone(rng: np.random.Generator, press: Press, loudness: float) -> Signal:
    row, column = divmod(KEYS.index(press.key), 4)
    twist = rng.uniform(-MAX_TWIST_DB, MAX_TWIST_DB) / 2
    length = round((press.end - press.start) * RATE)
    return gain(loudness + twist) * _sine(rng, ROWS[row], length) + gain(
        loudness - twist
    ) * _sine(rng, COLUMNS[column], length)


def _sine(rng: np.random.Generator, frequency: float, length: int) -> Signal:
    """Return a sine wave of amplitude 1, detuned, with soft edges."""
    frequency *= 1 + rng.uniform(-MAX_DETUNING, MAX_DETUNING)
    index = np.arange(length)
    edges = np.minimum(index + 1, length - index) / (_RAMP_SECONDS * RATE)
    phase = 2 * np.pi * frequency / RATE * index + rng.uniform(0, 2 * np.pi)
    return np.asarray(np.minimum(edges, 1) * np.sin(phase))


def _long_pauses(
    presses: tuple[Press, ...], seconds: float
) -> Iterator[tuple[float, float]]:
    starts = [0.0, *(press.end for press in presses)]
    ends = [*(press.start for press in presses), seconds]
    for start, end in zip(starts, ends, strict=True):
        if end - start > _LONG_PAUSE:
            yield start + 0.05, end - 0.05


def _between_presses(
    rng: np.random.Generator, seconds: float, level_db: float
) -> Signal:
    """Return what is heard in a pause: loud talk, a signalling tone, or nothing."""
    length = round(seconds * RATE)
    loudness = level_db + rng.uniform(-12, 9)
    event = rng.choice(["talk", "tone", "nothing"], p=[0.6, 0.15, 0.25])
    if event == "talk":
        return np.asarray(gain(loudness) * talk(rng, length, RATE))
    if event == "tone":
        tones = SIGNALLING[rng.integers(len(SIGNALLING))]
        return np.asarray(gain(loudness) * sum(_sine(rng, f, length) for f in tones))
    return np.zeros(length)


def _noise(rng: np.random.Generator, length: int, loudness: float) -> Signal:
    """Return hiss, white or darker, and hum of the mains."""
    white = rng.normal(0, 1, length)
    darkness = rng.uniform(0, 0.9)
    hiss = white.copy()
    hiss[1:] += darkness * white[:-1]
    hum = _sine(rng, rng.choice([50, 100, 120]), length) * rng.uniform(0, 2)
    return np.asarray(gain(loudness) * (hiss / hiss.std() + hum))


def _drift(rng: np.random.Generator, length: int) -> Signal:
    """Return a level in dB that wanders slowly and jumps once."""
    knots = rng.uniform(-4, 4, 6)
    level = np.interp(np.arange(length), np.linspace(0, length, 6), knots)
    level[rng.integers(length) :] += rng.uniform(-6, 6)
    return np.asarray(level)


def _add(samples: Signal, start: float, part: Signal) -> None:
    first = round(start * RATE)
    part = part[: len(samples) - first]
    samples[first : first + len(part)] += part
