"""Shape rules of all families but convolution, recurrence and detection."""

from collections.abc import Sequence

import numpy as np
import pytest

from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operations import infer_shapes
from asyncnn.hal.operations.bound import (
    BoundOperand,
    BoundOperation,
    OperationFailedError,
    Shape,
    ValueNeededError,
)
from asyncnn.hal.operations.signature import F32, FLOAT16, FLOAT32, I32, INT32, Q8, Q8S
from asyncnn.hal.types import OperandType, OperationType
from tests.hal.operations.building import Given, constant, shapes

X = (2, 3, 4)
IMAGE = (1, 4, 6, 8)
NCHW_IMAGE = (1, 8, 4, 6)
EMPTY = BoundOperand(I32, (0,), value=np.empty(0, np.int32))

ONE_OUTPUT = {
    OperationType.ADD: [
        ([X, X, 0], X),
        ([X, (4,), 0], X),
        ([(3, 1), (2, 1, 4), 0], X),
        ([(0, 3), (1, 3), 0], (0, 3)),
        ([(1, 3), (0, 1), 0], (0, 3)),
    ],
    OperationType.PRELU: [([X, (1, 1, 4)], X)],
    OperationType.EQUAL: [([(2, 1), (3,)], (2, 3))],
    OperationType.EXP: [([X], X)],
    OperationType.SELECT: [([X, X, X], X)],
    OperationType.SOFTMAX: [([(2, 3), 1.0], (2, 3)), ([X, 0.5, 1], X)],
    OperationType.L2_NORMALIZATION: [([X, -1], X)],
    OperationType.LOCAL_RESPONSE_NORMALIZATION: [([IMAGE, 2, 1.0, 1.0, 0.5], IMAGE)],
    OperationType.INSTANCE_NORMALIZATION: [([IMAGE, 1.0, 0.0, 1e-3, False], IMAGE)],
    OperationType.FULLY_CONNECTED: [
        ([(2, 6), (5, 6), (5,), 0], (2, 5)),
        ([(2, 6), (5, 3), (5,), 0], (4, 5)),
        ([(2, 1, 2, 3), (5, 6), (5,), 0], (2, 5)),
        ([(0, 6), (5, 6), (5,), 0], (0, 5)),
    ],
    OperationType.BATCH_MATMUL: [
        ([(2, 3), (3, 5), False, False], (2, 5)),
        ([(7, 3, 2), (7, 5, 3), True, True], (7, 2, 5)),
        ([(7, 2, 3), (7, 5, 3), False, True], (7, 2, 5)),
    ],
    OperationType.RESHAPE: [
        ([X, [24]], (24,)),
        ([X, [-1, 6]], (4, 6)),
        ([X, [2, -1, 2, 2]], (2, 3, 2, 2)),
    ],
    OperationType.SQUEEZE: [
        ([(1, 3, 1), None], (3,)),
        ([(1, 3, 1), [-1]], (1, 3)),
        ([(1, 1), [0, 1]], (1,)),
        ([(1, 3), EMPTY], (1, 3)),
    ],
    OperationType.EXPAND_DIMS: [
        ([X, 0], (1, 2, 3, 4)),
        ([X, -1], (2, 3, 4, 1)),
        ([X, 3], (2, 3, 4, 1)),
    ],
    OperationType.TRANSPOSE: [([X, [2, 0, 1]], (4, 2, 3)), ([(2, 3), None], (3, 2))],
    OperationType.CONCATENATION: [
        ([X, (2, 5, 4), 1], (2, 8, 4)),
        ([(0, 3), (2, 3), 0], (2, 3)),
        ([X, 0], X),
    ],
    OperationType.PACK: [([0, X, X], (2, *X)), ([3, X], (2, 3, 4, 1))],
    OperationType.TILE: [([X, [1, 2, 3]], (2, 6, 12))],
    OperationType.CHANNEL_SHUFFLE: [([X, 2, -1], X)],
    OperationType.REVERSE: [([X, [2]], X)],
    OperationType.FILL: [([[2, 3], 1.0], (2, 3))],
    OperationType.RANK: [([X], ())],
    OperationType.DEPTH_TO_SPACE: [
        ([IMAGE, 2], (1, 8, 12, 2)),
        ([NCHW_IMAGE, 2, True], (1, 2, 8, 12)),
    ],
    OperationType.SPACE_TO_DEPTH: [
        ([IMAGE, 2, False], (1, 2, 3, 32)),
        ([NCHW_IMAGE, 2, True], (1, 32, 2, 3)),
    ],
    OperationType.BATCH_TO_SPACE_ND: [
        ([(6, 4, 5, 8), [2, 3]], (1, 8, 15, 8)),
        ([(6, 8, 4, 5), [2, 3], True], (1, 8, 8, 15)),
    ],
    OperationType.SPACE_TO_BATCH_ND: [
        ([IMAGE, [2, 3], constant(I32, [[0, 2], [3, 0]])], (6, 3, 3, 8)),
        ([NCHW_IMAGE, [2, 3], constant(I32, [[0, 0]] * 2), True], (6, 8, 2, 2)),
    ],
    OperationType.PAD: [([X, constant(I32, [[0, 1], [2, 0], [1, 1]])], (3, 5, 6))],
    OperationType.PAD_V2: [([(2,), constant(I32, [[3, 4]]), 0.0], (9,))],
    OperationType.MIRROR_PAD: [
        ([(3,), constant(I32, [[2, 2]]), 0], (7,)),
        ([(3,), constant(I32, [[3, 3]]), 1], (9,)),
    ],
    OperationType.SLICE: [
        ([X, [1, 0, 2], [1, -1, 2]], (1, 3, 2)),
        ([X, [2, 3, 0], [0, -1, 4]], (0, 0, 4)),
    ],
    OperationType.STRIDED_SLICE: [
        ([X, [0, 0, 0], [2, 3, 4], [1, 2, 3], 0, 0, 0], (2, 2, 2)),
        ([X, [-1, 2, 9], [-9, -9, -9], [-1, -1, -3], 0, 0, 0], (2, 3, 2)),
        ([X, [1, 1, 1], [1, 1, 1], [1, 1, 1], 0b011, 0b101, 0], (2, 1, 3)),
        ([X, [1, 0, 0], [2, 3, 4], [1, 1, 2], 0, 0, 0b001], (3, 2)),
        ([(2,), [1], [2], [1], 0, 0, 1], (1,)),
        ([(2,), [1], [0], [1], 0, 0, 0], (0,)),
    ],
    OperationType.MEAN: [
        ([X, [1], 0], (2, 4)),
        ([X, [0, -1, 0], 1], (1, 3, 1)),
        ([X, [0, 1, 2], 0], (1,)),
    ],
    OperationType.REDUCE_MAX: [([X, [-2], False], (2, 4)), ([X, [2], True], (2, 3, 1))],
    OperationType.ARGMAX: [([X, 1], (2, 4)), ([(5,), -1], (1,))],
    OperationType.QUANTIZE: [([X], X)],
    OperationType.DEQUANTIZE: [([X], X)],
    OperationType.CAST: [([X], X)],
    OperationType.EMBEDDING_LOOKUP: [([(5,), X], (5, 3, 4))],
    OperationType.LSH_PROJECTION: [
        ([(4, 3), (5, 2), None, 3], (4,)),
        ([(4, 3), (5, 2), (5,), 1], (4,)),
        ([(4, 3), (5, 2), (5,), 2], (12,)),
    ],
    OperationType.GATHER: [([X, 1, (5, 6)], (2, 5, 6, 4)), ([X, -1, (1,)], (2, 3, 1))],
    OperationType.RANDOM_MULTINOMIAL: [([(3, 10), 128, (2,)], (3, 128))],
    OperationType.RESIZE_BILINEAR: [
        ([IMAGE, 9, 3], (1, 3, 9, 8)),
        ([NCHW_IMAGE, 9, 3, True, False, True], (1, 8, 3, 9)),
        ([IMAGE, 0.5, 1.7], (1, 6, 3, 8)),
        ([(0, 4, 6, 8), 9, 3], (0, 3, 9, 8)),
    ],
    OperationType.RESIZE_NEAREST_NEIGHBOR: [
        ([IMAGE, constant(FLOAT16, 0.8), constant(FLOAT16, 0.3), False], (1, 1, 4, 8))
    ],
    OperationType.ROI_ALIGN: [
        ([IMAGE, (5, 4), (5,), 2, 3, 2.0, 2.0, 0, 0, False], (5, 2, 3, 8)),
        ([NCHW_IMAGE, (0, 4), (0,), 2, 3, 2.0, 2.0, 4, 4, True], (0, 8, 2, 3)),
    ],
    OperationType.ROI_POOLING: [
        ([IMAGE, (5, 4), (5,), 2, 3, 2.0, 2.0, False], (5, 2, 3, 8))
    ],
}


