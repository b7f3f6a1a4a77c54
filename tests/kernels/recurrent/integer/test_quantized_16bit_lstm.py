"""QUANTIZED_16BIT_LSTM against exact fractions and the real functions."""

import math
from fractions import Fraction

import numpy as np
import pytest

from asyncnn import kernels
from asyncnn.hal.operations.bound import ValueNeededError
from asyncnn.hal.types import OperationType
from asyncnn.kernels.recurrent.integer_steps import tanh_table
from tests.kernels.operations import (
    I32,
    Q8,
    bind,
    compute_all,
    constant,
    result,
    tensor,
)
from tests.kernels.recurrent.integer.quantized_cells import Q16S

OPERATION = OperationType.QUANTIZED_16BIT_LSTM
SCALE, ZERO_POINT = 0.004, 100
DATA = 1 / 128, 128
STATE_SCALE = 2.0**-11


class Cell:
    def __init__(self, inputs=3, units=4, seed=0):
        generator = np.random.default_rng(seed)
        codes = generator.integers(0, 256, (4, units, inputs + units))
        self.inputs = codes[..., :inputs]
        self.recurrent = codes[..., inputs:]
        self.bias = generator.integers(-30000, 30000, (4, units))
        self.units = units

    def given(self, x, memory, output):
        return [
            tensor(Q8, x, *DATA),
            *(constant(Q8, codes, SCALE, ZERO_POINT) for codes in self.inputs),
            *(constant(Q8, codes, SCALE, ZERO_POINT) for codes in self.recurrent),
            *(constant(I32, bias, SCALE / 128) for bias in self.bias),
            tensor(Q16S, memory, STATE_SCALE),
            tensor(Q8, output, *DATA),
        ]

    def described(self, batches):
        shape = batches, self.units
        return [result(Q16S, shape, STATE_SCALE), result(Q8, shape, *DATA)]

    def step(self, x, memory, output):
        inputs = self.given(x, memory, output)
        return compute_all(OPERATION, inputs, self.described(len(x)))

    def gates(self, x, output):
        """Return the real sums of input, forget, cell and output gate."""
        weights = np.concatenate([self.recurrent, self.inputs], 2) - ZERO_POINT
        data = np.concatenate([x, output], 1).astype(np.int64) - 128
        sums = np.einsum("gui,bi->gbu", weights, data) + self.bias[:, np.newaxis]
        return sums * (SCALE / 128)


def random_arguments(cell, batches=5, seed=0):
    generator = np.random.default_rng(seed)
    size = cell.inputs.shape[2]
    return (
        generator.integers(0, 256, (batches, size)),
        generator.integers(-(2**15), 2**15, (batches, cell.units)),
        generator.integers(0, 256, (batches, cell.units)),
    )


@pytest.mark.parametrize("sizes", [(3, 4), (1, 8), (9, 2), (40, 1)])
def test_a_step_is_close_to_the_real_functions(sizes) -> None:
    cell = Cell(*sizes)
    x, memory, output = random_arguments(cell)
    enter, forget, candidate, leave = cell.gates(x, output)
    enter, forget, leave = (1 / (1 + np.exp(-g)) for g in (enter, forget, leave))
    state = forget * memory * STATE_SCALE + enter * np.tanh(candidate)
    hidden = leave * np.tanh(state)
    new_memory, new_output = cell.step(x, memory, output)
    np.testing.assert_allclose(new_memory * STATE_SCALE, state, rtol=0, atol=8e-3)
    np.testing.assert_allclose((new_output - 128.0) / 128, hidden, rtol=0, atol=1 / 64)


def saturated(value: int) -> int:
    return min(max(value, -(2**15)), 2**15 - 1)


@pytest.mark.parametrize("memory", [-32768, -20000, -16385, 1, 16383, 16384, 32767])
def test_with_open_gates_the_output_is_tanh_of_the_state(memory) -> None:
    cell = Cell(units=1)
    cell.inputs[...] = cell.recurrent[...] = ZERO_POINT
    # Gates saturate: nothing enters, and what is remembered and shown nearly is all.
    cell.bias[:] = [[-(10**6)], [10**6], [0], [10**6]]
    x, _, output = random_arguments(cell, batches=1)
    new_memory, new_output = cell.step(x, np.array([[memory]]), output)
    nearly_one = round(2**15 / (1 + math.exp(-8)))
    kept = math.floor(Fraction(memory * nearly_one, 2**15) + Fraction(1, 2))
    assert abs(int(new_memory.item()) - kept) <= 1
    tanh = int(tanh_table(3)[saturated(2 * int(new_memory.item())) + 2**15])
    assert abs(new_output.item() - 128 - tanh / 256) <= 1


def test_a_state_saturates() -> None:
    cell = Cell(units=1)
    cell.inputs[...] = cell.recurrent[...] = ZERO_POINT
    cell.bias[...] = 10**6
    x, _, output = random_arguments(cell, batches=1)
    new_memory, new_output = cell.step(x, np.array([[32767]]), output)
    assert new_memory.item() == 32767
    assert new_output.item() == 255


def test_weights_must_be_known_at_preparation() -> None:
    cell = Cell()
    inputs = cell.given(*random_arguments(cell))
    inputs[2] = tensor(Q8, inputs[2].array, SCALE, ZERO_POINT)
    with pytest.raises(ValueNeededError):
        kernels.prepare(bind(OPERATION, inputs, cell.described(5)))
