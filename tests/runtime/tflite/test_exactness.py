"""Quantised operators give the very bits of LiteRT's reference kernels."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from asyncnn.memory.pools import from_buffer
from tests.direct import run_direct
from tests.runtime.tflite.importing import import_tflite
from tests.runtime.tflite.litert import run_litert
from tests.runtime.tflite.quantized_cases import (
    CLOSE,
    EXACT,
    EXACT_SIGNED,
    Builder,
    Random,
    concatenation,
)

SEEDS = range(8)


def differences(build: Builder, dtype: Any) -> np.ndarray:
    """Return by how much the imported operators are above LiteRT's, over all seeds."""
    pairs = np.concatenate([results(build, seed, dtype) for seed in SEEDS], axis=1)
    actual, expected = pairs.astype(int)
    limits = np.iinfo(dtype)
    clipped = np.isin(expected, (limits.min, limits.max))
    assert clipped.mean() < 0.75, "too saturated to show anything"
    return actual - expected


def results(build: Builder, seed: int, dtype: Any) -> np.ndarray:
    """Return what the imported operator computes, and below what LiteRT does."""
    draw = Random(seed, dtype)
    case = build(draw)
    inputs = [draw.codes(tensor.shape) for tensor in case.inputs]
    model = import_tflite(from_buffer(case.file())).model
    (actual,) = run_direct(SimpleNamespace(model=model, inputs=inputs))
    (expected,) = run_litert(case.file(), inputs, reference=True)
    return np.stack([actual.ravel(), expected.ravel()])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("build", EXACT.values(), ids=EXACT)
def test_bytes_of_both_kinds_are_exact(build: Builder, dtype: Any) -> None:
    assert not differences(build, dtype).any()


@pytest.mark.parametrize("build", EXACT_SIGNED.values(), ids=EXACT_SIGNED)
def test_signed_bytes_are_exact(build: Builder) -> None:
    assert not differences(build, np.int8).any()


def test_unsigned_bytes_are_requantised_exactly_when_joined() -> None:
    assert not differences(concatenation(requantized=True), np.uint8).any()


@pytest.mark.parametrize("build", CLOSE.values(), ids=CLOSE)
def test_what_is_rounded_otherwise_is_off_by_one_and_seldom(build: Builder) -> None:
    distances = np.abs(differences(build, np.int8))
    assert distances.max() <= 1
    assert distances.mean() < 0.1
