"""Recurrent layers: weights of mixed types, state, and what has no HAL form."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import OperationType
from asyncnn.runtime.tflite import UnsupportedOperatorError
from tests.direct import run_direct
from tests.runtime.tflite.cases import F32, I8, Case, f32
from tests.runtime.tflite.files import Op, T, given, write
from tests.runtime.tflite.graphs import imported
from tests.runtime.tflite.layers import Integers, Lstm, Reals
from tests.runtime.tflite.litert import run_litert
from tests.runtime.tflite.recurrent_cases import (
    float_lstms,
    integer_lstms,
    rnn,
    rnns,
    svdf,
    svdfs,
    two_lstms,
)
from tests.runtime.tflite.stepping import Steps, assert_steps_agree

RECURRENT = [*float_lstms(), *integer_lstms(), *rnns(), *svdfs()]
FLOAT, INTEGER = Lstm().sequence(Reals()), Lstm().sequence(Integers())
LAYERS = {
    "LSTM": FLOAT,
    "RNN": rnn(Reals(), (2,)),
    "sequence of an RNN": rnn(Reals(), (2, 3)),
    "SVDF": svdf(Reals()),
    "dense": Op(
        "FULLY_CONNECTED", [f32(2, 4), Reals().matrix(5, 4), None], [f32(2, 5)]
    ),
}
"""Layers whose float matrices may be stored as bytes."""


def with_matrices(operator: Op, stored: Callable[[np.ndarray, float], T]) -> Op:
    """Return ``operator`` with its matrices rounded to int8 and stored as told."""

    def rounded(tensor: T | None) -> T | None:
        if tensor is None or tensor.data is None or len(tensor.shape) != 2:
            return tensor
        scale = float(np.float32(np.abs(tensor.data).max() / 127))
        return stored(np.round(tensor.data / scale).astype(I8), scale)

    return replace(operator, inputs=[rounded(tensor) for tensor in operator.inputs])


def as_float(codes: np.ndarray, scale: float) -> T:
    return T.constant(codes * np.float32(scale), F32)


def as_int8(codes: np.ndarray, scale: float) -> T:
    return T.constant(codes, I8, scale=(scale,))


def as_uint8(codes: np.ndarray, scale: float) -> T:
    return T.constant(codes.view(np.uint8), np.uint8, scale=(scale,))


@pytest.mark.parametrize("stored", [as_int8, as_uint8])
@pytest.mark.parametrize("operator", LAYERS.values(), ids=LAYERS)
def test_float_layers_dequantise_their_weights(
    operator: Op, stored: Callable[[np.ndarray, float], T]
) -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.uniform(-1, 1, t.shape).astype(F32) for t in given(operator)]
    floats = with_matrices(operator, as_float)
    (expected,) = run_litert(write([floats], given(floats), floats.outputs), inputs)
    (actual,) = Steps(imported(with_matrices(operator, stored))).step(*inputs)
    np.testing.assert_allclose(actual, expected, 1e-5, 1e-5)


def changed(operator: Op, index: int, tensor: T | None) -> Op:
    inputs: list[T | None] = list(operator.inputs)
    inputs[index] = tensor
    return replace(operator, inputs=inputs)


def altered(operator: Op, index: int, **fields: Any) -> Op:
    tensor = operator.inputs[index]
    assert tensor is not None
    return changed(operator, index, replace(tensor, **fields))


def integers(dtype: Any, *shape: int, **rest: Any) -> T:
    return T.constant(np.ones(shape), dtype, **rest)


UNSUPPORTED = {
    "state that is computed": altered(FLOAT, 18, variable=False),
    "integer state of a float layer": altered(FLOAT, 18, dtype=I8, scale=(1.0,)),
    "cell state of 8 bits": altered(INTEGER, 19, dtype=I8),
    "activation none": Lstm().sequence(Reals(), FusedActivationFunction=0),
    "activation sign": rnn(Reals(), (2,), FusedActivationFunction=5),
    "diagonal weights": Lstm().sequence(Reals(), DiagonalRecurrentTensors=True),
    "basic kernel": Lstm().step(Reals(), KernelType=1),
    "activations of 16 bits": altered(INTEGER, 0, dtype=np.int16, zero_point=(0,)),
    "float to integer": replace(FLOAT, outputs=INTEGER.outputs),
    "weights with a zero point": altered(INTEGER, 1, zero_point=(3,)),
    "weights per channel": altered(INTEGER, 1, scale=(0.1,) * 6, zero_point=(0,) * 6),
    "weights of 16 bits": changed(INTEGER, 1, integers(np.int16, 6, 4, scale=(1.0,))),
    "weights that are computed": changed(INTEGER, 1, T(I8, (6, 4), scale=(1.0,))),
    "very many steps": Lstm().sequence(Integers(), steps=20_000),
    "integer SVDF": altered(svdf(Reals()), 0, dtype=I8, scale=(1.0,)),
    "integer RNN": altered(rnn(Reals(), (2,)), 0, dtype=I8, scale=(1.0,)),
}

CONTRADICTIONS = {
    "rank": (altered(FLOAT, 0, shape=(3, 4)), "rank 2, not 3"),
    "result of an RNN": (
        replace(rnn(Reals(), (2,)), outputs=[T(np.int32, (2, 5))]),
        "result of another type",
    ),
    "no state": (changed(FLOAT, 18, None), "input 18 is missing"),
    "empty state": (altered(FLOAT, 18, shape=(0, 6)), r"shape \[0, 6\]"),
    "huge state": (altered(FLOAT, 18, shape=(2**13, 2**13)), "does not hold"),
    "absurd state": (altered(FLOAT, 18, shape=(2**15, 2**15)), "overflow"),
    "scales of the state": (altered(INTEGER, 19, scale=()), "must have one scale"),
    "zero point of the state": (
        altered(INTEGER, 18, zero_point=(300,)),
        "zero point 300",
    ),
    "no intermediates": (replace(INTEGER, intermediates=[]), "intermediate tensor 4"),
    "scale of the hidden state": (
        replace(INTEGER, intermediates=[T(I8, (0,))] * 5),
        "one positive scale",
    ),
}


@pytest.mark.parametrize("operator", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_a_variant_without_a_hal_form_is_unsupported(operator: Op) -> None:
    with pytest.raises(
        UnsupportedOperatorError, match=rf"operator 0 \({operator.name}"
    ):
        imported(operator)


@pytest.mark.parametrize(
    ("operator", "reason"), CONTRADICTIONS.values(), ids=CONTRADICTIONS
)
def test_a_layer_that_contradicts_itself_is_refused(operator: Op, reason: str) -> None:
    with pytest.raises(InvalidArgumentError, match=reason):
        imported(operator)


@pytest.mark.parametrize("case", RECURRENT, ids=lambda case: case.name)
def test_state_is_kept_from_step_to_step(case: Case) -> None:
    rng = np.random.default_rng(3)
    samples = [[sample(tensor, rng) for tensor in case.inputs] for _ in range(6)]
    steps = assert_steps_agree(case.file(), samples, reference=False)
    assert all(np.ptp(state) for state in steps.states)


def sample(tensor: T, rng: np.random.Generator) -> np.ndarray:
    if tensor.dtype is F32:
        return rng.uniform(-2, 2, tensor.shape).astype(F32)
    return rng.integers(-128, 128, tensor.shape, np.int8)


def test_layers_that_share_a_state_change_it_in_turn() -> None:
    first, second = svdf(Reals()), svdf(Reals(1))
    layers = [first, changed(second, 4, first.inputs[4])]
    inputs = [tensor for layer in layers for tensor in given(layer)]
    file = write(layers, inputs, [*first.outputs, *second.outputs])
    rng = np.random.default_rng(3)
    samples = [[sample(tensor, rng) for tensor in inputs] for _ in range(4)]
    assert len(assert_steps_agree(file, samples).states) == 1


def test_a_layer_whose_result_nobody_wants_keeps_its_state() -> None:
    layer, y = rnn(Reals(), (2,)), T(F32, (2, 5))
    (x,) = given(layer)
    state = layer.inputs[4]
    assert state is not None
    file = write([layer, Op("ABS", [state], [y])], [x], [y])
    rng = np.random.default_rng(3)
    assert_steps_agree(file, [[sample(x, rng)] for _ in range(3)])


@pytest.mark.parametrize(
    ("dtype", "zero_point"), [(I8, 5), (np.uint8, 7), (F32, 0), (np.int32, 0)]
)
def test_a_variable_that_nothing_writes_holds_what_litert_lets_it_hold(
    dtype: Any, zero_point: int
) -> None:
    quantised = np.dtype(dtype).itemsize == 1
    rest = {"scale": (0.5,), "zero_point": (zero_point,)} if quantised else {}
    x, y = T(dtype, (3,), variable=True, **rest), T(dtype, (3, 1), **rest)
    operator = Op("EXPAND_DIMS", [x, T.constant(1)], [y])
    steps = assert_steps_agree(write([operator], [], [y]), [()])
    assert not steps.named.states


def test_steps_hand_on_their_state() -> None:
    main = imported(INTEGER).model.main
    steps = [
        operation
        for operation in main.operations
        if operation.type == OperationType.QUANTIZED_LSTM
    ]
    for earlier, later in pairwise(steps):
        assert later.inputs[18:20] == earlier.outputs[:2]
        assert later.inputs[1:18] == earlier.inputs[1:18]


def test_merged_batches_are_those_of_both_directions_side_by_side() -> None:
    x = np.random.default_rng(0).uniform(-4, 4, (2, 3, 4)).astype(F32)
    outputs = []
    for merged in (False, True):
        layer = two_lstms(Reals(), Lstm(), MergeOutputs=merged)
        named = imported(layer)
        states = [state.first_value() for state in named.states]
        case = SimpleNamespace(model=named.model, inputs=[x, *states])
        outputs.append(run_direct(case)[: len(named.outputs)])
    np.testing.assert_array_equal(np.concatenate(outputs[0], axis=-1), outputs[1][0])
