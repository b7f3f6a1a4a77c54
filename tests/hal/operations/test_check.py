from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations import check_operation
from asyncnn.hal.operations.signature import (
    B8,
    BOOL,
    F16,
    F32,
    FLOAT16,
    FLOAT32,
    I32,
    INT32,
    Q8,
    Q8PC,
    Q8S,
    Q8SYM,
    Q16A,
    Q16S,
)
from asyncnn.hal.types import (
    HalVersion,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    SymmPerChannelQuantParams,
)
from tests.hal.operations.building import check

V1_0, V1_1, V1_2, V1_3 = (HalVersion(level) for level in range(1, 5))
AIDL_V2, AIDL_V3 = HalVersion.AIDL_V2, HalVersion.AIDL_V3

QUANTIZED = {Q8, Q8S, Q8SYM, Q16A, Q16S}


def t(type_: OperandType, *dimensions: int, scale: float = 0.5, zero: int = 0):
    """Return a tensor; the scale is only given to a quantised one."""
    if type_ not in QUANTIZED:
        scale = 0.0
    return Operand(type_, dimensions, scale=scale, zero_point=zero)


def s(*types: OperandType) -> list[Operand]:
    """Return scalars."""
    return [Operand(type_) for type_ in types]


def per_channel(axis: int, *dimensions: int) -> Operand:
    params = SymmPerChannelQuantParams((0.5,) * dimensions[axis], axis)
    return Operand(Q8PC, dimensions, extra_params=params)


def omitted(operand: Operand) -> Operand:
    return replace(operand, lifetime=OperandLifeTime.NO_VALUE)


IMAGE, FILTER = t(F32, 1, 8, 8, 3), t(F32, 4, 3, 3, 3)
CONVOLUTION = [IMAGE, FILTER, t(F32, 4), *s(INT32, INT32, INT32, INT32)]
Q8_CONVOLUTION = [
    t(Q8, 1, 8, 8, 3),
    t(Q8, 4, 3, 3, 3),
    t(I32, 4),
    *s(INT32, INT32, INT32, INT32),
]
POOL = s(INT32, INT32, INT32, INT32, INT32, INT32)

