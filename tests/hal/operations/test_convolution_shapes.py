from collections.abc import Sequence

import pytest

from asyncnn.hal.operations import infer_shapes
from asyncnn.hal.operations.bound import (
    BoundOperand,
    BoundOperation,
    OperationFailedError,
    Shape,
)
from asyncnn.hal.operations.signature import I32, Q8, Q8PC
from asyncnn.hal.operations.sliding_windows import SAME, VALID
from asyncnn.hal.types import OperationType, SymmPerChannelQuantParams
from tests.hal.operations.building import Given, operand_of, shapes

IMAGE, NCHW_IMAGE = (2, 8, 10, 6), (2, 6, 8, 10)
SCHEME, EXPLICIT = [SAME, 1, 2], [0, 0, 1, 1, 1, 2]


@pytest.mark.parametrize(
    ("type_", "inputs", "expected"),
    [
        (OperationType.CONV_2D, [IMAGE, (4, 3, 3, 6), (4,), *SCHEME, 0], (2, 4, 10, 4)),
        (
            OperationType.CONV_2D,
            [NCHW_IMAGE, (4, 3, 3, 6), (4,), *EXPLICIT, 0, True],
            (2, 4, 4, 8),
        ),
        (
            OperationType.CONV_2D,
            [(0, 8, 10, 6), (4, 3, 3, 6), (4,), *SCHEME, 0],
            (0, 4, 10, 4),
        ),
        (
            OperationType.DEPTHWISE_CONV_2D,
            [IMAGE, (1, 3, 3, 12), (12,), *SCHEME, 2, 0],
            (2, 4, 10, 12),
        ),
        (
            OperationType.GROUPED_CONV_2D,
            [IMAGE, (4, 3, 3, 3), (4,), *SCHEME, 2, 0, False],
            (2, 4, 10, 4),
        ),
        (
            OperationType.GROUPED_CONV_2D,
            [NCHW_IMAGE, (4, 3, 3, 3), (4,), *EXPLICIT, 2, 0, True],
            (2, 4, 4, 8),
        ),
        (
            OperationType.TRANSPOSE_CONV_2D,
            [IMAGE, (4, 3, 3, 6), (4,), [2, 15, 10, 4], *SCHEME, 0, False],
            (2, 15, 10, 4),
        ),
        (
            OperationType.TRANSPOSE_CONV_2D,
            [NCHW_IMAGE, (4, 3, 3, 6), (4,), *EXPLICIT, 0, True],
            (2, 4, 15, 12),
        ),
        (OperationType.AVERAGE_POOL_2D, [IMAGE, VALID, 2, 3, 4, 5, 0], (2, 2, 4, 6)),
        (
            OperationType.L2_POOL_2D,
            [NCHW_IMAGE, 1, 0, 0, 1, 2, 3, 4, 5, 0, True],
            (2, 6, 2, 4),
        ),
    ],
)
def test_a_window_leaves_batches_and_sets_the_rest(
    type_: OperationType, inputs: Sequence[Given], expected: Shape
) -> None:
    assert shapes(type_, inputs) == (expected,)


