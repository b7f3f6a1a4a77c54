"""Plain recurrent networks against the HAL's formula in float64."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncnn import kernels
from asyncnn.hal.operations.bound import OperationFailedError, ValueNeededError
from asyncnn.hal.types import OperationType
from tests.kernels.operations import (
    F16,
    F32,
    bind,
    compute_all,
    constant,
    result,
    tensor,
)
from tests.kernels.recurrent.float_cells import ACTIVATIONS, TANH

STEP = OperationType.RNN
SEQUENCE = OperationType.UNIDIRECTIONAL_SEQUENCE_RNN
TWO_WAY = OperationType.BIDIRECTIONAL_SEQUENCE_RNN

CLOSE = {"rtol": 1e-5, "atol": 1e-6}
RELU = 1


class Cell(NamedTuple):
    weights: np.ndarray
    recurrent: np.ndarray
    bias: np.ndarray

    def given(self, type_=F32):
        return [constant(type_, array) for array in self]


def random_cell(inputs=3, units=5, seed=0) -> Cell:
    generator = np.random.default_rng(seed)
    shapes = (units, inputs), (units, units), (units,)
    return Cell(
        *(generator.normal(0, 0.4, shape).astype(np.float16) for shape in shapes)
    )


def random_array(*shape, seed=0):
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float16)


def expected_sequence(cell: Cell, sequence, state, activation):
    """Return the outputs [steps, batches, units] in float64."""
    act, units = np.vectorize(ACTIVATIONS[activation]), len(cell.bias)
    weights, recurrent, bias = (array.astype(np.float64) for array in cell)
    outputs = np.empty((*sequence.shape[:2], units))
    for step, inputs in enumerate(sequence.astype(np.float64)):
        for batch, x in enumerate(inputs):
            h = outputs[step - 1, batch] if step else state[batch]
            for unit in range(units):
                terms = weights[unit] @ x, recurrent[unit] @ h, bias[unit]
                outputs[step, batch, unit] = act(sum(terms))
    return outputs


def run_sequence(cell, sequence, state, activation=TANH, type_=F32, *, time_major=True):
    inputs = [
        tensor(type_, sequence),
        *cell.given(type_),
        tensor(type_, state),
        activation,
        int(time_major),
    ]
    outputs = result(type_, (*sequence.shape[:2], len(cell.bias)))
    return compute_all(SEQUENCE, inputs, [outputs, result(type_, state.shape)])


def run_two_way(
    cells,
    sequence,
    states,
    *,
    auxiliary=None,
    weights=(None, None),
    time_major=True,
    merge=False,
    with_states=True,
):
    inputs = [tensor(F32, sequence)]
    for cell, state in zip(cells, states, strict=True):
        inputs += [*cell.given(), tensor(F32, state)]
    inputs.append(None if auxiliary is None else tensor(F32, auxiliary))
    inputs += [None if w is None else constant(F32, w) for w in weights]
    inputs += [TANH, time_major, merge]
    lengths = [len(cell.bias) for cell in cells]
    described = [
        result(F32, (*sequence.shape[:2], length))
        for length in ([sum(lengths)] if merge else lengths)
    ]
    if with_states:
        described += [result(F32, state.shape) for state in states]
    return compute_all(TWO_WAY, inputs, described)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_step_follows_the_formula(activation) -> None:
    cell, x, state = random_cell(), random_array(4, 3), random_array(4, 5, seed=1)
    inputs = [tensor(F32, x), *cell.given(), tensor(F32, state), activation]
    last, output = compute_all(STEP, inputs, [result(F32, (4, 5))] * 2)
    (expected,) = expected_sequence(cell, x[None], state, activation)
    np.testing.assert_allclose(output, expected, **CLOSE)
    np.testing.assert_array_equal(last, output)


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(OperationFailedError, match="5 is not an activation"):
        run_sequence(random_cell(), random_array(2, 1, 3), random_array(1, 5), 5)


def test_weights_must_be_known_at_preparation() -> None:
    cell = random_cell()
    inputs = [tensor(F32, random_array(1, 3)), *cell.given()]
    inputs += [tensor(F32, random_array(1, 5)), TANH]
    inputs[2] = tensor(F32, cell.recurrent)
    with pytest.raises(ValueNeededError):
        kernels.prepare(bind(STEP, inputs, [result(F32, (1, 5))] * 2))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_sequence_follows_the_formula(data) -> None:
    inputs, units, steps, batches = (data.draw(st.integers(1, 5)) for _ in range(4))
    activation = data.draw(st.sampled_from(sorted(ACTIVATIONS)))
    cell = random_cell(inputs, units, data.draw(st.integers(0, 99)))
    sequence, state = random_array(steps, batches, inputs), random_array(batches, units)
    outputs, last = run_sequence(cell, sequence, state, activation)
    expected = expected_sequence(cell, sequence, state, activation)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(last, outputs[-1])


def test_batch_major_sequences_are_time_major_ones_transposed() -> None:
    cell, sequence, state = random_cell(), random_array(4, 2, 3), random_array(2, 5)
    outputs, last = run_sequence(cell, sequence, state)
    transposed, same = run_sequence(
        cell, sequence.swapaxes(0, 1), state, time_major=False
    )
    np.testing.assert_allclose(transposed.swapaxes(0, 1), outputs, **CLOSE)
    np.testing.assert_allclose(same, last, **CLOSE)


def test_float16_is_computed_in_float32_and_rounded_once() -> None:
    cell, sequence, state = random_cell(), random_array(4, 2, 3), random_array(2, 5)
    half = run_sequence(cell, sequence, state, RELU, F16)
    full = run_sequence(cell, sequence, state, RELU, F32)
    for narrow, wide in zip(half, full, strict=True):
        np.testing.assert_array_equal(narrow, wide.astype(np.float16))


def test_the_state_need_not_be_an_output() -> None:
    cell, sequence, state = random_cell(), random_array(4, 2, 3), random_array(2, 5)
    inputs = [tensor(F32, sequence), *cell.given(), tensor(F32, state), TANH, 1]
    (outputs,) = compute_all(SEQUENCE, inputs, [result(F32, (4, 2, 5))])
    np.testing.assert_array_equal(outputs, run_sequence(cell, sequence, state)[0])


CELLS = random_cell(units=5, seed=1), random_cell(units=4, seed=2)
STATES = random_array(2, 5, seed=3), random_array(2, 4, seed=4)


@pytest.mark.parametrize("with_states", [False, True])
@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("time_major", [False, True])
def test_two_directions_are_two_sequences(time_major, merge, with_states) -> None:
    sequence = random_array(4, 2, 3)
    forward, forward_last = run_sequence(CELLS[0], sequence, STATES[0])
    backward, backward_last = run_sequence(CELLS[1], sequence[::-1], STATES[1])
    expected = [forward, backward[::-1]]
    if merge:
        expected = [np.concatenate(expected, axis=2)]
    if not time_major:
        sequence = sequence.swapaxes(0, 1)
        expected = [outputs.swapaxes(0, 1) for outputs in expected]
    if with_states:
        expected += [forward_last, backward_last]
    computed = run_two_way(
        CELLS,
        sequence,
        STATES,
        time_major=time_major,
        merge=merge,
        with_states=with_states,
    )
    for got, wanted in zip(computed, expected, strict=True):
        np.testing.assert_allclose(got, wanted, **CLOSE)


def test_an_auxiliary_input_without_weights_feeds_the_backward_cell() -> None:
    cells = CELLS[0], random_cell(inputs=2, units=4, seed=2)
    sequence, auxiliary = random_array(4, 2, 3), random_array(4, 2, 2, seed=5)
    forward, backward, *_ = run_two_way(cells, sequence, STATES, auxiliary=auxiliary)
    expected = [
        run_sequence(cells[0], sequence, STATES[0])[0],
        run_sequence(cells[1], auxiliary[::-1], STATES[1])[0][::-1],
    ]
    np.testing.assert_allclose(forward, expected[0], **CLOSE)
    np.testing.assert_allclose(backward, expected[1], **CLOSE)


def test_an_auxiliary_input_with_weights_is_joined_to_the_input() -> None:
    wide = [random_cell(5, len(cell.bias), seed) for seed, cell in enumerate(CELLS)]
    cells = [cell._replace(weights=cell.weights[:, :3]) for cell in wide]
    weights = [cell.weights[:, 3:] for cell in wide]
    sequence, auxiliary = random_array(4, 2, 3), random_array(4, 2, 2, seed=5)
    joined = run_two_way(wide, np.concatenate([sequence, auxiliary], 2), STATES)
    computed = run_two_way(
        cells, sequence, STATES, auxiliary=auxiliary, weights=weights
    )
    for got, wanted in zip(computed, joined, strict=True):
        np.testing.assert_allclose(got, wanted, **CLOSE)