VALID = [
    (OperationType.ADD, [t(F32, 2), t(F32, 2), *s(INT32)], [t(F32, 2)], V1_0),
    (OperationType.ADD, [t(F16, 2), t(F16), *s(INT32)], [t(F16)], V1_2),
    (OperationType.ADD, [t(I32, 2), t(I32), *s(INT32)], [t(I32)], V1_3),
    (OperationType.MUL, [t(Q8, 2), t(Q8, 2), *s(INT32)], [t(Q8, 2, scale=0.3)], V1_0),
    (OperationType.FLOOR, [t(F32, 2)], [t(F32, 2)], V1_0),
    (OperationType.RSQRT, [t(Q8, 2)], [t(Q8, 2)], AIDL_V3),
    (OperationType.EQUAL, [t(Q8S, 2), t(Q8S, 2)], [t(B8, 2)], V1_3),
    (OperationType.SELECT, [t(B8, 2), t(I32, 2), t(I32, 2)], [t(I32, 2)], V1_2),
    (OperationType.TANH, [t(Q8, 2)], [t(Q8, 2)], V1_2),
    (OperationType.ELU, [t(F16, 2), *s(FLOAT16)], [t(F16, 2)], V1_3),
    (OperationType.SOFTMAX, [t(F32, 2, 3), *s(FLOAT32)], [t(F32)], V1_0),
    (OperationType.SOFTMAX, [t(F32, 2, 3, 4), *s(FLOAT32)], [t(F32)], V1_2),
    (OperationType.SOFTMAX, [t(F32, 2, 3), *s(FLOAT32, INT32)], [t(F32)], V1_2),
    (OperationType.L2_NORMALIZATION, [t(F32, 1, 1, 1, 3)], [t(F32)], V1_0),
    (OperationType.L2_NORMALIZATION, [t(F32, 1, 3)], [t(F32)], V1_2),
    (OperationType.CONV_2D, CONVOLUTION, [t(F32)], V1_0),
    (OperationType.CONV_2D, [*CONVOLUTION, *s(BOOL)], [t(F32)], V1_2),
    (OperationType.CONV_2D, [*CONVOLUTION, *s(BOOL, INT32, INT32)], [t(F32)], V1_2),
    (OperationType.CONV_2D, [*CONVOLUTION, *s(INT32, INT32, INT32)], [t(F32)], V1_0),
    (OperationType.CONV_2D, Q8_CONVOLUTION, [t(Q8, scale=0.26)], V1_0),
    (OperationType.CONV_2D, Q8_CONVOLUTION, [t(Q8, scale=0.25)], V1_2),
    (
        OperationType.CONV_2D,
        [t(Q8S, 1, 8, 8, 3), per_channel(0, 4, 3, 3, 3), *Q8_CONVOLUTION[2:]],
        [t(Q8S)],
        V1_3,
    ),
    (
        OperationType.DEPTHWISE_CONV_2D,
        [t(Q8, 1, 8, 8, 3), per_channel(3, 1, 3, 3, 6), t(I32, 6), *s(*[INT32] * 5)],
        [t(Q8)],
        V1_2,
    ),
    (OperationType.MAX_POOL_2D, [t(Q8, 1, 8, 8, 3), *POOL], [t(Q8)], V1_0),
    (OperationType.MAX_POOL_2D, [IMAGE, *POOL, *s(BOOL)], [t(F32)], V1_2),
    (
        OperationType.FULLY_CONNECTED,
        [t(F32, 2, 6), t(F32, 4, 3), t(F32, 4), *s(INT32)],
        [t(F32, 4, 4)],
        V1_0,
    ),
    (OperationType.RESHAPE, [t(F32, 2, 3), t(I32, 1)], [t(F32)], V1_0),
    (OperationType.RESHAPE, [t(I32, 2, 3), t(I32, 1)], [t(I32)], AIDL_V2),
    (OperationType.SQUEEZE, [t(F32, 1, 3), omitted(t(I32, 1))], [t(F32)], V1_1),
    (OperationType.CONCATENATION, [t(Q8, 2), t(Q8, 2), *s(INT32)], [t(Q8, 4)], V1_0),
    (
        OperationType.CONCATENATION,
        [t(Q8, 2), t(Q8, 2, zero=1), *s(INT32)],
        [t(Q8, 4)],
        V1_2,
    ),
    (OperationType.PACK, [*s(INT32), t(F32, 2), t(F32, 2)], [t(F32, 2, 2)], AIDL_V2),
    (OperationType.SPLIT, [t(F32, 4), *s(INT32, INT32)], [t(F32, 2)] * 2, V1_2),
    (OperationType.PAD, [t(Q8, 2), t(I32, 1, 2)], [t(Q8)], V1_1),
    (OperationType.PAD, [t(Q8, 2, zero=3), t(I32, 1, 2)], [t(Q8)], V1_2),
    (
        OperationType.MIRROR_PAD,
        [t(Q8, 2), t(I32, 1, 2), *s(INT32)],
        [t(Q8, 0)],
        AIDL_V3,
    ),
    (OperationType.REVERSE, [t(F32, 2, 3), t(I32, 1)], [t(F32, 2, 3)], AIDL_V3),
    (OperationType.MEAN, [t(F32, 2, 3), t(I32, 1), *s(INT32)], [t(F32)], V1_1),
    (OperationType.CAST, [t(Q16S, 2)], [t(Q16S, 2)], V1_3),
    (OperationType.DEQUANTIZE, [t(Q8, 2)], [t(F32, 2)], V1_0),
    (OperationType.DEQUANTIZE, [per_channel(0, 2)], [t(F16, 2)], V1_2),
    (OperationType.RESIZE_BILINEAR, [IMAGE, *s(INT32, INT32)], [t(F32)], V1_0),
    (OperationType.RESIZE_BILINEAR, [IMAGE, *s(FLOAT32, FLOAT32)], [t(F32)], V1_2),
    (
        OperationType.RESIZE_NEAREST_NEIGHBOR,
        [IMAGE, *s(INT32, INT32, BOOL, BOOL)],
        [t(F32)],
        V1_3,
    ),
    (
        OperationType.LSH_PROJECTION,
        [t(F32, 3, 2), t(I32, 5), omitted(t(F32, 5)), *s(INT32)],
        [t(I32)],
        V1_0,
    ),
    (OperationType.RNN, [*[t(F32)] * 5, *s(INT32)], [t(F32)] * 2, V1_0),
    (
        OperationType.UNIDIRECTIONAL_SEQUENCE_RNN,
        [*[t(F32)] * 5, *s(INT32, INT32)],
        [t(F32)] * 2,
        V1_3,
    ),
    (
        OperationType.LSTM,
        [*[t(F32)] * 20, *s(INT32, FLOAT32, FLOAT32)],
        [t(F32)] * 4,
        V1_0,
    ),
    (
        OperationType.LSTM,
        [*[t(F32)] * 20, *s(INT32, FLOAT32, FLOAT32), *[omitted(t(F32))] * 4],
        [t(F32)] * 4,
        V1_2,
    ),
    (
        OperationType.AXIS_ALIGNED_BBOX_TRANSFORM,
        [t(Q16A, 5, 4), t(Q8S, 5, 8), t(I32, 5), t(Q16A, 1, 2)],
        [t(Q16A)],
        V1_3,
    ),
    (OperationType.RANK, [t(Q8SYM, 2)], s(INT32), V1_3),
    (OperationType.FILL, [t(I32, 2), *s(FLOAT16)], [t(F16)], V1_3),
]


