"""Files of one operator each, and the HAL operations that they become."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.runtime.tflite.files import Op, T, write

F32, I8, U8, I32, BOOL = np.float32, np.int8, np.uint8, np.int32, np.bool_


@dataclass(frozen=True)
class Case:
    """An operator; ``positive`` inputs avoid the poles of logarithms and roots."""

    name: str
    operations: tuple[str, ...]
    operator: Op
    positive: bool = False

    @property
    def inputs(self) -> list[T]:
        """Inputs of the graph: those of the operator that are not constants."""
        given = [t for t in self.operator.inputs if t is not None and t.data is None]
        return list(dict.fromkeys(given))

    def file(self) -> bytes:
        return write([self.operator], self.inputs, self.operator.outputs)


def const(data: Any, dtype: Any = I32, **rest: Any) -> T:
    return T.constant(data, dtype, **rest)


def ramp(shape: Sequence[int], dtype: Any = F32, **rest: Any) -> T:
    """Return a constant of small values, all different enough."""
    values = np.arange(np.prod(shape)).reshape(shape) % 23 - 9
    scaled = values / 8 if dtype is F32 else values
    return T.constant(scaled, dtype, **rest)


def f32(*shape: int) -> T:
    return T(F32, shape)


def i8(*shape: int, scale: float = 0.05, zero: int = 3) -> T:
    return T(I8, shape, scale=(scale,), zero_point=(zero,))


def u8(*shape: int, scale: float = 0.05, zero: int = 120) -> T:
    return T(U8, shape, scale=(scale,), zero_point=(zero,))


def one(
    name: str,
    inputs: Sequence[T | None],
    output: T,
    operations: str = "",
    options: str = "",
    label: str = "",
    positive: bool = False,
    **fields: Any,
) -> Case:
    """Return the case of an operator with one output."""
    return Case(
        f"{name} {label}".strip(),
        tuple((operations or name).split()),
        Op(name, inputs, [output], options, fields),
        positive,
    )


def arithmetic() -> Iterator[Case]:
    for name in ("ADD", "SUB", "MUL"):
        kind = f"{name.capitalize()}Options"
        yield one(name, [f32(2, 3), f32(3)], f32(2, 3), name, kind, "float")
        yield one(
            name, [f32(2, 3), f32(2, 3)], f32(2, 3), name, kind, "relu",
            FusedActivationFunction=1,
        )  # fmt: skip
        inputs = [i8(2, 3), i8(2, 3, scale=0.02)]
        yield one(name, inputs, i8(2, 3, scale=0.1), name, kind, "int8")
        constant = const(1.5, F32)
        yield one(name, [f32(2, 3), constant], f32(2, 3), name, kind, "scalar")
    yield one(
        "MUL", [i8(2, 3, scale=0.5), i8(2, 3, scale=0.5)], i8(2, 3, scale=0.25),
        "DEQUANTIZE DEQUANTIZE MUL QUANTIZE", "MulOptions", "fine output",
    )  # fmt: skip
    yield one("DIV", [f32(4), const([1, 2, -4, 8], F32)], f32(4), "DIV", "DivOptions")
    yield one(
        "FLOOR_DIV", [f32(4), const([1, 2, -4, 8], F32)], f32(4), "DIV FLOOR",
        label="float",
    )  # fmt: skip
    yield one("FLOOR_DIV", [T(I32, (3,)), const([3, -2, 5])], T(I32, (3,)), "DIV")
    yield one("SQUARE", [f32(2, 3)], f32(2, 3), "MUL")
    yield one("SQUARED_DIFFERENCE", [f32(2, 3), f32(3)], f32(2, 3), "SUB MUL")
    yield one("POW", [f32(2, 3), const(2.0, F32)], f32(2, 3), positive=True)
    for name in ("MAXIMUM", "MINIMUM"):
        yield one(name, [f32(2, 3), f32(3)], f32(2, 3), label="float")
        yield one(name, [i8(2, 3), i8(2, 3)], i8(2, 3), label="int8")
    for name in (
        "EQUAL",
        "NOT_EQUAL",
        "GREATER",
        "GREATER_EQUAL",
        "LESS",
        "LESS_EQUAL",
    ):
        yield one(name, [f32(2, 3), f32(3)], T(BOOL, (2, 3)))
    for name in ("LOGICAL_AND", "LOGICAL_OR"):
        yield one(name, [T(BOOL, (2, 3)), T(BOOL, (2, 3))], T(BOOL, (2, 3)))
    yield one("LOGICAL_NOT", [T(BOOL, (2, 3))], T(BOOL, (2, 3)))


def unary() -> Iterator[Case]:
    for name in ("EXP", "SIN", "ABS", "NEG", "FLOOR", "HARD_SWISH"):
        yield one(name, [f32(2, 3)], f32(2, 3))
    for name in ("LOG", "SQRT", "RSQRT"):
        yield one(name, [f32(2, 3)], f32(2, 3), positive=True)
    yield one("ABS", [T(I32, (4,))], T(I32, (4,)), label="int32")
    yield one("ABS", [i8(8)], i8(8, scale=0.1), "DEQUANTIZE ABS QUANTIZE", label="int8")
    yield one("ELU", [f32(2, 3)], f32(2, 3), label="float")
    yield one("ELU", [i8(8)], i8(8), "DEQUANTIZE ELU QUANTIZE", label="int8")
    yield one("HARD_SWISH", [i8(8)], i8(8, scale=0.03), label="int8")
    for name, hal in (("RELU", "RELU"), ("RELU6", "RELU6"), ("RELU_N1_TO_1", "RELU1")):
        yield one(name, [f32(2, 3)], f32(2, 3), hal, label="float")
    yield one("RELU", [i8(8)], i8(8), label="int8")
    yield one(
        "RELU", [i8(8)], i8(8, scale=0.03, zero=-128), "RELU DEQUANTIZE QUANTIZE",
        label="other scale",
    )  # fmt: skip
    yield one("PRELU", [f32(1, 2, 2, 3), ramp((1, 1, 3))], f32(1, 2, 2, 3))
    leaky = "LeakyReluOptions"
    yield one("LEAKY_RELU", [f32(6)], f32(6), "PRELU", leaky, "float", Alpha=0.25)
    yield one("LEAKY_RELU", [i8(9)], i8(9), "PRELU", leaky, "int8", Alpha=0.25)
    yield one("LOGISTIC", [f32(2, 3)], f32(2, 3), label="float")
    yield one("LOGISTIC", [i8(8)], i8(8, scale=1 / 256, zero=-128), label="int8")
    yield one("LOGISTIC", [u8(8)], u8(8, scale=1 / 256, zero=0), label="uint8")
    yield one("TANH", [i8(8)], i8(8, scale=1 / 128, zero=0), label="int8")
    for rank in (1, 2, 3, 4):
        shape = (1,) * (rank - 1) + (5,)
        yield one(
            "SOFTMAX", [f32(*shape)], f32(*shape), "SOFTMAX", "SoftmaxOptions",
            f"rank {rank}", Beta=0.5,
        )  # fmt: skip
    yield one(
        "SOFTMAX", [i8(1, 5)], i8(1, 5, scale=1 / 256, zero=-128), "SOFTMAX",
        "SoftmaxOptions", "int8", Beta=1.0,
    )  # fmt: skip
    yield one("LOG_SOFTMAX", [f32(2, 5)], f32(2, 5))
    yield one("L2_NORMALIZATION", [f32(2, 5)], f32(2, 5), positive=True)
    yield one(
        "LOCAL_RESPONSE_NORMALIZATION", [f32(1, 2, 2, 6)], f32(1, 2, 2, 6),
        options="LocalResponseNormalizationOptions",
        Radius=2, Bias=1.0, Alpha=0.5, Beta=0.75,
    )  # fmt: skip


def convolutions() -> Iterator[Case]:
    window = {"StrideW": 1, "StrideH": 2}
    undilated = {"DilationWFactor": 1, "DilationHFactor": 1}
    conv = {**window, **undilated}
    kind = "Conv2DOptions"
    filter_, bias = ramp((4, 3, 3, 2)), ramp((4,))
    image = f32(1, 6, 7, 2)
    yield one(
        "CONV_2D", [image, filter_, bias], f32(1, 3, 7, 4), "CONV_2D", kind, "same",
        Padding=0, **conv,
    )  # fmt: skip
    yield one(
        "CONV_2D", [image, filter_, None], f32(1, 2, 5, 4), "CONV_2D", kind,
        "valid without bias", Padding=1, FusedActivationFunction=3, **conv,
    )  # fmt: skip
    yield one(
        "CONV_2D", [image, filter_, bias], f32(1, 6, 7, 4), "CONV_2D", kind, "dilated",
        Padding=0, StrideW=1, StrideH=1, DilationWFactor=2, DilationHFactor=3,
    )  # fmt: skip
    yield one(
        "CONV_2D", [f32(1, 6, 7, 4), filter_, bias], f32(1, 3, 7, 4),
        "GROUPED_CONV_2D", kind, "grouped", Padding=0, **conv,
    )  # fmt: skip
    per_channel = ramp((4, 3, 3, 2), I8, scale=(0.1, 0.2, 0.3, 0.4))
    yield one(
        "CONV_2D",
        [
            i8(1, 6, 7, 2),
            per_channel,
            ramp((4,), I32, scale=(0.005, 0.01, 0.015, 0.02), axis=3),
        ],
        i8(1, 3, 7, 4, scale=0.5), "CONV_2D", kind, "int8", Padding=0, **conv,
    )  # fmt: skip
    yield one(
        "DEPTHWISE_CONV_2D", [image, ramp((1, 3, 3, 4)), bias], f32(1, 3, 7, 4),
        "DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions", "float", Padding=0,
        DepthMultiplier=2, **conv,
    )  # fmt: skip
    yield one(
        "DEPTHWISE_CONV_2D",
        [
            i8(1, 6, 7, 2),
            ramp((1, 3, 3, 4), I8, scale=(0.1, 0.2, 0.3, 0.4), axis=3),
            ramp((4,), I32, scale=(0.005, 0.01, 0.015, 0.02)),
        ],
        i8(1, 3, 7, 4, scale=0.5), "DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions",
        "int8", Padding=0, DepthMultiplier=2, **conv,
    )  # fmt: skip
    yield one(
        "TRANSPOSE_CONV",
        [const([1, 6, 7, 4]), ramp((4, 3, 3, 2)), f32(1, 3, 7, 2)],
        f32(1, 6, 7, 4), "TRANSPOSE_CONV_2D", "TransposeConvOptions", "", Padding=0,
        **window,
    )  # fmt: skip
    for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"):
        pool = {"Padding": 0, "FilterWidth": 3, "FilterHeight": 2, **window}
        yield one(
            name, [image], f32(1, 3, 7, 2), name, "Pool2DOptions", "float", **pool
        )
    pool = {"Padding": 1, "FilterWidth": 2, "FilterHeight": 2, **window}
    yield one(
        "MAX_POOL_2D", [i8(1, 6, 7, 2)], i8(1, 3, 6, 2), "MAX_POOL_2D",
        "Pool2DOptions", "int8", **pool,
    )  # fmt: skip


def dense() -> Iterator[Case]:
    kind = "FullyConnectedOptions"
    weights, bias = ramp((3, 4)), ramp((3,))
    yield one(
        "FULLY_CONNECTED", [f32(2, 4), weights, bias], f32(2, 3),
        "FULLY_CONNECTED", kind, "float",
    )  # fmt: skip
    yield one(
        "FULLY_CONNECTED", [f32(2, 4), weights, ramp((1, 3))], f32(2, 3),
        "FULLY_CONNECTED", kind, "bias of rank 2",
    )  # fmt: skip
    yield one(
        "FULLY_CONNECTED", [f32(2, 4), weights], f32(2, 3), "FULLY_CONNECTED",
        kind, "without bias", FusedActivationFunction=1,
    )  # fmt: skip
    yield one(
        "FULLY_CONNECTED", [f32(2, 2, 2, 2), weights, bias], f32(4, 3),
        "FULLY_CONNECTED", kind, "image",
    )  # fmt: skip
    yield one(
        "FULLY_CONNECTED", [f32(1, 5, 4), weights, bias], f32(1, 5, 3),
        "FULLY_CONNECTED RESHAPE", kind, "kept dimensions", KeepNumDims=True,
    )  # fmt: skip
    yield one(
        "FULLY_CONNECTED",
        [i8(2, 4), ramp((3, 4), I8, scale=(0.5,)), ramp((3,), I32, scale=(0.025,))],
        i8(2, 3, scale=0.5), "FULLY_CONNECTED", kind, "int8",
    )  # fmt: skip
    yield one(
        "FULLY_CONNECTED",
        [
            i8(2, 4),
            ramp((3, 4), I8, scale=(0.5, 0.25, 0.1)),
            ramp((3,), I32, scale=(0.025, 0.0125, 0.005)),
        ],
        i8(2, 3, scale=0.5), "RESHAPE CONV_2D RESHAPE", kind, "per channel",
    )  # fmt: skip
    matmul = "BatchMatMulOptions"
    yield one(
        "BATCH_MATMUL", [f32(2, 3, 4), f32(2, 4, 5)], f32(2, 3, 5),
        "BATCH_MATMUL", matmul, "float",
    )  # fmt: skip
    yield one(
        "BATCH_MATMUL", [f32(2, 3, 4), f32(2, 5, 4)], f32(2, 3, 5),
        "BATCH_MATMUL", matmul, "adjoint", AdjY=True,
    )  # fmt: skip


def layout() -> Iterator[Case]:
    yield one("RESHAPE", [f32(2, 6), const([3, -1])], f32(3, 4), label="tensor")
    yield one(
        "RESHAPE", [f32(2, 6)], f32(3, 4), "RESHAPE", "ReshapeOptions", "options",
        NewShape=[3, 4],
    )  # fmt: skip
    squeeze = "SqueezeOptions"
    yield one(
        "SQUEEZE", [f32(1, 3, 1)], f32(1, 3), "SQUEEZE", squeeze, "axis",
        SqueezeDims=[-1],
    )  # fmt: skip
    yield one("SQUEEZE", [f32(1, 3, 1)], f32(3), "RESHAPE", squeeze, "all")
    yield one("EXPAND_DIMS", [f32(2, 3), const(-1)], f32(2, 3, 1))
    yield one("TRANSPOSE", [f32(2, 3, 4), const([2, 0, 1])], f32(4, 2, 3))
    yield one("PAD", [f32(2, 3), const([[1, 0], [2, 1]])], f32(3, 6), label="float")
    yield one("PAD", [i8(2, 3), const([[1, 0], [2, 1]])], i8(3, 6), label="int8")
    yield one(
        "PAD", [f32(2, 3), const([[1, 0], [2, 1]], np.int64)], f32(3, 6), label="int64"
    )
    paddings = const([[1, 0], [2, 1]])
    yield one(
        "PADV2", [f32(2, 3), paddings, const(1.5, F32)], f32(3, 6), "PAD_V2",
        label="float",
    )  # fmt: skip
    yield one(
        "PADV2", [i8(2, 3), paddings, const(-7, I8, scale=(0.05,), zero_point=(3,))],
        i8(3, 6), "PAD_V2", label="int8",
    )  # fmt: skip
    for mode in (0, 1):
        yield one(
            "MIRROR_PAD", [f32(2, 3), const([[1, 0], [2, 1]])], f32(3, 6),
            "MIRROR_PAD", "MirrorPadOptions", f"mode {mode}", Mode=mode,
        )  # fmt: skip
    join = "ConcatenationOptions"
    yield one(
        "CONCATENATION", [f32(2, 3), f32(2, 1)], f32(2, 4), "CONCATENATION", join,
        "float", Axis=-1,
    )  # fmt: skip
    yield one(
        "CONCATENATION", [f32(2, 3), f32(2, 1)], f32(2, 4), "CONCATENATION RELU", join,
        "relu", Axis=1, FusedActivationFunction=1,
    )  # fmt: skip
    yield one(
        "PACK", [f32(2, 3), f32(2, 3)], f32(2, 2, 3), "PACK", "PackOptions", Axis=1
    )
    yield one("TILE", [f32(2, 3), const([2, 1])], f32(4, 3))
    yield one("FILL", [const([2, 3]), const(1.5, F32)], f32(2, 3))
    yield one("REVERSE_V2", [f32(2, 3), const([-1])], f32(2, 3), "REVERSE")
    blocks = const([2, 2])
    yield one(
        "SPACE_TO_BATCH_ND", [f32(1, 3, 4, 2), blocks, const([[1, 0], [0, 2]])],
        f32(4, 2, 3, 2),
    )  # fmt: skip
    yield one(
        "BATCH_TO_SPACE_ND", [f32(4, 2, 3, 2), blocks, const([[0, 0], [0, 0]])],
        f32(1, 4, 6, 2),
    )  # fmt: skip
    yield one(
        "BATCH_TO_SPACE_ND", [f32(4, 2, 3, 2), blocks, const([[1, 0], [0, 2]])],
        f32(1, 3, 4, 2), "BATCH_TO_SPACE_ND SLICE", label="cropped",
    )  # fmt: skip
    yield one(
        "SPACE_TO_DEPTH", [f32(1, 4, 6, 2)], f32(1, 2, 3, 8), "SPACE_TO_DEPTH",
        "SpaceToDepthOptions", BlockSize=2,
    )  # fmt: skip
    yield one(
        "DEPTH_TO_SPACE", [f32(1, 2, 3, 8)], f32(1, 4, 6, 2), "DEPTH_TO_SPACE",
        "DepthToSpaceOptions", BlockSize=2,
    )  # fmt: skip
    for name in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"):
        kind = "".join(map(str.capitalize, name.split("_"))) + "Options"
        for field in ("AlignCorners", "HalfPixelCenters"):
            yield one(
                name, [f32(1, 3, 4, 2), const([5, 9])], f32(1, 5, 9, 2), name, kind,
                field, **{field: True},
            )  # fmt: skip


def reductions() -> Iterator[Case]:
    kind = "ReducerOptions"
    names = {
        "MEAN": "MEAN",
        "SUM": "REDUCE_SUM",
        "REDUCE_PROD": "REDUCE_PROD",
        "REDUCE_MAX": "REDUCE_MAX",
        "REDUCE_MIN": "REDUCE_MIN",
    }
    for name, hal in names.items():
        yield one(name, [f32(2, 3, 4), const([1])], f32(2, 4), hal, kind, "one")
        yield one(
            name, [f32(2, 3, 4), const([0, -1])], f32(1, 3, 1), hal, kind, "kept",
            KeepDims=True,
        )  # fmt: skip
    yield one("REDUCE_MAX", [f32(2, 3), const([0, 1])], T(F32, ()), label="all")
    yield one(
        "MEAN", [i8(2, 6), const([1])], i8(2, scale=0.02), "MEAN DEQUANTIZE QUANTIZE",
        kind, "other scale",
    )  # fmt: skip
    yield one(
        "SUM", [i8(2, 3), const([1])], i8(2, scale=0.2),
        "DEQUANTIZE REDUCE_SUM QUANTIZE", kind, "int8",
    )  # fmt: skip
    for name in ("REDUCE_ANY", "REDUCE_ALL"):
        yield one(name, [T(BOOL, (2, 3)), const([1])], T(BOOL, (2,)), name, kind)
    yield one("ARG_MAX", [f32(2, 5), const(-1)], T(I32, (2,)), "ARGMAX",
              "ArgMaxOptions", OutputType=2)  # fmt: skip
    yield one("ARG_MIN", [i8(2, 5), const([0])], T(I32, (5,)), "ARGMIN",
              "ArgMinOptions", OutputType=2)  # fmt: skip


def selection() -> Iterator[Case]:
    yield one("SLICE", [f32(4, 5), const([1, 2]), const([2, -1])], f32(2, 3))
    bounds = [const([0, -3]), const([4, 5]), const([2, 1])]
    kind = "StridedSliceOptions"
    yield one("STRIDED_SLICE", [f32(4, 5), *bounds], f32(2, 3), "", kind, "plain")
    yield one(
        "STRIDED_SLICE", [f32(4, 5), const([2, 1]), const([3, 0]), const([1, 1])],
        f32(4), "", kind, "masks", ShrinkAxisMask=1, EndMask=2,
    )  # fmt: skip
    yield one(
        "GATHER", [f32(2, 5), const([4, 0, 1])], f32(2, 3), "GATHER", "GatherOptions",
        Axis=-1,
    )  # fmt: skip
    yield one("EMBEDDING_LOOKUP", [const([2, 0]), f32(3, 4)], f32(2, 4))
    outputs = [f32(2, 2), f32(2, 2), f32(2, 2)]
    yield Case(
        "SPLIT", ("SPLIT",),
        Op("SPLIT", [const(-1), f32(2, 6)], outputs, "SplitOptions", {"NumSplits": 3}),
    )  # fmt: skip
    yield Case(
        "SPLIT_V", ("SLICE", "SLICE"),
        Op("SPLIT_V", [f32(2, 6), const([4, 2]), const(1)], [f32(2, 4), f32(2, 2)],
           "SplitVOptions", {"NumSplits": 2}),
    )  # fmt: skip
    yield Case(
        "UNPACK", ("SPLIT", "RESHAPE", "RESHAPE"),
        Op("UNPACK", [f32(3, 2)], [f32(3), f32(3)], "UnpackOptions",
           {"Num": 2, "Axis": 1}),
    )  # fmt: skip
    condition = T(BOOL, (2, 3))
    yield one("SELECT", [condition, f32(2, 3), f32(2, 3)], f32(2, 3))
    yield one("SELECT_V2", [condition, f32(2, 3), f32(2, 3)], f32(2, 3), "SELECT")
    yield Case(
        "TOPK_V2", ("TOPK_V2",),
        Op("TOPK_V2", [f32(2, 6), const(2)], [f32(2, 2), T(I32, (2, 2))]),
    )  # fmt: skip


def conversions() -> Iterator[Case]:
    yield one("QUANTIZE", [f32(2, 3)], i8(2, 3), label="float to int8")
    yield one("QUANTIZE", [f32(2, 3)], u8(2, 3), label="float to uint8")
    requantize = "DEQUANTIZE QUANTIZE"
    yield one("QUANTIZE", [i8(8)], i8(8, scale=0.1, zero=-9), requantize, label="int8")
    yield one("QUANTIZE", [u8(8)], i8(8, zero=-8), requantize, label="uint8 to int8")
    yield one("DEQUANTIZE", [i8(2, 3)], f32(2, 3), label="int8")
    yield one("DEQUANTIZE", [T(np.float16, (4,))], f32(4), "CAST", label="float16")
    yield one("CAST", [f32(4)], T(I32, (4,)), "CAST", "CastOptions", InDataType=0,
              OutDataType=2)  # fmt: skip


CASES = [
    *arithmetic(), *unary(), *convolutions(), *dense(), *layout(), *reductions(),
    *selection(), *conversions(),
]  # fmt: skip
