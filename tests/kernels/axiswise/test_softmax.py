"""SOFTMAX and LOG_SOFTMAX against their formulas in float64."""

from pathlib import Path

import numpy as np
import pytest

from asyncnn.hal.types import OperationType
from tests.kernels.operations import (
    F16,
    F32,
    Q8,
    Q8S,
    TOLERANCE,
    clamp_to,
    compute,
    half_away,
    random_values,
    result,
    tensor,
)

SOFTMAX, LOG_SOFTMAX = OperationType.SOFTMAX, OperationType.LOG_SOFTMAX
SHAPES = [(7,), (3, 5), (2, 3, 4), (2, 3, 4, 5), (1, 1, 1, 1)]
MODELS = {
    "vww_96_int8": 0.014636218547821045,
    "kws_ref_model": 0.14469251036643982,
    "micro_speech_quantized": 0.09173192083835602,
    "trained_lstm_int8": 0.17366045713424683,
}
"""Models that end in a softmax, with the scale of its input."""


def exact_softmax(x, beta, axis):
    powers = np.exp((x - x.max(axis, keepdims=True)) * beta)
    return powers / powers.sum(axis, keepdims=True)


def scalar(type_, value):
    return np.float16(value) if type_ is F16 else float(value)


@pytest.mark.parametrize("beta", [0.25, 1.0, 3.0])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("type_", [F32, F16])
@pytest.mark.parametrize(
    ("operation", "furthest", "of_exact"),
    [(SOFTMAX, 20, np.array), (LOG_SOFTMAX, 4, np.log)],
)
def test_floats_follow_the_formula(
    operation, furthest, of_exact, type_, shape, axis, beta
) -> None:
    x = random_values(type_, shape, low=-furthest, high=furthest)
    inputs = [tensor(type_, x), scalar(type_, beta), axis]
    computed = compute(operation, inputs, result(type_, shape))
    exact = of_exact(exact_softmax(x.astype(np.float64), beta, axis))
    np.testing.assert_allclose(computed, exact, **TOLERANCE[type_])


@pytest.mark.parametrize("scale", [0.005, 0.1, 1.2])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("shape", [*SHAPES, (2, 300)])
@pytest.mark.parametrize("type_", [Q8, Q8S])
def test_codes_are_rounded_from_the_exact_value(type_, shape, axis, scale) -> None:
    x = random_values(type_, shape)
    lowest = 0 if type_ is Q8 else -128
    output = result(type_, shape, 1 / 256, lowest)
    computed = compute(SOFTMAX, [tensor(type_, x, scale, 3), 0.5, axis], output)
    exact = exact_softmax(x.astype(np.float64) * scale, 0.5, axis)
    steps = half_away(exact * 256) + lowest
    np.testing.assert_array_equal(computed, clamp_to(type_, steps))


@pytest.mark.parametrize("beta", [0.5, 2.0])
def test_signed_codes_give_the_unsigned_result_less_128(beta) -> None:
    signed = random_values(Q8S, (4, 9))
    unsigned = (signed.astype(np.int16) + 128).astype(np.uint8)
    one, two = (
        compute(
            SOFTMAX,
            [tensor(type_, codes, 0.05, 0), beta],
            result(type_, (4, 9), 1 / 256, lowest),
        )
        for type_, codes, lowest in ((Q8S, signed, -128), (Q8, unsigned, 0))
    )
    np.testing.assert_array_equal(one.astype(int) + 128, two)


@pytest.mark.parametrize("name", MODELS)
def test_codes_equal_those_of_trained_models(name, shared: Path) -> None:
    with np.load(shared / "models" / f"{name}.npz") as recorded:
        for sample in range(8):
            x = recorded[f"pre_softmax_{sample}"]
            output = result(Q8S, x.shape, 1 / 256, -128)
            computed = compute(SOFTMAX, [tensor(Q8S, x, MODELS[name], 3), 1.0], output)
            np.testing.assert_array_equal(computed, recorded[f"output_{sample}"])


@pytest.mark.parametrize("operation", [SOFTMAX, LOG_SOFTMAX])
def test_large_inputs_do_not_overflow(operation) -> None:
    x = np.array([[1e30, 1e30, -1e30]], np.float32)
    computed = compute(operation, [tensor(F32, x), 1.0, -1], result(F32, x.shape))
    half = 0.5 if operation is SOFTMAX else np.log(0.5)
    np.testing.assert_allclose(computed[0, :2], [half, half], rtol=1e-6)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
@pytest.mark.parametrize("operation", [SOFTMAX, LOG_SOFTMAX])
@pytest.mark.parametrize("type_", [F32, F16])
def test_empty_tensors_stay_empty(type_, operation, shape) -> None:
    given = tensor(type_, np.empty(shape))
    output = result(type_, shape)
    assert compute(operation, [given, scalar(type_, 1), -1], output).shape == shape