@pytest.mark.parametrize(("type_", "inputs", "outputs", "since"), VALID)
def test_a_legal_use_is_accepted_from_its_version_on(
    type_: OperationType,
    inputs: Sequence[Operand],
    outputs: Sequence[Operand],
    since: HalVersion,
) -> None:
    assert check(type_, inputs, outputs, since) is since
    if since is not V1_0:
        older = HalVersion(since - 1)
        message = f"{type_.name} needs {since.title}, not {older.title}: "
        with pytest.raises(InvalidArgumentError, match=message):
            check(type_, inputs, outputs, older)


ILLEGAL = [
    (
        OperationType.ADD,
        [t(F32), t(F32)],
        [t(F32)],
        "ADD has 2 inputs and 1 output, expected 3 inputs and 1 output",
    ),
    (
        OperationType.CONV_2D,
        [*CONVOLUTION, *s(BOOL, INT32)],
        [t(F32)],
        "expected 7, 8 or 10 inputs and 1 output, or 10, 11 or 13 inputs",
    ),
    (OperationType.SPLIT, [t(F32), *s(INT32, INT32)], [], "and 1 or more outputs"),
    (OperationType.CONCATENATION, s(INT32), [t(F32)], "expected 2 or more inputs"),
    (
        OperationType.ADD,
        [t(F32), t(F16), *s(INT32)],
        [t(F32)],
        r"ADD: input 1 \(second\) is TENSOR_FLOAT16, expected TENSOR_FLOAT32$",
    ),
    (
        OperationType.EXP,
        [t(I32)],
        [t(I32)],
        r"input 0 \(input\) is TENSOR_INT32, expected TENSOR_FLOAT16 or TENSOR_FLOAT32",
    ),
    (
        OperationType.TOPK_V2,
        [t(F32, 3), *s(INT32)],
        [t(F32), t(F32)],
        r"output 1 \(indices\) is TENSOR_FLOAT32, expected TENSOR_INT32",
    ),
    (
        OperationType.FLOOR,
        [Operand(0x10003)],
        [Operand(0x10003)],
        r"is type 0x10003, expected",
    ),
    (
        OperationType.CONV_2D,
        [*CONVOLUTION[:6], *s(FLOAT32)],
        [t(F32)],
        r"input 6 \(activation\) is FLOAT32, expected INT32",
    ),
    (
        OperationType.CONV_2D,
        [*CONVOLUTION, *s(FLOAT32, INT32, INT32)],
        [t(F32)],
        r"input 7 \(nchw\) is FLOAT32, expected BOOL or INT32",
    ),
    (
        OperationType.CONV_2D,
        [t(F32, 8, 8, 3), *CONVOLUTION[1:]],
        [t(F32)],
        r"input 0 \(input\) has rank 3, expected 4",
    ),
    (
        OperationType.RELU,
        [t(F32, 1, 1, 1, 1, 1)],
        [t(F32)],
        "has rank 5, expected 1 or 2 or 3 or 4",
    ),
    (
        OperationType.CONV_2D,
        [Q8_CONVOLUTION[0], per_channel(3, 4, 3, 3, 3), *Q8_CONVOLUTION[2:]],
        [t(Q8)],
        r"input 1 \(filter\) has its scales along axis 3, expected 0",
    ),
    (
        OperationType.DEPTHWISE_CONV_2D,
        [t(Q8, 1, 8, 8, 3), per_channel(0, 1, 3, 3, 6), t(I32, 6), *s(*[INT32] * 5)],
        [t(Q8)],
        r"along axis 0, expected 3",
    ),
    (
        OperationType.MUL,
        [t(Q8, 2), t(Q8, 2), *s(INT32)],
        [t(Q8, 2, scale=0.25)],
        r"output 0 \(output\) has scale 0.25, not above 0.25",
    ),
    (
        OperationType.FULLY_CONNECTED,
        [t(F32, 2, 5), t(F32, 4, 3), t(F32, 4), *s(INT32)],
        [t(F32)],
        r"of \[2, 5\] is no multiple of 3 inputs",
    ),
    (
        OperationType.FULLY_CONNECTED,
        [t(F32, 2, 3), t(F32, 4, 3), t(F32, 5), *s(INT32)],
        [t(F32)],
        "has 5 elements for 4 units",
    ),
    (
        OperationType.RNN,
        [t(F32), omitted(t(F32)), *[t(F32)] * 3, *s(INT32)],
        [t(F32)] * 2,
        r"input 1 \(weights\) must not be omitted",
    ),
    (
        OperationType.DIV,
        [t(Q8S, 2), t(Q8S, 2), *s(INT32)],
        [t(Q8S, 2)],
        "is TENSOR_QUANT8_ASYMM_SIGNED, expected TENSOR_FLOAT16 or",
    ),
    (OperationType.CAST, [t(F32, 2)], [t(I32, 3)], r"\[3\], the input \[2\]"),
    (OperationType.CAST, [t(B8, 2)], [t(I32, 2)], "expected TENSOR_BOOL8"),
    (
        OperationType.PACK,
        [*s(INT32), t(Q8, 2), t(Q8, 2, zero=1)],
        [t(Q8, 2, 2)],
        "is quantised unlike the input",
    ),
    (
        OperationType.PACK,
        [*s(INT32), t(F32, 2), t(F32, 2)],
        [t(F32, 2)],
        "has a rank unlike the others, or the output's",
    ),
    (
        OperationType.MIRROR_PAD,
        [t(F32, 2), t(I32, 2, 2), *s(INT32)],
        [t(F32, 0)],
        "has 2 rows for rank 1",
    ),
    (
        OperationType.MIRROR_PAD,
        [t(F32, 2), t(I32, 1, 3), *s(INT32)],
        [t(F32, 0)],
        "has 3 columns, expected 2",
    ),
    (
        OperationType.REVERSE,
        [t(F32, 2), t(I32, 2)],
        [t(F32, 2)],
        r"input 1 \(axis\) is not a tensor of one element",
    ),
    (
        OperationType.REVERSE,
        [t(F32, 2), t(I32, 1)],
        [t(F32, 2, 1)],
        "has rank 2, the input rank 1",
    ),
    (
        OperationType.RESIZE_BILINEAR,
        [t(F16, 1, 8, 8, 3), *s(FLOAT32, FLOAT32)],
        [t(F16)],
        "is FLOAT32, expected FLOAT16 or INT32",
    ),
]


