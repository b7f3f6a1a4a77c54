"""Philox 4x32-10 and the streams of doubles made from it."""

import numpy as np
import pytest

from asyncnn.kernels.multinomial import philox_4x32, uniform_doubles

KNOWN = [
    ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]
"""Counter, key and words, as published with the algorithm."""


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_words_are_the_published_ones(counter, key, words) -> None:
    arrays = tuple(np.array([word], np.uint64) for word in counter)
    given = philox_4x32(arrays, tuple(key))
    assert " ".join(f"{word[0]:08x}" for word in given) == words


def test_a_stream_begins_with_the_words_of_counter_zero() -> None:
    first, second = uniform_doubles(0, 0, 0, 2)
    assert first == ((0x6627E8D5 & 0xFFFFF) << 32 | 0xE169C58D) / 2**52
    assert second == ((0xBC57AC4C & 0xFFFFF) << 32 | 0x9B00DBD8) / 2**52


@pytest.mark.parametrize("start", [0, 1, 6, 7])
@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_any_part_of_a_stream_can_be_computed_by_itself(start, count) -> None:
    whole = uniform_doubles(-3, 2**63 + 5, 0, 12)
    part = uniform_doubles(-3, 2**63 + 5, start, count)
    np.testing.assert_array_equal(part, whole[start : start + count])


def test_a_stream_does_not_repeat_after_32_bits_of_counter() -> None:
    first, later = (uniform_doubles(1, 2, start, 4) for start in (0, 2**33))
    assert (first != later).all()


@pytest.mark.parametrize("other", [(2, 1), (1, 3), (1 + 2**32, 2), (1, 2 + 2**32)])
def test_all_64_bits_of_seed_and_stream_matter(other) -> None:
    numbers, others = (uniform_doubles(*pair, 0, 8) for pair in ((1, 2), other))
    assert (numbers != others).all()


def test_numbers_are_uniform() -> None:
    numbers = uniform_doubles(7, 11, 0, 100_000)
    counts, _ = np.histogram(numbers, 20, (0, 1))
    assert counts.sum() == 100_000
    # Chi-squared with 19 degrees of freedom exceeds 44 once in a thousand times.
    assert ((counts - 5000) ** 2 / 5000).sum() < 44