@pytest.mark.parametrize(
    ("type_", "inputs", "expected"),
    [
        (type_, inputs, expected)
        for type_, cases in ONE_OUTPUT.items()
        for inputs, expected in cases
    ],
    ids=lambda value: value.name if isinstance(value, OperationType) else None,
)
def test_the_output_shape_follows_from_the_inputs(
    type_: OperationType, inputs: Sequence[Given], expected: Shape
) -> None:
    assert shapes(type_, inputs) == (expected,)


def test_some_operations_have_several_outputs() -> None:
    assert shapes(OperationType.SPLIT, [X, -1, 2], 2) == ((2, 3, 2), (2, 3, 2))
    assert shapes(OperationType.TOPK_V2, [X, 2], 2) == ((2, 3, 2), (2, 3, 2))
    assert shapes(OperationType.HASHTABLE_LOOKUP, [(5,), (7,), (7, 3)], 2) == (
        (5, 3),
        (5,),
    )


ILLEGAL = [
    (OperationType.ADD, [(2, 3), (2,), 0], "do not broadcast"),
    (OperationType.ADD, [(0,), (2,), 0], "do not broadcast"),
    (OperationType.SELECT, [X, X, (4,)], r"if_false has shape \[4\]"),
    (OperationType.SOFTMAX, [(2, 3), 0.0], "beta is not positive"),
    (
        OperationType.LOCAL_RESPONSE_NORMALIZATION,
        [IMAGE, -1, 1.0, 1.0, 1.0],
        "the radius is negative",
    ),
    (OperationType.INSTANCE_NORMALIZATION, [X, 1.0, 0.0, 1e-3, False], "has rank 3"),
    (OperationType.FULLY_CONNECTED, [(2, 5), (5, 3), (5,), 0], "10 is not divisible"),
    (OperationType.FULLY_CONNECTED, [(2, 3), (5, 3), (4,), 0], "bias has shape"),
    (OperationType.FULLY_CONNECTED, [(2, 3), (0, 3), (0,), 0], "no units"),
    (OperationType.FULLY_CONNECTED, [(0, 0), (5, 0), (5,), 0], "divisible by 0"),
    (OperationType.BATCH_MATMUL, [(2, 3), (2, 3), False, False], "do not multiply"),
    (OperationType.BATCH_MATMUL, [(1, 2, 3), (2, 3, 4), False, False], "not multiply"),
    (OperationType.BATCH_MATMUL, [(2, 0), (0, 3), False, False], "do not multiply"),
    (OperationType.RESHAPE, [X, [5, 5]], "does not reshape"),
    (OperationType.RESHAPE, [X, [-1, -1]], "at most one -1"),
    (OperationType.RESHAPE, [X, [-2, -12]], "at most one -1"),
    (OperationType.RESHAPE, [X, [-1, 5]], "24 is not divisible by 5"),
    (OperationType.RESHAPE, [(0, 3), [-1, 0]], "0 is not divisible by 0"),
    (OperationType.RESHAPE, [(1,), EMPTY], "is not a shape"),
    (OperationType.SQUEEZE, [X, [0]], "axis 0 of .* is not 1"),
    (OperationType.SQUEEZE, [(1,), [1]], "axis 1 is outside rank 1"),
    (OperationType.EXPAND_DIMS, [X, 4], "axis 4 is outside"),
    (OperationType.TRANSPOSE, [X, [0, 0, 1]], "not a permutation"),
    (OperationType.TRANSPOSE, [X, [0, 1]], "expected \\[3\\]"),
    (OperationType.CONCATENATION, [X, (2, 5, 5), 1], "input 1 has shape"),
    (OperationType.CONCATENATION, [X, (2, 5), 1], "input 1 has rank 2"),
    (OperationType.CONCATENATION, [X, X, -1], "axis -1 is outside rank 3"),
    (OperationType.PACK, [0, X, (2, 3)], "input 2 has shape"),
    (OperationType.PACK, [4, X, X], "axis 4 is outside"),
    (OperationType.TILE, [X, [1, 1]], "expected \\[3\\]"),
    (OperationType.TILE, [(2,), [-1]], "negative multiple"),
    (OperationType.CHANNEL_SHUFFLE, [X, 3, -1], "4 is not divisible by 3"),
    (OperationType.CHANNEL_SHUFFLE, [X, 0, -1], "divisible by 0"),
    (OperationType.REVERSE, [X, [3]], "axis 3 is outside"),
    (OperationType.FILL, [[2, -1], 1.0], "not a shape to fill"),
    (OperationType.DEPTH_TO_SPACE, [IMAGE, 3], "8 is not divisible by 9"),
    (OperationType.DEPTH_TO_SPACE, [IMAGE, 0], "block size 0"),
    (OperationType.SPACE_TO_DEPTH, [IMAGE, 4], "6 is not divisible by 4"),
    (OperationType.BATCH_TO_SPACE_ND, [IMAGE, [2, 2]], "1 is not divisible by 4"),
    (OperationType.BATCH_TO_SPACE_ND, [IMAGE, [-1, -1]], "block .* is not positive"),
    (
        OperationType.SPACE_TO_BATCH_ND,
        [IMAGE, [2, 2], constant(I32, [[-2, 0], [0, 0]])],
        "are negative",
    ),
    (OperationType.PAD, [(2,), constant(I32, [[0, -1]])], "are negative"),
    (OperationType.PAD, [(2,), constant(I32, [[0, 0]] * 2)], "paddings has shape"),
    (OperationType.MIRROR_PAD, [(3,), constant(I32, [[3, 0]]), 0], "can mirror"),
    (OperationType.MIRROR_PAD, [(3,), constant(I32, [[0, 4]]), 1], "can mirror"),
    (OperationType.MIRROR_PAD, [(3,), constant(I32, [[0, 0]]), 2], "mode 2"),
    (OperationType.SLICE, [(4,), [2], [3]], "not within an axis of 4"),
    (OperationType.SLICE, [(4,), [-1], [2]], "not within"),
    (OperationType.SLICE, [(4,), [0], [-2]], "not within"),
    (OperationType.STRIDED_SLICE, [(4,), [0], [4], [0], 0, 0, 0], "axis 0 is 0"),
    (OperationType.STRIDED_SLICE, [(4,), [0], [4], [1], 0, 0, 1], "single element"),
    (OperationType.STRIDED_SLICE, [(4,), [3], [2], [-1], 0, 0, 1], "single element"),
    (OperationType.MEAN, [X, [3], 0], "axis 3 is outside rank 3"),
    (OperationType.ARGMAX, [X, -4], "axis -4 is outside"),
    (OperationType.EMBEDDING_LOOKUP, [(5,), (7,)], "rank 1"),
    (OperationType.LSH_PROJECTION, [(4, 33), (5,), None, 3], "33 hash bits"),
    (OperationType.LSH_PROJECTION, [(4, 3), (5,), None, 0], "kind 0"),
    (OperationType.LSH_PROJECTION, [(4, 3), (5,), (4,), 3], "weight has shape"),
    (OperationType.RANDOM_MULTINOMIAL, [(3, 10), -1, (2,)], "-1 samples"),
    (OperationType.RANDOM_MULTINOMIAL, [(3, 10), 1, (1,)], "seeds has shape"),
    (OperationType.RESIZE_BILINEAR, [IMAGE, 0, 3], "0 is no output length"),
    (OperationType.RESIZE_BILINEAR, [IMAGE, 0.1, 1.0], "no output length"),
    (OperationType.RESIZE_BILINEAR, [IMAGE, float("inf"), 1.0], "no output length"),
    (OperationType.RESIZE_BILINEAR, [IMAGE, float("nan"), 1.0], "no output length"),
    (OperationType.RESIZE_BILINEAR, [IMAGE, 9, 3, False, True, True], "excludes"),
    (OperationType.RESIZE_BILINEAR, [(1, 0, 6, 8), 9, 3], "image is empty"),
    (
        OperationType.ROI_ALIGN,
        [IMAGE, (5, 4), (4,), 2, 3, 2.0, 2.0, 0, 0, False],
        "batch_indices has shape",
    ),
    (
        OperationType.ROI_ALIGN,
        [IMAGE, (5, 4), (5,), 2, 3, 2.0, 2.0, -1, 0, False],
        "sampling count is negative",
    ),
    (
        OperationType.ROI_POOLING,
        [IMAGE, (5, 4), (5,), 2, 3, 0.0, 2.0, False],
        "ratio is not above 0",
    ),
    (
        OperationType.ROI_POOLING,
        [IMAGE, (5, 4), (5,), 2, 0, 2.0, 2.0, False],
        "output \\[2, 0\\] is empty",
    ),
]


