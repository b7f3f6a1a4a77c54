"""Files of one operator each, and the HAL operations that they become."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.runtime.tflite.files import TYPES, Op, T, given, write

F32, F16, I8, I32, I64 = np.float32, np.float16, np.int8, np.int32, np.int64
BOOL = np.bool_

OPTIONS = {
    "ADD": "AddOptions",
    "ARG_MAX": "ArgMaxOptions",
    "ARG_MIN": "ArgMinOptions",
    "ATAN2": "ATan2Options",
    "AVERAGE_POOL_2D": "Pool2DOptions",
    "BATCH_MATMUL": "BatchMatMulOptions",
    "BITWISE_XOR": "BitwiseXorOptions",
    "BUCKETIZE": "BucketizeOptions",
    "CAST": "CastOptions",
    "CONCATENATION": "ConcatenationOptions",
    "CONV_2D": "Conv2DOptions",
    "CUMSUM": "CumsumOptions",
    "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions",
    "DEPTH_TO_SPACE": "DepthToSpaceOptions",
    "DIV": "DivOptions",
    "DYNAMIC_UPDATE_SLICE": "DynamicUpdateSliceOptions",
    "FAKE_QUANT": "FakeQuantOptions",
    "FULLY_CONNECTED": "FullyConnectedOptions",
    "GATHER": "GatherOptions",
    "GATHER_ND": "GatherNdOptions",
    "GELU": "GeluOptions",
    "L2_POOL_2D": "Pool2DOptions",
    "LEAKY_RELU": "LeakyReluOptions",
    "LOCAL_RESPONSE_NORMALIZATION": "LocalResponseNormalizationOptions",
    "LSH_PROJECTION": "LSHProjectionOptions",
    "MATRIX_DIAG": "MatrixDiagOptions",
    "MATRIX_SET_DIAG": "MatrixSetDiagOptions",
    "MAX_POOL_2D": "Pool2DOptions",
    "MEAN": "ReducerOptions",
    "MIRROR_PAD": "MirrorPadOptions",
    "MUL": "MulOptions",
    "MULTINOMIAL": "RandomOptions",
    "ONE_HOT": "OneHotOptions",
    "PACK": "PackOptions",
    "RANGE": "RangeOptions",
    "RANK": "RankOptions",
    "REDUCE_ALL": "ReducerOptions",
    "REDUCE_ANY": "ReducerOptions",
    "REDUCE_MAX": "ReducerOptions",
    "REDUCE_MIN": "ReducerOptions",
    "REDUCE_PROD": "ReducerOptions",
    "RESHAPE": "ReshapeOptions",
    "RESIZE_BILINEAR": "ResizeBilinearOptions",
    "RESIZE_NEAREST_NEIGHBOR": "ResizeNearestNeighborOptions",
    "REVERSE_SEQUENCE": "ReverseSequenceOptions",
    "RIGHT_SHIFT": "RightShiftOptions",
    "SCATTER_ND": "ScatterNdOptions",
    "SHAPE": "ShapeOptions",
    "SIGN": "SignOptions",
    "SOFTMAX": "SoftmaxOptions",
    "SPACE_TO_DEPTH": "SpaceToDepthOptions",
    "SPARSE_TO_DENSE": "SparseToDenseOptions",
    "SPLIT": "SplitOptions",
    "SPLIT_V": "SplitVOptions",
    "SQUEEZE": "SqueezeOptions",
    "STRIDED_SLICE": "StridedSliceOptions",
    "SUB": "SubOptions",
    "SUM": "ReducerOptions",
    "TRANSPOSE_CONV": "TransposeConvOptions",
    "UNPACK": "UnpackOptions",
}
"""Kind of the options of those operators that are tested with some."""

COMPOSED = ("...",)
"""Operations of a formula: several, by the converter's choice."""

ANY_OPERATIONS = ("*",)
"""Operations that another case of the operator tells."""


