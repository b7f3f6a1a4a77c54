"""LSTM in all its forms against the HAL's formula in plain float64 loops."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncnn import kernels
from asyncnn.hal.operations.bound import OperationFailedError, ValueNeededError
from asyncnn.hal.types import OperationType
from tests.kernels.operations import F16, F32, bind, compute_all, result, tensor
from tests.kernels.recurrent.float_cells import (
    ACTIVATIONS,
    Cell,
    Parts,
    Sizes,
    expected_sequence,
    expected_step,
    random_cell,
    random_states,
)

STEP = OperationType.LSTM
SEQUENCE = OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM
TWO_WAY = OperationType.BIDIRECTIONAL_SEQUENCE_LSTM

CLOSE = {"rtol": 1e-5, "atol": 2e-6}
HALF_CLOSE = {"rtol": 2e-3, "atol": 2e-3}

SOME_PARTS = [
    Parts(),
    Parts(coupled=True, norm=True),
    Parts(peephole=True, projection=True, projection_clip=0.25),
    Parts(True, True, True, True, cell_clip=0.375),
]


def random_input(*shape, seed=0):
    values = np.random.default_rng(seed).normal(0, 1, shape)
    return values.astype(np.float16).astype(np.float32)


def step_inputs(cell: Cell, x, states, type_=F32):
    return [
        tensor(type_, x),
        *cell.given(type_),
        *(tensor(type_, state) for state in states),
        *cell.scalars(type_),
        *cell.given_norm(type_),
    ]


def run_step(cell: Cell, x, states, type_=F32):
    output, memory = (result(type_, state.shape) for state in states)
    gates = 3 if cell.parts.coupled else 4
    scratch = result(type_, (len(x), gates * cell.sizes.units))
    inputs = step_inputs(cell, x, states, type_)
    return compute_all(STEP, inputs, [scratch, output, memory, output])


def run_sequence(cell: Cell, sequence, states, type_=F32, *, time_major=True):
    inputs = step_inputs(cell, sequence, states, type_)
    inputs.insert(23, time_major)
    outputs = result(type_, (*sequence.shape[:2], cell.sizes.outputs))
    last = [result(type_, state.shape) for state in states]
    return compute_all(SEQUENCE, inputs, [outputs, *last])


def run_two_way(
    cells,
    sequence,
    states,
    *,
    time_major=True,
    merge=False,
    auxiliary=None,
    weights=(None,) * 8,
    with_states=True,
):
    forward, backward = cells
    inputs = [
        tensor(F32, sequence),
        *forward.given(),
        *backward.given(),
        *(tensor(F32, state) for pair in states for state in pair),
        None if auxiliary is None else tensor(F32, auxiliary),
        *weights,
        *forward.scalars(),
        merge,
        time_major,
        *forward.given_norm(),
        *backward.given_norm(),
    ]
    lengths = [cell.sizes.outputs for cell in cells]
    described = [
        result(F32, (*sequence.shape[:2], length))
        for length in ([sum(lengths)] if merge else lengths)
    ]
    if with_states:
        described += [result(F32, state.shape) for pair in states for state in pair]
    return compute_all(TWO_WAY, inputs, described)


@pytest.mark.parametrize("clips", [(0.0, 0.0), (0.3, 0.2)])
@pytest.mark.parametrize(
    "optional",
    list(itertools.product([False, True], repeat=4)),
    ids=lambda flags: "-".join(
        name
        for name, flag in zip(("cifg", "peep", "norm", "proj"), flags, strict=True)
        if flag
    ),
)
def test_a_step_follows_the_formula(optional, clips) -> None:
    cell = random_cell(Parts(*optional, cell_clip=clips[0], projection_clip=clips[1]))
    x, states = random_input(4, 3), random_states(cell, 4)
    scratch, state, memory, output = run_step(cell, x, states)
    expected_output, expected_memory = expected_step(cell, x, *states)
    np.testing.assert_allclose(output, expected_output, **CLOSE)
    np.testing.assert_allclose(memory, expected_memory, **CLOSE)
    np.testing.assert_array_equal(state, output)
    assert not scratch.any()


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("coupled", [False, True])
def test_the_activation_serves_candidate_and_output(coupled, activation) -> None:
    cell = random_cell(Parts(coupled=coupled, peephole=True, activation=activation))
    x, states = 3 * random_input(4, 3), random_states(cell, 4)
    _, _, memory, output = run_step(cell, x, states)
    expected_output, expected_memory = expected_step(cell, x, *states)
    np.testing.assert_allclose(output, expected_output, **CLOSE)
    np.testing.assert_allclose(memory, expected_memory, **CLOSE)


def test_a_projection_may_lack_its_bias() -> None:
    cell = random_cell(Parts(projection=True, projection_bias=False))
    x, states = random_input(2, 3), random_states(cell, 2)
    output = run_step(cell, x, states)[3]
    np.testing.assert_allclose(output, expected_step(cell, x, *states)[0], **CLOSE)


def test_saturated_gates_neither_overflow_nor_vanish() -> None:
    cell = random_cell()
    x, states = 1e4 * random_input(4, 3), random_states(cell, 4)
    _, _, memory, output = run_step(cell, x, states)
    assert np.isfinite(memory).all()
    assert np.abs(output).max() <= 1


@pytest.mark.parametrize("code", [-1, 5, 7])
def test_an_unknown_activation_is_refused(code) -> None:
    cell = random_cell(Parts(activation=code))
    with pytest.raises(OperationFailedError, match=f"{code} is not an activation"):
        run_step(cell, random_input(1, 3), random_states(cell, 1))


def test_weights_must_be_known_at_preparation() -> None:
    cell = random_cell()
    inputs = step_inputs(cell, random_input(1, 3), random_states(cell, 1))
    inputs[6] = tensor(F32, inputs[6].array)
    outputs = [result(F32, (1, 5))] * 4
    with pytest.raises(ValueNeededError):
        kernels.prepare(bind(STEP, inputs, outputs))


@pytest.mark.parametrize("parts", SOME_PARTS, ids=str)
def test_a_sequence_is_one_step_after_the_other(parts) -> None:
    cell = random_cell(parts)
    sequence, states = random_input(6, 2, 3), random_states(cell, 2)
    outputs, last_output, last_memory = run_sequence(cell, sequence, states)
    for x, output in zip(sequence, outputs, strict=True):
        _, *states, _ = run_step(cell, x, states)
        np.testing.assert_allclose(output, states[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(last_output, states[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(last_memory, states[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("parts", SOME_PARTS, ids=str)
def test_batch_major_sequences_are_time_major_ones_transposed(parts) -> None:
    cell = random_cell(parts)
    sequence, states = random_input(6, 3, 3), random_states(cell, 3)
    outputs, *last = run_sequence(cell, sequence, states)
    transposed, *last_of_transposed = run_sequence(
        cell, sequence.swapaxes(0, 1), states, time_major=False
    )
    np.testing.assert_allclose(transposed.swapaxes(0, 1), outputs, **CLOSE)
    for one, other in zip(last, last_of_transposed, strict=True):
        np.testing.assert_allclose(one, other, **CLOSE)


@pytest.mark.parametrize("parts", SOME_PARTS, ids=str)
def test_float16_is_computed_in_float32_and_rounded_once(parts) -> None:
    cell = random_cell(parts)
    sequence, states = random_input(5, 2, 3), random_states(cell, 2)
    half = run_sequence(cell, sequence, states, F16)
    full = run_sequence(cell, sequence, states, F32)
    for narrow, wide in zip(half, full, strict=True):
        np.testing.assert_array_equal(narrow, wide.astype(np.float16))
    half_step = run_step(cell, sequence[0], states, F16)
    expected = expected_step(cell, sequence[0], *states)
    np.testing.assert_allclose(half_step[3], expected[0], **HALF_CLOSE)


def test_states_need_not_be_outputs() -> None:
    cell = random_cell()
    sequence, states = random_input(3, 2, 3), random_states(cell, 2)
    inputs = step_inputs(cell, sequence, states)
    inputs.insert(23, True)
    (outputs,) = compute_all(SEQUENCE, inputs, [result(F32, (3, 2, 5))])
    expected = run_sequence(cell, sequence, states)[0]
    np.testing.assert_array_equal(outputs, expected)


@pytest.mark.parametrize("outer", [(0, 2), (3, 0)])
def test_empty_sequences_leave_the_states(outer) -> None:
    cell = random_cell()
    states = random_states(cell, outer[1])
    outputs, *last = run_sequence(cell, random_input(*outer, 3), states)
    assert outputs.shape == (*outer, 5)
    for state, initial in zip(last, states, strict=True):
        np.testing.assert_array_equal(state, initial)


TWO_CELLS = [
    (random_cell(Parts(), seed=1), random_cell(Parts(), seed=2)),
    (
        random_cell(Parts(coupled=True, peephole=True), Sizes(3, 4), seed=3),
        random_cell(Parts(projection=True, norm=True), Sizes(3, 6, 2), seed=4),
    ),
]


def both_states(cells, batches):
    return [random_states(cell, batches, seed) for seed, cell in enumerate(cells)]


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("cells", TWO_CELLS, ids=["alike", "unlike"])
def test_two_directions_are_two_sequences(cells, time_major, merge) -> None:
    sequence, states = random_input(5, 2, 3), both_states(cells, 2)
    forward, *forward_last = run_sequence(cells[0], sequence, states[0])
    backward, *backward_last = run_sequence(cells[1], sequence[::-1], states[1])
    expected = [forward, backward[::-1]]
    if merge:
        expected = [np.concatenate(expected, axis=2)]
    if not time_major:
        sequence = sequence.swapaxes(0, 1)
        expected = [outputs.swapaxes(0, 1) for outputs in expected]
    computed = run_two_way(cells, sequence, states, time_major=time_major, merge=merge)
    for got, wanted in zip(
        computed, [*expected, *forward_last, *backward_last], strict=True
    ):
        np.testing.assert_allclose(got, wanted, **CLOSE)


@pytest.mark.parametrize("merge", [False, True])
def test_the_states_of_two_directions_need_not_be_outputs(merge) -> None:
    cells = TWO_CELLS[1]
    sequence, states = random_input(4, 2, 3), both_states(cells, 2)
    options = {"merge": merge}
    alone = run_two_way(cells, sequence, states, with_states=False, **options)
    among = run_two_way(cells, sequence, states, **options)
    assert len(alone) == (1 if merge else 2)
    for one, other in zip(alone, among, strict=False):
        np.testing.assert_array_equal(one, other)


def test_an_auxiliary_input_without_weights_feeds_the_backward_cell() -> None:
    cells = (random_cell(seed=1), random_cell(sizes=Sizes(inputs=4), seed=2))
    sequence, auxiliary = random_input(5, 2, 3), random_input(5, 2, 4, seed=9)
    states = both_states(cells, 2)
    forward, backward, *_ = run_two_way(cells, sequence, states, auxiliary=auxiliary)
    np.testing.assert_allclose(
        forward, run_sequence(cells[0], sequence, states[0])[0], **CLOSE
    )
    np.testing.assert_allclose(
        backward[::-1], run_sequence(cells[1], auxiliary[::-1], states[1])[0], **CLOSE
    )


@pytest.mark.parametrize("coupled", [False, True])
def test_an_auxiliary_input_with_weights_is_joined_to_the_input(coupled) -> None:
    wide = [
        random_cell(Parts(coupled=coupled), Sizes(inputs=7), seed=seed)
        for seed in range(2)
    ]
    cells, weights = [], []
    for cell in wide:
        inputs = [w if w is None else w[:, :3] for w in cell.weights[:4]]
        cells.append(cell._replace(weights=(*inputs, *cell.weights[4:])))
        extra = [w if w is None else w[:, 3:] for w in cell.weights[:4]]
        weights += cell._replace(weights=tuple(extra)).given()
    sequence, auxiliary = random_input(5, 2, 3), random_input(5, 2, 4, seed=9)
    states = both_states(cells, 2)
    joined = run_two_way(wide, np.concatenate([sequence, auxiliary], 2), states)
    computed = run_two_way(
        cells, sequence, states, auxiliary=auxiliary, weights=weights
    )
    for got, wanted in zip(computed, joined, strict=True):
        np.testing.assert_allclose(got, wanted, **CLOSE)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_cell_follows_the_formula_along_any_sequence(data) -> None:
    flag, length = st.booleans(), st.integers(1, 5)
    parts = Parts(
        *(data.draw(flag) for _ in range(5)),
        cell_clip=data.draw(st.sampled_from([0.0, 0.25])),
        projection_clip=data.draw(st.sampled_from([0.0, 0.125])),
        activation=data.draw(st.sampled_from(sorted(ACTIVATIONS))),
    )
    sizes = Sizes(*(data.draw(length) for _ in range(3)))
    if parts.norm:
        # The variance of a single unit is zero but for roundings.
        sizes = sizes._replace(units=sizes.units + 2)
    steps, batches = data.draw(length), data.draw(length)
    cell = random_cell(parts, sizes, data.draw(st.integers(0, 99)))
    sequence = random_input(steps, batches, sizes.inputs)
    states = random_states(cell, batches)
    computed = run_sequence(cell, sequence, states)
    expected = expected_sequence(cell, sequence, *states)
    for got, wanted in zip(computed, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
