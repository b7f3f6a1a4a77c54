"""Sparse constants are read as what they stand for, and damaged ones refused."""

import itertools
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.memory.pools import from_buffer
from tests.direct import run_direct
from tests.runtime.tflite.cases import F32, I8, i8
from tests.runtime.tflite.files import Level, Op, Sparse, T, write
from tests.runtime.tflite.importing import import_tflite
from tests.runtime.tflite.litert import run_litert


def compressed(
    dense: np.ndarray,
    order: Sequence[int],
    blocks: dict[int, int],
    formats: Sequence[bool],
    dtype: Any = np.int32,
) -> tuple[Sparse, np.ndarray]:
    """Return how an array is stored and what of it; ``formats`` tell what is dense."""
    rank = dense.ndim
    outer = [n // blocks.get(axis, 1) for axis, n in enumerate(dense.shape)]
    split = [
        size
        for axis, n in enumerate(outer)
        for size in ((n, blocks[axis]) if axis in blocks else (n,))
    ]
    places: list[int] = []
    inner = []
    for axis in range(rank):
        places.append(len(places) + len(inner))
        if axis in blocks:
            inner.append(places[-1] + 1)
    array = dense.reshape(split).transpose([*places, *inner])
    array = array.transpose(order)
    levels, live = [], [()]
    for level, is_dense in enumerate(formats):
        length = array.shape[level]
        if is_dense:
            levels.append(Level(length))
            live = [(*place, k) for place in live for k in range(length)]
            continue
        segments, indices, found = [0], [], []
        for place in live:
            for k in range(length):
                if array[(*place, k)].any():
                    indices.append(k)
                    found.append((*place, k))
            segments.append(len(indices))
        levels.append(Level(length, segments, indices, dtype))
        live = found
    stored = np.array([array[place] for place in live], dense.dtype)
    return Sparse(order, sorted(blocks), levels), stored


def some(shape: Sequence[int], seed: int = 0, dtype: Any = F32) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.integers(1, 100, shape) * (rng.random(shape) < 0.3)
    values.flat[-1] = 7
    return values.astype(dtype)


def added(stored: T, shape: Sequence[int], **rest: Any) -> tuple[bytes, list[T]]:
    """Return a file that densifies a constant and adds it to its input."""
    x, y = T(stored.dtype, shape, **rest), T(stored.dtype, shape, **rest)
    dense = T(stored.dtype, shape, **rest)
    add = Op("ADD", [x, dense], [y], "AddOptions")
    return write([Op("DENSIFY", [stored], [dense]), add], [x], [y]), [x]


def densified(dense: np.ndarray, *layout: Any, litert: bool = False) -> np.ndarray:
    """Return what the importer makes of a sparse array, after comparing with LiteRT."""
    sparse, values = compressed(dense, *layout)
    stored = T(dense.dtype, dense.shape, values, sparse=sparse)
    file, _ = added(stored, dense.shape)
    model = import_tflite(from_buffer(file)).model
    zeros = np.zeros(dense.shape, dense.dtype)
    (actual,) = run_direct(SimpleNamespace(model=model, inputs=[zeros]))
    if litert:
        np.testing.assert_array_equal(actual, run_litert(file, [zeros])[0])
    return actual


class TestLayouts:
    @pytest.mark.parametrize("order", list(itertools.permutations(range(2))))
    @pytest.mark.parametrize(
        "formats", list(itertools.product([True, False], repeat=2))
    )
    def test_matrices_of_any_order_and_format(
        self, order: tuple[int, ...], formats: tuple[bool, ...]
    ) -> None:
        dense = some((5, 7))
        actual = densified(dense, order, {}, formats, litert=order == (0, 1))
        np.testing.assert_array_equal(actual, dense)

    @pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32])
    def test_blocks_as_converters_store_them(self, dtype: Any) -> None:
        dense = some((8, 12))
        formats = [True, False, True, True]
        actual = densified(
            dense, (0, 1, 2, 3), {0: 2, 1: 4}, formats, dtype, litert=True
        )
        np.testing.assert_array_equal(actual, dense)

    @pytest.mark.parametrize("seed", range(30))
    def test_any_layout(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        rank = int(rng.integers(1, 5))
        blocks = {
            axis: int(rng.integers(1, 4)) for axis in range(rank) if rng.random() < 0.5
        }
        shape = [int(rng.integers(1, 5)) * blocks.get(axis, 1) for axis in range(rank)]
        count = rank + len(blocks)
        order = rng.permutation(count).tolist()
        formats = [axis >= rank or bool(rng.random() < 0.5) for axis in order]
        dense = some(shape, seed)
        np.testing.assert_array_equal(densified(dense, order, blocks, formats), dense)

    def test_quantised_weights_without_an_operator_that_densifies(self) -> None:
        dense = some((4, 8), dtype=I8)
        sparse, values = compressed(dense, (0, 1), {}, [True, False])
        weights = T(I8, dense.shape, values, sparse=sparse, scale=(0.5,))
        layer = Op(
            "FULLY_CONNECTED",
            [x := i8(2, 8), weights, None],
            [y := i8(2, 4, scale=3.0)],
            "FullyConnectedOptions",
        )
        model = import_tflite(from_buffer(write([layer], [x], [y]))).model
        plain = replace(weights, data=dense, sparse=None)
        layer = replace(layer, inputs=[x, plain, None])
        data = np.random.default_rng(1).integers(-128, 128, (2, 8), I8)
        (actual,) = run_direct(SimpleNamespace(model=model, inputs=[data]))
        (expected,) = run_litert(write([layer], [x], [y]), [data], reference=True)
        np.testing.assert_array_equal(actual, expected)


ROWS = Level(segments=(0, 1, 3), indices=(2, 0, 1))
GOOD = Sparse((0, 1), (), (Level(2), ROWS))
DAMAGED = {
    "order": (replace(GOOD, order=(0, 0)), "traversal order"),
    "short order": (replace(GOOD, order=(0,)), "traversal order"),
    "block map": (Sparse((0, 1, 2), (5,), (Level(2), ROWS, Level(1))), "block map"),
    "levels": (replace(GOOD, levels=(Level(2),)), "as many descriptions"),
    "length": (replace(GOOD, levels=(Level(3), ROWS)), "3 along an axis of 2"),
    "block": (Sparse((0, 1, 2), (1,), (Level(2), ROWS, Level(2))), "blocks of 2"),
    "segments": (
        replace(GOOD, levels=(Level(2), replace(ROWS, segments=(0, 3)))),
        "2 segments",
    ),
    "falling segments": (
        replace(GOOD, levels=(Level(2), replace(ROWS, segments=(0, 4, 3)))),
        "do not follow",
    ),
    "index": (
        replace(GOOD, levels=(Level(2), replace(ROWS, indices=(3, 0, 1)))),
        "beyond 3",
    ),
    "negative index": (
        replace(GOOD, levels=(Level(2), replace(ROWS, indices=(-1, 0, 1)))),
        "beyond 3",
    ),
    "repeated index": (
        replace(GOOD, levels=(Level(2), replace(ROWS, indices=(2, 1, 1)))),
        "do not rise",
    ),
    "values": (
        replace(GOOD, levels=(Level(2), Level(segments=(0, 1, 2), indices=(2, 0)))),
        "3 values for 2",
    ),
    "more places": (replace(GOOD, levels=(Level(2), Level(3))), "3 values for 6"),
}


class TestDamage:
    @pytest.mark.parametrize(("sparse", "reason"), DAMAGED.values(), ids=DAMAGED)
    def test_parameters_that_contradict_are_refused(
        self, sparse: Sparse, reason: str
    ) -> None:
        stored = T(F32, (2, 3), np.float32([1, 2, 3]), sparse=sparse)
        file, _ = added(stored, (2, 3))
        with pytest.raises(InvalidArgumentError, match=reason):
            import_tflite(from_buffer(file))

    def test_a_small_file_does_not_become_a_large_array(self) -> None:
        shape = (2**14, 2**14)
        lines = Level(segments=(0, 1), indices=(0,))
        columns = Level(segments=(0, 1), indices=(0,))
        sparse = Sparse((0, 1), (), (lines, columns))
        file, _ = added(T(F32, shape, np.float32([1]), sparse=sparse), shape)
        assert math.prod(shape) > 64 * len(file)
        with pytest.raises(InvalidArgumentError, match="times as long as the file"):
            import_tflite(from_buffer(file))

    def test_every_word_may_have_an_extreme_value(self) -> None:
        stored = T(F32, (2, 3), np.float32([1, 2, 3]), sparse=GOOD)
        file, _ = added(stored, (2, 3))
        for word in (b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\1\0\0\0"):
            for index in range(0, len(file) - 3, 4):
                mutant = file[:index] + word + file[index + 4 :]
                with suppress(AsyncnnError):
                    import_tflite(from_buffer(mutant))