@pytest.mark.parametrize(
    ("type_", "inputs", "message"),
    [
        (
            OperationType.CONV_2D,
            [IMAGE, (4, 3, 3, 5), (4,), *SCHEME, 0],
            "the input has 6 channels, the filter takes 5",
        ),
        (OperationType.CONV_2D, [IMAGE, (4, 3, 3, 6), (5,), *SCHEME, 0], "bias has"),
        (OperationType.CONV_2D, [IMAGE, (3, 3, 6), (4,), *SCHEME, 0], "1 has rank 3"),
        (OperationType.CONV_2D, [(8, 8, 6), (4, 3, 3, 6), (4,), *SCHEME, 0], "rank 3"),
        (
            OperationType.CONV_2D,
            [IMAGE, (0, 3, 3, 6), (0,), *SCHEME, 0],
            "no output channels",
        ),
        (
            OperationType.CONV_2D,
            [(2, 8, 10, 0), (4, 3, 3, 0), (4,), *SCHEME, 0],
            "the input has 0 channels",
        ),
        (
            OperationType.CONV_2D,
            [(2, 0, 10, 6), (4, 3, 3, 6), (4,), *SCHEME, 0],
            "input size 0",
        ),
        (
            OperationType.DEPTHWISE_CONV_2D,
            [IMAGE, (1, 3, 3, 12), (12,), *SCHEME, 3, 0],
            "6 channels times multiplier 3 is not 12",
        ),
        (
            OperationType.DEPTHWISE_CONV_2D,
            [IMAGE, (2, 3, 3, 6), (6,), *SCHEME, 1, 0],
            "axis 0 of the filter is 2",
        ),
        (
            OperationType.GROUPED_CONV_2D,
            [IMAGE, (4, 3, 3, 2), (4,), *SCHEME, 3, 0, False],
            "output channels 4 is not divisible by 3",
        ),
        (
            OperationType.GROUPED_CONV_2D,
            [IMAGE, (4, 3, 3, 6), (4,), *SCHEME, 0, 0, False],
            "divisible by 0",
        ),
        (
            OperationType.TRANSPOSE_CONV_2D,
            [IMAGE, (4, 3, 3, 6), (4,), 0, 12, 0, 0, 1, 1, 0, False],
            "output size 0",
        ),
        (
            OperationType.TRANSPOSE_CONV_2D,
            [IMAGE, (4, 3, 3, 6), (4,), -1, 0, 0, 0, 1, 1, 0, False],
            "leading padding -1",
        ),
        (
            OperationType.TRANSPOSE_CONV_2D,
            [IMAGE, (4, 3, 3, 6), (4,), [8, 10], *SCHEME, 0, False],
            r"input 3 has shape \[2\]",
        ),
        (
            OperationType.MAX_POOL_2D,
            [(2, 8, 10, 0), VALID, 1, 1, 2, 2, 0],
            "no channels",
        ),
    ],
)
def test_an_image_and_filter_that_do_not_fit_are_refused(
    type_: OperationType, inputs: Sequence[Given], message: str
) -> None:
    with pytest.raises(OperationFailedError, match=message):
        shapes(type_, inputs)


def quantized(
    bias_scale: float, bias_zero_point: int = 0, filter_: BoundOperand | None = None
) -> BoundOperation:
    image = BoundOperand(Q8, (1, 4, 4, 2), 0.5, 128)
    filter_ = filter_ or BoundOperand(Q8, (3, 1, 1, 2), 0.25, 128)
    bias = BoundOperand(I32, (3,), bias_scale, bias_zero_point)
    scalars = map(operand_of, (SAME, 1, 1, 0))
    return BoundOperation(
        OperationType.CONV_2D,
        (image, filter_, bias, *scalars),
        (BoundOperand(Q8, None, 1.0, 0),),
    )


@pytest.mark.parametrize("scale", [0.125, 0.125 + 0.019, 0.125 - 0.019])
def test_a_bias_has_the_scale_of_the_product_of_input_and_filter(scale: float) -> None:
    assert infer_shapes(quantized(scale)) == ((1, 4, 4, 3),)


@pytest.mark.parametrize(
    ("scale", "zero_point", "message"),
    [(0.25, 0, "bias has scale 0.25, expected 0.125"), (0.125, 1, "zero point 1")],
)
def test_a_bias_quantised_otherwise_is_refused(
    scale: float, zero_point: int, message: str
) -> None:
    with pytest.raises(OperationFailedError, match=message):
        infer_shapes(quantized(scale, zero_point))


def test_a_bias_has_no_scale_of_its_own_beside_a_filter_with_many() -> None:
    params = SymmPerChannelQuantParams((0.1, 0.2, 0.3), 0)
    filter_ = BoundOperand(Q8PC, (3, 1, 1, 2), channel_quant=params)
    assert infer_shapes(quantized(0.0, filter_=filter_)) == ((1, 4, 4, 3),)