@pytest.mark.parametrize(("type_", "inputs", "message"), ILLEGAL)
def test_operands_that_do_not_fit_are_refused(
    type_: OperationType, inputs: Sequence[Given], message: str
) -> None:
    with pytest.raises(OperationFailedError, match=message) as raised:
        shapes(type_, inputs)
    assert type_.name in str(raised.value)


def test_lookups_need_a_row_for_each_key() -> None:
    with pytest.raises(OperationFailedError, match="7 keys do not name the rows"):
        shapes(OperationType.HASHTABLE_LOOKUP, [(5,), (7,), (6, 3)], 2)


@pytest.mark.parametrize("k", [0, -1, 5])
def test_no_more_elements_are_picked_than_there_are(k: int) -> None:
    with pytest.raises(OperationFailedError, match=f"k is {k}"):
        shapes(OperationType.TOPK_V2, [X, k], 2)


@pytest.mark.parametrize(
    ("count", "outputs", "message"),
    [(3, 2, "splits into 3, but has 2"), (3, 3, "4 is not divisible by 3")],
)
def test_a_split_is_even(count: int, outputs: int, message: str) -> None:
    with pytest.raises(OperationFailedError, match=message):
        shapes(OperationType.SPLIT, [X, 2, count], outputs)


@pytest.mark.parametrize(
    ("type_", "inputs"),
    [
        (OperationType.EXP, [BoundOperand(F32, None)]),
        (OperationType.RESHAPE, [X, BoundOperand(I32, (1,))]),
        (OperationType.EXPAND_DIMS, [X, BoundOperand(INT32, ())]),
        (OperationType.RESIZE_BILINEAR, [IMAGE, BoundOperand(FLOAT32, ()), 1.0]),
    ],
)
def test_what_is_not_known_yet_is_waited_for(
    type_: OperationType, inputs: Sequence[Given]
) -> None:
    with pytest.raises(ValueNeededError):
        shapes(type_, inputs)


