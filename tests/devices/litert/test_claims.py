"""What is left to the kernels, because LiteRT computes it otherwise, or would abort."""

from collections.abc import Iterator

import numpy as np
import pytest
from msgspec.structs import replace

import asyncnn
from asyncnn.devices.litert import claims, refusal
from asyncnn.engine import Program
from asyncnn.hal.operations import infer_shapes
from asyncnn.hal.operations.bound import BoundOperand, BoundOperation
from asyncnn.hal.types import OperandType, OperationType
from tests.conftest import SHARED
from tests.devices.litert.cases import usual_case
from tests.extensions.vendor import SCALE
from tests.kernels.operations import (
    B8,
    F32,
    I32,
    Q8,
    Q8S,
    Given,
    bind,
    constant,
    random_values,
    result,
    tensor,
)

T = OperationType
FLOATS = tensor(F32, np.ones((1, 6, 6, 4)))
CODES = tensor(Q8S, np.ones((1, 6, 6, 4)), 0.05, 3)
PIXEL = tensor(F32, np.ones((1, 2, 2, 1)))
LARGEST = 2**31 - 1


def operation(
    type_: OperationType, inputs: list[Given], output: BoundOperand
) -> BoundOperation:
    """Return the operation with the output's shape inferred."""
    bound = bind(type_, inputs, [output])
    (shape,) = infer_shapes(bound)
    return replace(bound, outputs=(replace(output, shape=shape),))


def floats() -> BoundOperand:
    return BoundOperand(F32, None)


def codes(scale: float, zero_point: int = 3) -> BoundOperand:
    return BoundOperand(Q8S, None, scale, zero_point)


def filled(value: float, *shape: int) -> Given:
    return constant(F32, np.full(shape, value))


def quantized_weights(scale: float) -> list[Given]:
    kernel = constant(Q8S, random_values(Q8S, (2, 1, 1, 4)), scale)
    return [kernel, constant(I32, [1, 2], float(np.float32(0.05) * np.float32(scale)))]


def refused() -> Iterator[tuple[str, BoundOperation]]:
    """Yield reasons, and operations that are refused for them."""
    weights = [filled(1, 2, 3, 3, 4), filled(0, 2)]
    tap = [filled(1, 1, 3, 3, 1), filled(0, 1)]
    sides = [1, 1]
    yield (
        "a stride, dilation or filter above",
        operation(T.CONV_2D, [FLOATS, *weights, 1, LARGEST, 1, 0], floats()),
    )
    yield (
        "a stride, dilation or filter above",
        operation(
            T.CONV_2D, [FLOATS, *weights, 1, *sides, 0, False, 1, 2**20], floats()
        ),
    )
    yield (
        "a filter that touches too many elements",
        operation(T.MAX_POOL_2D, [PIXEL, 1, *sides, 16000, 16000, 0], floats()),
    )
    yield (
        "in between is too large",
        operation(
            T.CONV_2D,
            [PIXEL, *tap, *[6000] * 4, 6000, 6000, 0, False, 4000, 4000],
            floats(),
        ),
    )
    yield (
        "weights that come with the request",
        operation(
            T.CONV_2D,
            [FLOATS, tensor(F32, np.ones((2, 3, 3, 4))), weights[1], 1, *sides, 0],
            floats(),
        ),
    )
    yield (
        "too far apart",
        operation(
            T.CONV_2D, [CODES, *quantized_weights(900.0), 1, *sides, 0], codes(0.2)
        ),
    )
    yield (
        "padding that is no scheme of TFLite",
        operation(T.AVERAGE_POOL_2D, [FLOATS, 1, 0, 1, 0, *sides, 2, 2, 0], floats()),
    )
    yield ("scales that differ by", operation(T.ADD, [CODES, CODES, 0], codes(1e-8)))
    yield (
        "scales that differ by",
        operation(T.ADD, [CODES, constant(Q8S, [1], 1e9), 0], codes(0.05)),
    )
    yield (
        "an activation at scale",
        operation(
            T.ADD, [tensor(Q8S, [1], 1e-8), tensor(Q8S, [1], 1e-8), 3], codes(1e-8)
        ),
    )
    yield (
        "is extreme",
        operation(T.TANH, [tensor(Q8S, [1], 1e-30)], codes(1 / 128, 0)),
    )
    yield (
        "quantised unlike the input",
        operation(T.MEAN, [CODES, constant(I32, [1]), 1], codes(0.1)),
    )
    yield (
        "codes of two quantisations",
        operation(
            T.LESS, [CODES, tensor(Q8S, CODES.array, 0.06)], BoundOperand(B8, None)
        ),
    )
    yield (
        "floats beyond int32 saturate",
        operation(T.CAST, [FLOATS], BoundOperand(I32, None)),
    )
    yield (
        "where roundings differ",
        operation(
            T.RESIZE_NEAREST_NEIGHBOR,
            [tensor(Q8S, np.ones((1, 26, 28, 1)), 0.05, 3), 20, 22, False],
            codes(0.05),
        ),
    )
    yield ("beta 1e-06 is extreme", operation(T.SOFTMAX, [FLOATS, 1e-6], floats()))
    yield (
        "below which norms are cut off",
        operation(T.L2_NORMALIZATION, [tensor(Q8S, [[1, 2]], 1e-7)], codes(1 / 128, 0)),
    )
    yield (
        "rank 5 is not claimed",
        operation(T.SQRT, [tensor(F32, np.ones((1, 1, 1, 1, 2)))], floats()),
    )
    yield ("is empty", operation(T.SQRT, [tensor(F32, np.ones((0, 2)))], floats()))
    yield (
        "no input comes with the request",
        operation(T.SQRT, [constant(F32, [1.0])], floats()),
    )
    yield (
        "a scalar comes with the request",
        operation(T.SOFTMAX, [FLOATS, tensor(OperandType.FLOAT32, 1.0)], floats()),
    )
    yield (
        "a parameter that comes with the request",
        replace(
            operation(T.TRANSPOSE, [FLOATS, constant(I32, [0, 1, 2, 3])], floats()),
            inputs=(FLOATS.operand, tensor(I32, [0, 1, 2, 3]).operand),
        ),
    )
    yield (
        "TENSOR_QUANT8_ASYMM is not claimed",
        operation(T.RSQRT, [tensor(Q8, [1], 0.1, 0)], BoundOperand(Q8, None, 0.1, 0)),
    )


