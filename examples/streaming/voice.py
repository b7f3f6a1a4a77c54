"""Something that resembles talk: voiced syllables with formants, and hisses between.

Nobody would understand it, but it has what fools a detector of tones: strong harmonics
of a pitch that glides, right where the tones are.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

FORMANTS = ((250, 850), (850, 2400), (2300, 3300))
"""Ranges in Hz from which each syllable draws its resonances."""


def talk(rng: np.random.Generator, length: int, rate: int) -> NDArray[np.float64]:
    """Return ``length`` samples; the loudest syllables have an amplitude of about 1."""
    samples = np.zeros(length)
    pitch = rng.uniform(85, 260)
    for start, end in _syllables(rng, length, rate):
        count = end - start
        if rng.random() < 0.2:
            sound = np.diff(rng.normal(0, 0.3, count + 1))
        else:
            sound = _voiced(rng, pitch * rng.uniform(0.85, 1.2), count, rate)
        swell = np.sin(np.linspace(0, np.pi, count)) ** 0.5
        samples[start:end] += rng.uniform(0.3, 1) * swell * sound
    return samples


def _syllables(
    rng: np.random.Generator, length: int, rate: int
) -> Iterator[tuple[int, int]]:
    time = 0
    while time < length:
        end = min(length, time + round(rng.uniform(0.08, 0.3) * rate))
        yield time, end
        pause = rng.uniform(0.2, 0.6) if rng.random() < 0.15 else rng.uniform(0, 0.06)
        time = end + round(pause * rate)


def _voiced(
    rng: np.random.Generator, pitch: float, count: int, rate: int
) -> NDArray[np.float64]:
    """Sum the harmonics of a gliding pitch under an envelope of three formants."""
    glide = np.linspace(1, rng.uniform(0.8, 1.25), count)
    frequency = pitch * glide
    phase = 2 * np.pi * np.cumsum(frequency) / rate
    harmonics = np.arange(1, int(0.45 * rate / frequency.max()) + 1)[:, None]
    strength = np.zeros((len(harmonics), count))
    for low, high in FORMANTS:
        first, last = rng.uniform(low, high, 2).tolist()
        centre = np.linspace(first, last, count)
        width = rng.uniform(50, 150)
        peak = 500 / centre
        strength += peak / (1 + ((harmonics * frequency - centre) / width) ** 2)
    sound = (strength * np.sin(harmonics * phase)).sum(0)
    return np.asarray(sound / max(np.abs(sound).max(), 1e-9))