@pytest.mark.parametrize(("type_", "inputs", "outputs", "message"), ILLEGAL)
def test_an_illegal_use_is_refused_by_name(
    type_: OperationType,
    inputs: Sequence[Operand],
    outputs: Sequence[Operand],
    message: str,
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        check(type_, inputs, outputs)


@pytest.mark.parametrize("index", [2, -1, 1 << 40])
def test_an_operand_that_does_not_exist_is_refused(index: int) -> None:
    operands = [t(F32, 2), t(F32, 2)]
    for operation in (
        Operation(OperationType.EXP, (index,), (1,)),
        Operation(OperationType.EXP, (0,), (index,)),
        Operation(0x10001, (index,), (1,)),
    ):
        with pytest.raises(InvalidArgumentError, match=f"operand {index}, there are 2"):
            check_operation(operation, operands, V1_3)


@pytest.mark.parametrize("type_", [-1, 106, 9999, 10001, 0xFFFF])
def test_a_number_that_no_operation_has_is_refused(type_: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"there is no operation {type_}"):
        check_operation(Operation(type_, (), ()), [], V1_3)


def test_nothing_is_known_of_oem_and_extension_operations() -> None:
    anything = [Operand(OperandType.OEM)]
    oem = Operation(OperationType.OEM_OPERATION, (0,), (0, 0))
    assert check_operation(oem, anything, V1_0) is V1_0
    extension = Operation(0x10001, (0,), ())
    assert check_operation(extension, anything, V1_3) is V1_2
    with pytest.raises(InvalidArgumentError, match=r"operation 0x10001 needs HAL 1\.2"):
        check_operation(extension, anything, V1_1)