@dataclass(frozen=True)
class Case:
    """An operator; ``positive`` inputs avoid the poles of logarithms and roots.

    Quantised outputs may be off by so many ``steps``. Inputs of int32 or int64 are from
    0 to ``below``. LiteRT computes the operator ``alias`` if it has no other.
    """

    name: str
    operations: tuple[str, ...]
    operator: Op
    positive: bool = False
    steps: int = 1
    below: int = 0
    alias: str = ""

    @property
    def inputs(self) -> list[T]:
        """Inputs of the graph: those of the operator that somebody has to give."""
        return given(self.operator)

    def file(self) -> bytes:
        return write([self.operator], self.inputs, self.operator.outputs)

    def litert_file(self) -> bytes:
        """Return the file that LiteRT has kernels for."""
        if not self.alias:
            return self.file()
        operator = replace(self.operator, name=self.alias)
        return write([operator], self.inputs, operator.outputs)


def case(
    name: str,
    inputs: Sequence[T | None],
    output: T | Sequence[T],
    label: str = "",
    *,
    hal: str = "",
    positive: bool = False,
    below: int = 0,
    alias: str = "",
    **fields: Any,
) -> Case:
    """Return a case; ``hal`` names the operations if they are not just ``name``."""
    outputs = [output] if isinstance(output, T) else output
    operator = Op(name, inputs, outputs, OPTIONS.get(name, ""), fields)
    return Case(
        f"{name} {label}".strip(),
        tuple((hal or name).split()),
        operator,
        positive,
        below=below,
        alias=alias,
    )


def const(data: Any, dtype: Any = I32, **rest: Any) -> T:
    return T.constant(data, dtype, **rest)


def ramp(shape: Sequence[int], dtype: Any = F32, **rest: Any) -> T:
    """Return a constant of small values, neighbours different."""
    values = np.arange(np.prod(shape)).reshape(shape) % 23 - 9
    return T.constant(values / 8 if dtype is F32 else values, dtype, **rest)


def f32(*shape: int) -> T:
    return T(F32, shape)


def i32(*shape: int) -> T:
    return T(I32, shape)


def boolean(*shape: int) -> T:
    return T(BOOL, shape)


def i8(*shape: int, scale: float = 0.05, zero: int = 3) -> T:
    return T(I8, shape, scale=(scale,), zero_point=(zero,))


def u8(*shape: int, scale: float = 0.05, zero: int = 120) -> T:
    return T(np.uint8, shape, scale=(scale,), zero_point=(zero,))


def arithmetic() -> Iterator[Case]:
    x, y = f32(2, 3), f32(3)
    for name in ("ADD", "SUB", "MUL"):
        yield case(name, [x, y], f32(2, 3), "float")
        yield case(name, [x, x], f32(2, 3), "relu", FusedActivationFunction=1)
        yield case(name, [x, const(1.5, F32)], f32(2, 3), "scalar")
        quantized = [i8(2, 3), i8(2, 3, scale=0.02)]
        yield case(name, quantized, i8(2, 3, scale=0.1), "int8")
    coarse = [i8(2, 3, scale=0.5), i8(2, 3, scale=0.5)]
    through_float = "DEQUANTIZE DEQUANTIZE MUL QUANTIZE"
    yield case("MUL", coarse, i8(2, 3, scale=0.25), "fine result", hal=through_float)
    divisor = const([1, 2, -4, 8], F32)
    yield case("DIV", [f32(4), divisor], f32(4))
    yield case("FLOOR_DIV", [f32(4), divisor], f32(4), "float", hal="DIV FLOOR")
    yield case("FLOOR_DIV", [i32(3), const([3, -2, 5])], i32(3), "int32", hal="DIV")
    yield case("FLOOR_MOD", [i32(4), const([3, -2, 5, -7])], i32(4), hal="DIV MUL SUB")
    yield case("ADD_N", [x, f32(2, 3), f32(2, 3)], f32(2, 3), hal="ADD ADD")
    yield case("SQUARE", [x], f32(2, 3), hal="MUL")
    yield case("SQUARED_DIFFERENCE", [x, y], f32(2, 3), hal="SUB MUL")
    yield case("POW", [x, const(2.0, F32)], f32(2, 3), positive=True)
    for name in ("MAXIMUM", "MINIMUM"):
        yield case(name, [x, y], f32(2, 3), "float")
        yield case(name, [i8(2, 3), i8(2, 3)], i8(2, 3), "int8")


