"""Philox 4x32-10: random numbers as a function of a key and a counter.

Any part of a stream can be computed by itself, and all of it at once. Streams are those
of the reference device, number for number.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint64]
"""32-bit numbers, in 64 bits to hold their products."""

_ROUNDS = 10
_LOW = 2**32 - 1
_HALF = np.uint64(32)
_MANTISSA_HIGH = np.uint64(2**20 - 1)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox_4x32(
    counter: tuple[Words, Words, Words, Words], key: tuple[int, int]
) -> tuple[Words, Words, Words, Words]:
    """Return four random words for each counter; its words broadcast."""
    a, b, c, d = counter
    for round_ in range(_ROUNDS):
        first, second = (
            np.uint64((word + round_ * step) & _LOW)
            for word, step in zip(key, _WEYL, strict=True)
        )
        left, right = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b = (right >> _HALF) ^ b ^ first, right & np.uint64(_LOW)
        c, d = (left >> _HALF) ^ d ^ second, left & np.uint64(_LOW)
    return a, b, c, d


def uniform_doubles(
    seed: int, stream: int, start: int, count: int
) -> NDArray[np.float64]:
    """Return numbers ``start`` to ``start + count`` of a stream, all in ``[0, 1)``.

    ``seed`` and ``stream`` are 64-bit integers, of either sign.
    """
    blocks = np.arange(start // 2, (start + count + 1) // 2, dtype=np.uint64)
    counter = (*_split(blocks), *_split(np.full(1, stream % 2**64, np.uint64)))
    words = philox_4x32(counter, (seed & _LOW, (seed >> 32) & _LOW))
    pairs = np.stack(words, axis=-1).reshape(-1, 2)
    mantissas = ((pairs[:, 0] & _MANTISSA_HIGH) << _HALF) | pairs[:, 1]
    numbers = mantissas[start % 2 :][:count] * 2.0**-52
    return np.asarray(numbers, np.float64)


def _split(words: Words) -> tuple[Words, Words]:
    """Return the low and the high halves."""
    return words & np.uint64(_LOW), words >> _HALF
