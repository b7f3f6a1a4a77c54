"""QUANTIZED_LSTM gives the very bits of LiteRT's integer LSTM, step after step."""

import itertools

import numpy as np
import pytest

from tests.kernels.recurrent.float_cells import Parts, Sizes
from tests.kernels.recurrent.integer.litert_lstm import run_reference
from tests.kernels.recurrent.integer.quantized_cells import (
    QuantizedCell,
    random_cell,
    random_codes,
)

STEPS, BATCHES = 6, 3


def check(cell: QuantizedCell) -> None:
    sequence = random_codes(STEPS, BATCHES, cell.sizes.inputs)
    expected = run_reference(cell, sequence)
    assert len(np.unique(expected)) > 4, "too saturated to show anything"
    output, memory = cell.initial_states(BATCHES)
    for step, x in enumerate(sequence):
        output, memory, _ = cell.step(x, output, memory)
        np.testing.assert_array_equal(output, expected[step], f"in step {step}")


@pytest.mark.parametrize("clips", [(0.0, 0.0), (0.4, 0.3)])
@pytest.mark.parametrize("optional", list(itertools.product([False, True], repeat=4)))
def test_with_any_parts(optional, clips) -> None:
    parts = Parts(*optional, cell_clip=clips[0], projection_clip=clips[1])
    # With peepholes and a projection, LiteRT needs as many outputs as units.
    sizes = Sizes(7, 12, 12 if parts.peephole else 5)
    check(random_cell(parts, sizes, output_zero_point=-4))


@pytest.mark.parametrize("zero_point", [-20, 9, 40])
@pytest.mark.parametrize("seed", range(3))
def test_with_a_hidden_zero_point(seed, zero_point) -> None:
    parts, sizes = Parts(projection=True), Sizes(7, 12, 5)
    check(random_cell(parts, sizes, seed, hidden_zero_point=zero_point))


def test_without_the_bias_of_a_projection() -> None:
    check(random_cell(Parts(projection=True, projection_bias=False), Sizes(7, 12, 5)))


def test_with_sums_beyond_float32() -> None:
    check(random_cell(sizes=Sizes(1500, 8)))


def test_with_a_single_unit() -> None:
    check(random_cell(Parts(norm=True, projection=True), Sizes(4, 1, 3)))