def logic() -> Iterator[Case]:
    for name in ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL"):
        yield case(name, [f32(2, 3), f32(3)], boolean(2, 3))
    for name in ("LESS", "LESS_EQUAL"):
        yield case(name, [i8(2, 3), i8(2, 3)], boolean(2, 3))
    for name in ("LOGICAL_AND", "LOGICAL_OR"):
        yield case(name, [boolean(2, 3), boolean(2, 3)], boolean(2, 3))
    yield case("LOGICAL_NOT", [boolean(2, 3)], boolean(2, 3))
    for name, hal in (("SELECT", "SELECT"), ("SELECT_V2", "SELECT")):
        yield case(name, [boolean(2, 3), f32(2, 3), f32(2, 3)], f32(2, 3), hal=hal)
    rows, hal = [boolean(2, 1), f32(3), f32(2, 3)], "LOGICAL_OR RESHAPE TILE SELECT"
    yield case("SELECT_V2", rows, f32(2, 3), "broadcast", hal=hal)
    scalar = [boolean(2, 3), const(1.5, F32), f32(2, 1)]
    hal = "RESHAPE TILE TILE SELECT"
    yield case("SELECT_V2", scalar, f32(2, 3), "with a scalar", hal=hal)


def unary() -> Iterator[Case]:
    for name in ("EXP", "SIN", "ABS", "NEG", "FLOOR", "HARD_SWISH"):
        yield case(name, [f32(2, 3)], f32(2, 3))
    for name in ("LOG", "SQRT", "RSQRT"):
        yield case(name, [f32(2, 3)], f32(2, 3), positive=True)
    hal = "DEQUANTIZE MAXIMUM LOG QUANTIZE"
    yield case("LOG", [i8(64)], i8(64), "int8", hal=hal)
    yield case("ABS", [i32(4)], i32(4), "int32")
    yield case("ROUND", [f32(2, 9)], f32(2, 9), hal="...")
    yield case("CEIL", [f32(2, 3)], f32(2, 3), hal="NEG FLOOR NEG")
    yield case("COS", [f32(2, 3)], f32(2, 3), hal="MUL SIN MUL MUL ADD")
    yield case("ABS", [i8(8)], i8(8, scale=0.1), "int8", hal="DEQUANTIZE ABS QUANTIZE")
    yield case("ELU", [f32(2, 3)], f32(2, 3), "float")
    yield case("ELU", [i8(8)], i8(8), "int8", hal="DEQUANTIZE ELU QUANTIZE")
    yield case("HARD_SWISH", [i8(8)], i8(8, scale=0.03), "int8")
    for name, hal in (("RELU", "RELU"), ("RELU6", "RELU6"), ("RELU_N1_TO_1", "RELU1")):
        yield case(name, [f32(2, 3)], f32(2, 3), "float", hal=hal)
    yield case("RELU", [i8(8)], i8(8), "int8")
    positive = i8(8, scale=0.03, zero=-128)
    hal = "RELU DEQUANTIZE QUANTIZE"
    yield case("RELU", [i8(8)], positive, "other scale", hal=hal)
    yield case("PRELU", [f32(1, 2, 2, 3), ramp((1, 1, 3))], f32(1, 2, 2, 3))
    yield case("LEAKY_RELU", [f32(6)], f32(6), "float", hal="PRELU", Alpha=0.25)
    yield case("LEAKY_RELU", [i8(9)], i8(9), "int8", hal="PRELU", Alpha=0.25)
    hal = "DEQUANTIZE PRELU QUANTIZE"
    yield case("LEAKY_RELU", [i8(9)], i8(9), "negative slope", hal=hal, Alpha=-0.5)


def normalizations() -> Iterator[Case]:
    yield case("LOGISTIC", [f32(2, 3)], f32(2, 3), "float")
    yield case("LOGISTIC", [i8(8)], i8(8, scale=1 / 256, zero=-128), "int8")
    yield case("LOGISTIC", [u8(8)], u8(8, scale=1 / 256, zero=0), "uint8")
    yield case("TANH", [i8(8)], i8(8, scale=1 / 128, zero=0), "int8")
    for rank in (1, 2, 3, 4):
        shape = (1,) * (rank - 1) + (5,)
        yield case("SOFTMAX", [f32(*shape)], f32(*shape), f"rank {rank}", Beta=0.5)
    probabilities = i8(1, 5, scale=1 / 256, zero=-128)
    yield case("SOFTMAX", [i8(1, 5)], probabilities, "int8", Beta=1.0)
    yield case("LOG_SOFTMAX", [f32(2, 5)], f32(2, 5))
    yield case("L2_NORMALIZATION", [f32(2, 5)], f32(2, 5), positive=True)
    yield case(
        "LOCAL_RESPONSE_NORMALIZATION",
        [f32(1, 2, 2, 6)],
        f32(1, 2, 2, 6),
        Radius=2,
        Bias=1.0,
        Alpha=0.5,
        Beta=0.75,
    )


