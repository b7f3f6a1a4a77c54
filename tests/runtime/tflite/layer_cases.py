"""More files of one operator: layers with weights, and what moves elements."""

from collections.abc import Iterator

import numpy as np

from tests.runtime.tflite.cases import (
    F32,
    I8,
    I32,
    Case,
    arithmetic,
    boolean,
    case,
    const,
    conversions,
    f32,
    i8,
    i32,
    logic,
    normalizations,
    ramp,
    reductions,
    unary,
)
from tests.runtime.tflite.composed_cases import COMPOSED_CASES
from tests.runtime.tflite.recurrent_cases import (
    bidirectional,
    float_lstms,
    integer_lstms,
    rnns,
    svdfs,
)
from tests.runtime.tflite.typed_cases import TYPES, typed

UNDILATED = {"DilationWFactor": 1, "DilationHFactor": 1}
WINDOW = {"Padding": 0, "StrideW": 1, "StrideH": 2}
SCALES = (0.1, 0.2, 0.3, 0.4)
BIAS_SCALES = (0.005, 0.01, 0.015, 0.02)


def convolutions() -> Iterator[Case]:
    conv = WINDOW | UNDILATED
    image, filter_, bias = f32(1, 6, 7, 2), ramp((4, 3, 3, 2)), ramp((4,))
    yield case("CONV_2D", [image, filter_, bias], f32(1, 3, 7, 4), "same", **conv)
    valid = conv | {"Padding": 1, "FusedActivationFunction": 3}
    yield case("CONV_2D", [image, filter_, bias], f32(1, 2, 5, 4), "valid", **valid)
    dilated = WINDOW | {"StrideH": 1, "DilationWFactor": 2, "DilationHFactor": 3}
    yield case("CONV_2D", [image, filter_, bias], f32(1, 6, 7, 4), "dilated", **dilated)
    yield case(
        "CONV_2D",
        [f32(1, 6, 7, 4), filter_, bias],
        f32(1, 3, 7, 4),
        "grouped",
        hal="GROUPED_CONV_2D",
        **conv,
    )
    weights = ramp((4, 3, 3, 2), I8, scale=SCALES)
    biases = ramp((4,), I32, scale=BIAS_SCALES)
    result = i8(1, 3, 7, 4, scale=0.5)
    yield case("CONV_2D", [i8(1, 6, 7, 2), weights, biases], result, "int8", **conv)


def depthwise_and_transposed() -> Iterator[Case]:
    conv = WINDOW | UNDILATED | {"DepthMultiplier": 2}
    image, filter_, bias = f32(1, 6, 7, 2), ramp((1, 3, 3, 4)), ramp((4,))
    inputs = [image, filter_, bias]
    yield case("DEPTHWISE_CONV_2D", inputs, f32(1, 3, 7, 4), "float", **conv)
    weights = ramp((1, 3, 3, 4), I8, scale=SCALES, axis=3)
    inputs = [i8(1, 6, 7, 2), weights, ramp((4,), I32, scale=BIAS_SCALES)]
    result = i8(1, 3, 7, 4, scale=0.5)
    yield case("DEPTHWISE_CONV_2D", inputs, result, "int8", **conv)
    shape, filter_ = const([1, 6, 7, 4]), ramp((4, 3, 3, 2))
    yield case(
        "TRANSPOSE_CONV",
        [shape, filter_, f32(1, 3, 7, 2)],
        f32(1, 6, 7, 4),
        hal="TRANSPOSE_CONV_2D",
        **WINDOW,
    )


def pools() -> Iterator[Case]:
    pool = WINDOW | {"FilterWidth": 3, "FilterHeight": 2}
    for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"):
        yield case(name, [f32(1, 6, 7, 2)], f32(1, 3, 7, 2), "float", **pool)
    valid = pool | {"Padding": 1}
    for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D"):
        yield case(name, [i8(1, 6, 7, 2)], i8(1, 3, 5, 2), "int8", **valid)