def test_a_scalar_that_no_shape_depends_on_is_not_waited_for() -> None:
    assert shapes(OperationType.SOFTMAX, [X, BoundOperand(FLOAT32, ())]) == (X,)


@pytest.mark.parametrize(
    ("type_", "scale", "zero_points"),
    [
        (OperationType.LOGISTIC, 1 / 256, {Q8: 0, Q8S: -128}),
        (OperationType.TANH, 1 / 128, {Q8: 128, Q8S: 0}),
        (OperationType.L2_NORMALIZATION, 1 / 128, {Q8: 128, Q8S: 0}),
        (OperationType.SOFTMAX, 1 / 256, {Q8: 0, Q8S: -128}),
    ],
)
def test_results_of_a_known_range_have_a_fixed_quantization(
    type_: OperationType, scale: float, zero_points: dict[OperandType, int]
) -> None:
    beta = (constant(FLOAT32, 1.0),) if type_ is OperationType.SOFTMAX else ()
    for operand_type, zero_point in zero_points.items():
        inputs = (BoundOperand(operand_type, X, 0.1, 3), *beta)

        def infer(scale: float, zero_point: int, operands=inputs) -> tuple:
            output = BoundOperand(operands[0].type, None, scale, zero_point)
            return infer_shapes(BoundOperation(type_, operands, (output,)))

        assert infer(scale, zero_point) == (X,)
        for wrong in ((scale * 2, zero_point), (scale, zero_point + 1)):
            with pytest.raises(OperationFailedError, match="output has scale"):
                infer(*wrong)


def test_an_output_beyond_32_bits_of_size_is_refused() -> None:
    assert shapes(OperationType.TILE, [(2,), [2**29 - 1]]) == ((2**30 - 2,),)
    with pytest.raises(OperationFailedError, match="4294967296 bytes exceeds"):
        shapes(OperationType.TILE, [(2,), [2**29]])


def test_an_oem_operation_has_no_shape() -> None:
    with pytest.raises(GeneralFailureError, match="OEM_OPERATION is not supported"):
        shapes(OperationType.OEM_OPERATION, [X])