def reductions() -> Iterator[Case]:
    for name, hal in (
        ("MEAN", "MEAN"),
        ("SUM", "REDUCE_SUM"),
        ("REDUCE_PROD", "REDUCE_PROD"),
        ("REDUCE_MAX", "REDUCE_MAX"),
        ("REDUCE_MIN", "REDUCE_MIN"),
    ):
        x = f32(2, 3, 4)
        yield case(name, [x, const([1])], f32(2, 4), "one axis", hal=hal)
        kept, axes = f32(1, 3, 1), const([0, -1])
        yield case(name, [x, axes], kept, "kept", hal=hal, KeepDims=True)
    yield case("REDUCE_MAX", [f32(2, 3), const([0, 1])], f32(), "all")
    means, sums = i8(2, scale=0.02), i8(2, scale=0.2)
    hal = "DEQUANTIZE MEAN QUANTIZE"
    yield case("MEAN", [i8(2, 6), const([1])], means, "other scale", hal=hal)
    hal = "DEQUANTIZE REDUCE_SUM QUANTIZE"
    yield case("SUM", [i8(2, 3), const([1])], sums, "int8", hal=hal)
    for name in ("REDUCE_ANY", "REDUCE_ALL"):
        yield case(name, [boolean(2, 3), const([1])], boolean(2))
    last, first = const(-1), const([0])
    yield case("ARG_MAX", [f32(2, 5), last], i32(2), hal="ARGMAX", OutputType=2)
    yield case("ARG_MIN", [i8(2, 5), first], i32(5), hal="ARGMIN", OutputType=2)


def conversions() -> Iterator[Case]:
    yield case("QUANTIZE", [f32(2, 3)], i8(2, 3), "float to int8")
    yield case("QUANTIZE", [f32(2, 3)], u8(2, 3), "float to uint8")
    hal = "DEQUANTIZE QUANTIZE"
    yield case("QUANTIZE", [i8(8)], i8(8, scale=0.1, zero=-9), "int8", hal=hal)
    yield case("QUANTIZE", [u8(8)], i8(8, zero=-8), "uint8 to int8", hal=hal)
    yield case("DEQUANTIZE", [i8(2, 3)], f32(2, 3), "int8")
    yield case("DEQUANTIZE", [T(F16, (4,))], f32(4), "float16", hal="CAST")
    for source, target, hal in (
        (f32(4), i32(4), "CAST"),
        (i32(4), f32(4), "CAST"),
        (T(I64, (4,)), f32(4), "CAST"),
        (boolean(4), f32(4), "SELECT"),
        (boolean(4), i32(4), "SELECT"),
        (f32(4), boolean(4), "NOT_EQUAL"),
        (i32(4), boolean(4), "NOT_EQUAL"),
        (T(np.uint8, (4,)), f32(4), "CAST"),
        (T(I8, (4,)), f32(4), "DEQUANTIZE"),
        (T(I8, (4,)), i32(4), "DEQUANTIZE CAST"),
        (f32(4), T(I8, (4,)), "CAST CAST QUANTIZE"),
        (i32(4), T(I8, (4,)), "CAST QUANTIZE"),
        (boolean(4), T(I8, (4,)), "SELECT"),
        (T(F16, (4,)), f32(4), "CAST"),
        (f32(4), T(F16, (4,)), "CAST"),
    ):
        names = [np.dtype(each.dtype).name for each in (source, target)]
        types = [TYPES[np.dtype(each.dtype)] for each in (source, target)]
        yield case(
            "CAST",
            [source],
            target,
            " to ".join(names),
            hal=hal,
            InDataType=types[0],
            OutDataType=types[1],
        )