def dense() -> Iterator[Case]:
    name, weights, bias = "FULLY_CONNECTED", ramp((3, 4)), ramp((3,))
    x, y = f32(2, 4), f32(2, 3)
    yield case(name, [x, weights, bias], y, "float")
    yield case(name, [x, weights, ramp((1, 3))], y, "bias of rank 2")
    yield case(name, [x, weights], y, "without bias", FusedActivationFunction=1)
    yield case(name, [f32(2, 2, 2, 2), weights, bias], f32(4, 3), "image")
    kept = {"hal": "FULLY_CONNECTED RESHAPE", "KeepNumDims": True}
    yield case(name, [f32(1, 5, 4), weights, bias], f32(1, 5, 3), "kept rank", **kept)
    one_scale = ramp((3, 4), I8, scale=(0.5,))
    biases = ramp((3,), I32, scale=(0.025,))
    result = i8(2, 3, scale=0.5)
    yield case(name, [i8(2, 4), one_scale, biases], result, "int8")
    per_channel = ramp((3, 4), I8, scale=(0.5, 0.25, 0.1))
    biases = ramp((3,), I32, scale=(0.025, 0.0125, 0.005))
    hal = "RESHAPE CONV_2D RESHAPE"
    yield case(name, [i8(2, 4), per_channel, biases], result, "per channel", hal=hal)
    matrix, product = f32(2, 3, 4), f32(2, 3, 5)
    yield case("BATCH_MATMUL", [matrix, f32(2, 4, 5)], product, "float")
    yield case("BATCH_MATMUL", [matrix, f32(2, 5, 4)], product, "adjoint", AdjY=True)
    hal = "RESHAPE BATCH_MATMUL RESHAPE"
    yield case("BATCH_MATMUL", [matrix, f32(4, 5)], product, "one matrix", hal=hal)
    hal = "RESHAPE TILE BATCH_MATMUL"
    turned = {"AdjX": True, "hal": hal}
    yield case("BATCH_MATMUL", [f32(4, 3), f32(2, 4, 5)], product, "one left", **turned)
    hal = "TILE RESHAPE RESHAPE TILE RESHAPE BATCH_MATMUL RESHAPE"
    factors = [f32(2, 1, 3, 4), f32(3, 4, 5)]
    yield case("BATCH_MATMUL", factors, f32(2, 3, 3, 5), "two axes", hal=hal)


def reshaping() -> Iterator[Case]:
    yield case("RESHAPE", [f32(2, 6), const([3, -1])], f32(3, 4), "by tensor")
    yield case("RESHAPE", [f32(2, 6)], f32(3, 4), "by options", NewShape=[3, 4])
    hal = "SELECT RESHAPE NOT_EQUAL"
    yield case("RESHAPE", [boolean(2, 3), const([6])], boolean(6), "booleans", hal=hal)
    yield case("SQUEEZE", [f32(1, 3, 1)], f32(1, 3), "one axis", SqueezeDims=[-1])
    yield case("SQUEEZE", [f32(1, 3, 1)], f32(3), "all axes", hal="RESHAPE")
    yield case("EXPAND_DIMS", [f32(2, 3), const(-1)], f32(2, 3, 1))
    yield case("EXPAND_DIMS", [f32(), const(0)], f32(1), "a scalar", hal="RESHAPE")
    yield case("TRANSPOSE", [f32(2, 3, 4), const([2, 0, 1])], f32(4, 2, 3))
    yield case("TILE", [f32(2, 3), const([2, 1])], f32(4, 3))
    yield case("FILL", [const([70, 60]), const(1.5, F32)], f32(70, 60), "large")
    yield case("REVERSE_V2", [f32(2, 3), const([-1])], f32(2, 3), hal="REVERSE")
    both, hal = const([0, 1]), "REVERSE REVERSE"
    yield case("REVERSE_V2", [f32(2, 3), both], f32(2, 3), "both axes", hal=hal)
    size, hal = const([2, 4, 3]), "RESHAPE TILE"
    yield case("BROADCAST_TO", [f32(4, 1), size], f32(2, 4, 3), hal=hal)
    yield case("ZEROS_LIKE", [f32(2, 3)], f32(2, 3), "float", hal="FILL")
    yield case("ZEROS_LIKE", [i32(2, 3)], i32(2, 3), "int32", hal="FILL")
    yield case("SHAPE", [f32(2, 3)], i32(2), hal="RESHAPE", OutType=2)
    yield case("CONCATENATION", [f32(2, 3), f32(2, 1)], f32(2, 4), Axis=-1)
    yield case("PACK", [f32(2, 3), f32(2, 3)], f32(2, 2, 3), Axis=1, ValuesCount=2)