CASES = [
    pytest.param(reason, case, id=f"{position}-{case.type.name}")
    for position, (reason, case) in enumerate(refused())
]


@pytest.mark.parametrize(("reason", "case"), CASES)
def test_it_is_left_to_the_kernels(reason: str, case: BoundOperation) -> None:
    assert not claims(case)
    assert reason in (refusal(case) or "")


def test_what_has_an_open_shape_is_refused() -> None:
    case = usual_case(T.ADD, F32).operation
    opened = replace(case, outputs=(replace(case.outputs[0], shape=None),))
    assert "a shape is open" in (refusal(opened) or "")


def test_what_an_extension_brings_is_refused() -> None:
    bound = BoundOperation(SCALE, (FLOATS.operand,), (result(F32, (1, 6, 6, 4)),))
    assert "an extension's" in (refusal(bound) or "")


def test_claiming_copies_no_weights() -> None:
    class Uncopied(np.ndarray):
        def __array_finalize__(self, made: object) -> None:
            assert made is None or self.base is not None, "copied"

    weights = np.broadcast_to(np.float16(1), (1000, 3, 3, 1000)).view(Uncopied)
    kernel = BoundOperand(OperandType.TENSOR_FLOAT16, weights.shape, value=weights)
    bias = constant(OperandType.TENSOR_FLOAT16, np.zeros(1000))
    image = tensor(OperandType.TENSOR_FLOAT16, np.ones((1, 3, 3, 1000)))
    base = bind(T.CONV_2D, [image, bias, bias, 2, 1, 1, 0], [])
    case = replace(
        base,
        inputs=(base.inputs[0], kernel, *base.inputs[2:]),
        outputs=(result(OperandType.TENSOR_FLOAT16, (1, 1, 1, 1000)),),
    )
    assert claims(case)


MODELS = sorted((SHARED / "models").glob("*.tflite"))


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_trained_models_are_claimed_but_for_quantised_lstm(path) -> None:
    program = Program(asyncnn.load(path, strict=True).model)
    assert program.declared_shapes is not None
    steps = program.plan(program.declared_shapes).steps
    left = {
        step.operation.type: reason
        for step in steps
        if (reason := refusal(step.operation)) is not None
        # What cuts the states of such cells out is 16-bit.
        and "TENSOR_QUANT16_SYMM" not in reason
    }
    assert left.keys() <= {T.QUANTIZED_LSTM}, left
