"""QUANTIZED_LSTM against the float cell that its values stand for."""

import itertools

import numpy as np
import pytest
from msgspec.structs import replace

from asyncnn import kernels
from asyncnn.hal.operations.bound import OperationFailedError, ValueNeededError
from asyncnn.hal.types import OperationType
from asyncnn.kernels.recurrent.quantized_lstm import in_python
from asyncnn.tools.conformance.vectors import load_cases
from tests.direct import run_direct
from tests.kernels.operations import Q8SYM, bind, tensor
from tests.kernels.recurrent.float_cells import Parts, Sizes, expected_step
from tests.kernels.recurrent.integer.quantized_cells import (
    CLIPS,
    DATA,
    HIDDEN,
    INTERMEDIATE,
    Q16S,
    STATE_SCALE,
    random_cell,
    random_codes,
)


@pytest.mark.parametrize("clips", [(0.0, 0.0), (0.4, 0.3)])
@pytest.mark.parametrize("optional", list(itertools.product([False, True], repeat=4)))
def test_a_step_is_close_to_the_float_cell(optional, clips) -> None:
    parts = Parts(*optional, cell_clip=clips[0], projection_clip=clips[1])
    cell = random_cell(parts, Sizes(6, 8, 4), hidden_zero_point=3)
    x = random_codes(5, 6)
    output, memory = random_codes(5, cell.sizes.outputs, seed=1), random_codes(5, 8)
    memory = memory.astype(np.int16) * 8
    (scale, zero_point), steps = cell.output, 3
    expected_output, expected_memory = expected_step(
        cell.as_float(),
        (x - float(DATA[1])) * DATA[0],
        (output - float(zero_point)) * scale,
        memory * STATE_SCALE,
    )
    state, new_memory, new_output = cell.step(x, output, memory)
    stored = np.clip(expected_output / scale + zero_point, -128, 127)
    np.testing.assert_allclose(new_output, stored, rtol=0, atol=steps)
    np.testing.assert_allclose(
        new_memory * STATE_SCALE, expected_memory, rtol=0, atol=0.03
    )
    np.testing.assert_array_equal(state, new_output)


def prepare(cell, **changes):
    """Prepare the kernel with some constant inputs exchanged."""
    constants = cell.constants | {int(key[1:]): v for key, v in changes.items()}
    changed = cell._replace(constants=constants)
    inputs = changed.given(random_codes(1, 3), *cell.initial_states(1))
    return kernels.prepare(
        bind(OperationType.QUANTIZED_LSTM, inputs, changed.described(1))
    )


@pytest.mark.parametrize("index", [INTERMEDIATE, INTERMEDIATE + 3, HIDDEN + 1])
@pytest.mark.parametrize("scale", [0.0, -0.5, float("nan")])
def test_a_scale_that_is_not_positive_is_refused(scale, index) -> None:
    with pytest.raises(OperationFailedError, match="not positive"):
        prepare(random_cell(), **{f"_{index}": scale})


@pytest.mark.parametrize("scale", [2.0**-16, 2.0**-8, 2.2 * 2.0**-12])
def test_a_state_without_binary_point_is_refused(scale) -> None:
    cell = random_cell()
    output, memory = cell.initial_states(1)
    inputs = cell.given(random_codes(1, 3), output, memory)
    inputs[19] = tensor(Q16S, memory, scale)
    operation = bind(OperationType.QUANTIZED_LSTM, inputs, cell.described(1))
    with pytest.raises(OperationFailedError, match="no power of two"):
        kernels.prepare(operation)


def test_weights_must_be_known_at_preparation() -> None:
    cell = random_cell()
    weights = cell.constants[3]
    unknown = tensor(Q8SYM, weights.array, weights.operand.scale)
    with pytest.raises(ValueNeededError):
        prepare(cell, _3=unknown)


def test_weights_that_a_cache_has_packed_are_not_read() -> None:
    cell = random_cell(Parts(projection=True))
    inputs = cell.given(random_codes(1, 3), *cell.initial_states(1))
    operation = bind(OperationType.QUANTIZED_LSTM, inputs, cell.described(1))
    in_python(operation)
    unread = tuple(
        replace(operand, value=None) if index in (*range(1, 9), 16) else operand
        for index, operand in enumerate(operation.inputs)
    )
    in_python(replace(operation, inputs=unread))
    with pytest.raises(ValueNeededError):
        in_python(replace(operation, inputs=unread, packed={}))


def test_clips_may_be_omitted() -> None:
    cell = random_cell(Parts(projection=True))
    without = cell._replace(constants=cell.constants | {CLIPS: None, CLIPS + 1: None})
    arguments = random_codes(2, 3), *cell.initial_states(2)
    for one, other in zip(cell.step(*arguments), without.step(*arguments), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_cell_clip_bounds_the_state() -> None:
    cell = random_cell(Parts(cell_clip=0.25))
    x, (output, _) = random_codes(4, 3), cell.initial_states(4)
    memory = np.tile(np.array([-32768, 32767, 0, 5, -5], np.int16), (4, 1))
    new = cell.step(x, output, memory)[1]
    assert np.abs(new.astype(int)).max() == 0.25 / STATE_SCALE


@pytest.mark.parametrize(
    "spec", ["V1_2/quantized_lstm", "V1_3/qlstm_noprojection", "V1_3/qlstm_projection"]
)
def test_the_outputs_of_the_public_suite_are_met_exactly(shared, spec) -> None:
    for case in load_cases(shared / "vts" / f"{spec}.json.gz"):
        for output, expected in zip(run_direct(case), case.outputs, strict=True):
            np.testing.assert_array_equal(output, expected.value, case.name)