def padding() -> Iterator[Case]:
    paddings = const([[1, 0], [2, 1]])
    yield case("PAD", [f32(2, 3), paddings], f32(3, 6), "float")
    yield case("PAD", [i8(2, 3), paddings], i8(3, 6), "int8")
    yield case("PAD", [f32(1, 2), const([[1, 0], [2, 1]], np.int64)], f32(2, 5), "i64")
    value, byte = const(1.5, F32), const(-7, I8, scale=(0.05,), zero_point=(3,))
    yield case("PADV2", [f32(2, 3), paddings, value], f32(3, 6), "float", hal="PAD_V2")
    yield case("PADV2", [i8(2, 3), paddings, byte], i8(3, 6), "int8", hal="PAD_V2")
    for mode in (0, 1):
        label = f"mode {mode}"
        yield case("MIRROR_PAD", [f32(2, 3), paddings], f32(3, 6), label, Mode=mode)


def blocks() -> Iterator[Case]:
    sizes, crops = const([2, 2]), const([[1, 0], [0, 2]])
    image, batches = f32(1, 3, 4, 2), f32(4, 2, 3, 2)
    yield case("SPACE_TO_BATCH_ND", [image, sizes, crops], f32(4, 2, 3, 2))
    yield case(
        "BATCH_TO_SPACE_ND", [batches, sizes, const([[0, 0], [0, 0]])], f32(1, 4, 6, 2)
    )
    hal = "BATCH_TO_SPACE_ND SLICE"
    yield case("BATCH_TO_SPACE_ND", [batches, sizes, crops], image, "crops", hal=hal)
    yield case("SPACE_TO_DEPTH", [f32(1, 4, 6, 2)], f32(1, 2, 3, 8), BlockSize=2)
    yield case("DEPTH_TO_SPACE", [f32(1, 2, 3, 8)], f32(1, 4, 6, 2), BlockSize=2)
    for name in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"):
        for flag in ("AlignCorners", "HalfPixelCenters"):
            inputs = [f32(1, 3, 4, 2), const([5, 9])]
            yield case(name, inputs, f32(1, 5, 9, 2), flag, **{flag: True})


def selection() -> Iterator[Case]:
    x = f32(4, 5)
    yield case("SLICE", [x, const([1, 2]), const([2, -1])], f32(2, 3))
    bounds = const([0, -3]), const([4, 5]), const([2, 1])
    yield case("STRIDED_SLICE", [x, *bounds], f32(2, 3), "plain")
    bounds = const([2, 1]), const([3, 0]), const([1, 1])
    masks = {"ShrinkAxisMask": 1, "EndMask": 2}
    yield case("STRIDED_SLICE", [x, *bounds], f32(4), "masks", **masks)
    bounds, hal = (const([-1]), const([0]), const([1])), "STRIDED_SLICE RESHAPE"
    last = {"hal": hal, "ShrinkAxisMask": 1}
    yield case("STRIDED_SLICE", [x, *bounds], f32(5), "the last row", **last)
    yield case("GATHER", [x, const([4, 0, 1])], f32(4, 3), Axis=-1)
    hal = "GATHER RESHAPE"
    yield case("GATHER", [x, const(2)], f32(5), "one row", hal=hal)
    yield case("EMBEDDING_LOOKUP", [const([2, 0]), f32(3, 4)], f32(2, 4))
    thirds = [f32(2, 2), f32(2, 2), f32(2, 2)]
    yield case("SPLIT", [const(-1), f32(2, 6)], thirds, NumSplits=3)
    parts, inputs = [f32(2, 4), f32(2, 2)], [f32(2, 6), const([4, 2]), const(1)]
    yield case("SPLIT_V", inputs, parts, hal="SLICE SLICE", NumSplits=2)
    hal = "SPLIT RESHAPE RESHAPE"
    yield case("UNPACK", [f32(3, 2)], [f32(3), f32(3)], hal=hal, Num=2, Axis=1)
    best, hal = [i32(2, 2), i32(2, 2)], "REVERSE TOPK_V2 SUB"
    yield case("TOPK_V2", [i32(2, 6), const(2)], best, "ties", hal=hal, below=3)


CASES = [
    *arithmetic(),
    *logic(),
    *unary(),
    *normalizations(),
    *reductions(),
    *conversions(),
    *convolutions(),
    *depthwise_and_transposed(),
    *pools(),
    *dense(),
    *reshaping(),
    *padding(),
    *blocks(),
    *selection(),
    *float_lstms(),
    *integer_lstms(),
    *rnns(),
    *svdfs(),
    *bidirectional(),
    *COMPOSED_CASES,
]
"""Every operator that has a converter, in all variants that differ in the result."""

TYPED_CASES = [case for dtype in TYPES for case in typed(CASES, dtype)]
"""Operators that move or compare, on all types."""
