"""Files of one operator that the HAL lacks: compositions, and what is folded."""

from collections.abc import Iterator

import numpy as np

from asyncnn.runtime.tflite.functions import ALIASES
from tests.runtime.tflite.cases import (
    F32,
    I8,
    I64,
    Case,
    boolean,
    case,
    const,
    f32,
    i8,
    i32,
    ramp,
)
from tests.runtime.tflite.files import Level, Sparse, T

ANY = "..."


def functions() -> Iterator[Case]:
    x = f32(3, 7)
    yield case("GELU", [x], f32(3, 7), "exact", hal=ANY)
    yield case("GELU", [x], f32(3, 7), "rough", hal=ANY, Approximate=True)
    yield case("GELU", [i8(20)], i8(20), "int8", hal=ANY)
    yield case("SIGN", [x], f32(3, 7), "float", hal=ANY)
    yield case("SIGN", [i32(9)], i32(9), "int32", hal=ANY)
    yield case("RELU_0_TO_1", [x], f32(3, 7), hal="MAXIMUM MINIMUM")
    yield case("ATAN2", [f32(40), f32(40)], f32(40), hal=ANY)
    for bits in (8, 4):
        fields = {"Min": -1.5, "Max": 2.25, "NumBits": bits}
        yield case("FAKE_QUANT", [x], f32(3, 7), f"{bits} bits", hal=ANY, **fields)
    borders = [-2.0, 0.0, 0.5, 3.0]
    yield case("BUCKETIZE", [x], i32(3, 7), "float", hal=ANY, Boundaries=borders)
    divisor = const([3, -2, 5, -7])
    yield case("DIV", [i32(4), divisor], i32(4), "int32", hal=ANY)
    shifts = const([1, 0, 3, 7])
    yield case("RIGHT_SHIFT", [i32(4), shifts], i32(4), hal="DIV")
    for exclusive in (False, True):
        for reverse in (False, True):
            flags = {"Exclusive": exclusive, "Reverse": reverse}
            label = f"float {exclusive} {reverse}"
            yield case("CUMSUM", [x, const(1)], f32(3, 7), label, hal=ANY, **flags)
    yield case("CUMSUM", [i32(5, 2), const(-2)], i32(5, 2), "int32", hal=ANY)
    lines = Level(segments=(0, 1, 3), indices=(2, 0, 1))
    sparse = Sparse((0, 1), (), (Level(2), lines))
    stored = T(F32, (2, 3), np.float32([1, 2, 3]), sparse=sparse)
    yield case("DENSIFY", [stored], f32(2, 3), hal="RESHAPE")


def aliases() -> Iterator[Case]:
    """Operators of StableHLO beside the older ones, whose kernels LiteRT has."""
    pairs = {"ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "POW"}
    for name, alias in ALIASES.items():
        if alias == "CAST":
            yield case(name, [f32(4)], i32(4), hal="CAST", alias=alias)
        elif alias.startswith("LOGICAL"):
            inputs = [boolean(2, 3), boolean(2, 3)]
            yield case(name, inputs, boolean(2, 3), hal=alias, alias=alias)
        elif alias == "SELECT_V2":
            inputs = [boolean(2, 3), f32(2, 3), f32(2, 3)]
            yield case(name, inputs, f32(2, 3), hal="SELECT", alias=alias)
        else:
            inputs = [f32(2, 3)] * (1 + (alias in pairs))
            hal = ANY if alias == "COS" else alias
            positive = alias in ("LOG", "RSQRT", "POW")
            yield case(name, inputs, f32(2, 3), hal=hal, alias=alias, positive=positive)


def booleans() -> Iterator[Case]:
    """Operators that move booleans: as bytes."""
    x = boolean(2, 3)
    moved = {
        "RESHAPE": ([x, const([3, 2])], boolean(3, 2)),
        "TRANSPOSE": ([x, const([1, 0])], boolean(3, 2)),
        "GATHER": ([x, const([1, 0, 1])], boolean(3, 3)),
        "SLICE": ([x, const([0, 1]), const([2, 2])], boolean(2, 2)),
        "EXPAND_DIMS": ([x, const(0)], boolean(1, 2, 3)),
    }
    for name, (inputs, output) in moved.items():
        yield case(name, inputs, output, "of booleans", hal=ANY)
    choices = [x, boolean(2, 3), boolean(2, 3)]
    hal = "LOGICAL_NOT LOGICAL_AND LOGICAL_AND LOGICAL_OR"
    yield case("SELECT_V2", choices, boolean(2, 3), "of booleans", hal=hal)


def integers() -> Iterator[Case]:
    """Operators on int32 and int64 whose counterparts take none."""
    x, y = i32(2, 3), T(I64, (2, 3))
    paddings = const([[1, 0], [2, 1]])
    picked = "RESHAPE GATHER RESHAPE"
    yield case("TRANSPOSE", [x, const([1, 0])], i32(3, 2), "int32", hal=picked)
    yield case("TRANSPOSE", [y, const([1, 0])], T(I64, (3, 2)), "int64", hal=picked)
    hal = f"{picked} SELECT"
    yield case("PAD", [x, paddings], i32(3, 6), "int32", hal=hal)
    yield case("PADV2", [x, paddings, const(7)], i32(3, 6), "int32", hal=hal)
    bounds = const([0, 2]), const([2, 0]), const([1, -1])
    yield case("STRIDED_SLICE", [x, *bounds], i32(2, 2), "int32", hal=picked)
    yield case("CONCATENATION", [x, i32(2, 1)], i32(2, 4), "int32", hal=ANY, Axis=1)
    hal = "RESHAPE"
    yield case("SQUEEZE", [i32(1, 3)], i32(3), "int32", hal=hal, SqueezeDims=[0])
    for name in ("SUM", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN"):
        inputs = [i32(3, 5, 2), const([1, 0])]
        yield case(name, inputs, i32(2), "int32", hal=ANY)
        kept, fields = i32(3, 1, 1), {"hal": ANY, "KeepDims": True}
        yield case(name, [i32(3, 1, 7), const([-1])], kept, "int32 kept", **fields)
    yield case("ADD", [y, T(I64, (3,))], T(I64, (2, 3)), "int64")
    yield case("RESHAPE", [y, const([3, 2])], T(I64, (3, 2)), "int64")
    yield case("EQUAL", [y, T(I64, (3,))], boolean(2, 3), "int64")


def slices() -> Iterator[Case]:
    x = f32(2, 3, 4, 5)
    ellipsis = const([1, 0, 1]), const([2, 0, 4]), const([1, 1, 2])
    masks = {"EllipsisMask": 2}
    hal, out = "STRIDED_SLICE", f32(1, 3, 4, 2)
    yield case("STRIDED_SLICE", [x, *ellipsis], out, "ellipsis", hal=hal, **masks)
    line = f32(6)
    new = const([0, 1]), const([0, 5]), const([1, 2])
    hal = "STRIDED_SLICE RESHAPE"
    fields = {"NewAxisMask": 1}
    yield case("STRIDED_SLICE", [line, *new], f32(1, 2), "new axis", hal=hal, **fields)
    back = const([0, -1]), const([0, 0]), const([1, -2])
    fields = {"NewAxisMask": 1, "EndMask": 2}
    yield case(
        "STRIDED_SLICE", [line, *back], f32(1, 3), "backwards", hal=hal, **fields
    )
    offset = const([1]), const([3]), const([1])
    hal = "STRIDED_SLICE"
    yield case("STRIDED_SLICE", [line, *offset], f32(3), "offset", hal=hal, Offset=True)


def gathers() -> Iterator[Case]:
    x = f32(2, 4, 3)
    fields = {"Axis": 1, "BatchDims": 1, "below": 4, "hal": ANY}
    yield case("GATHER", [x, i32(2, 5)], f32(2, 5, 3), "per batch", **fields)
    pairs = const([[1, 3], [0, 2]])
    yield case("GATHER_ND", [x, pairs], f32(2, 3), "constant", hal=ANY)
    yield case("GATHER_ND", [x, i32(5, 1)], f32(5, 4, 3), "rows", hal=ANY, below=2)
    whole = i32(2, 2, 3)
    yield case("GATHER_ND", [x, whole], f32(2, 2), "elements", hal=ANY, below=2)
    on, off, depth = const(2.5, F32), const(-1, F32), const(4)
    hal = "RESHAPE EQUAL RESHAPE TILE RESHAPE TILE SELECT"
    fields = {"Axis": -1, "below": 6, "hal": hal}
    yield case("ONE_HOT", [i32(2, 3), depth, on, off], f32(2, 3, 4), "last", **fields)
    fields = {"Axis": 0, "below": 6, "hal": ANY}
    yield case("ONE_HOT", [i32(2, 3), depth, on, off], f32(4, 2, 3), "first", **fields)
    inputs = [i32(3), depth, const(True, np.bool_), const(False, np.bool_)]
    fields = {"Axis": -1, "below": 4, "hal": ANY}
    yield case("ONE_HOT", inputs, boolean(3, 4), "booleans", **fields)
    fields = {"SeqDim": 1, "BatchDim": 0, "hal": ANY}
    lengths = const([3, 1])
    yield case("REVERSE_SEQUENCE", [x, lengths], f32(2, 4, 3), "constant", **fields)
    fields = {"SeqDim": 0, "BatchDim": 2, "hal": ANY, "below": 3}
    yield case("REVERSE_SEQUENCE", [x, i32(3)], f32(2, 4, 3), "computed", **fields)


def scatters() -> Iterator[Case]:
    places, shape = const([[4], [1], [0]]), const([6, 2])
    inputs = [places, f32(3, 2), shape]
    yield case("SCATTER_ND", inputs, f32(6, 2), "rows", hal="GATHER SELECT")
    inputs = [const([[0, 1], [1, 2]]), i32(2), const([2, 3])]
    yield case("SCATTER_ND", inputs, i32(2, 3), "int32", hal=ANY)
    inputs = [const([[0, 1], [2, 0]]), const([3, 2]), f32(2), const(0.5, F32)]
    yield case("SPARSE_TO_DENSE", inputs, f32(3, 2), "pairs", hal=ANY)
    inputs = [const([1, 3]), const([5]), i32(), const(9)]
    yield case("SPARSE_TO_DENSE", inputs, i32(5), "one value", hal=ANY)
    whole, update = f32(4, 5), f32(2, 3)
    inputs = [whole, update, const([1, 2])]
    yield case("DYNAMIC_UPDATE_SLICE", inputs, f32(4, 5), "constant", hal=ANY)
    inputs = [whole, update, i32(2)]
    fields = {"hal": ANY, "below": 9}
    yield case("DYNAMIC_UPDATE_SLICE", inputs, f32(4, 5), "computed", **fields)
    yield case("MATRIX_DIAG", [f32(2, 3)], f32(2, 3, 3), hal="RESHAPE TILE SELECT")
    for lines, columns in ((3, 4), (4, 3)):
        inputs = [f32(2, lines, columns), f32(2, 3)]
        fields = {"hal": "RESHAPE TILE SELECT"}
        label = f"{lines} lines"
        yield case("MATRIX_SET_DIAG", inputs, f32(2, lines, columns), label, **fields)


def lookups() -> Iterator[Case]:
    keys, values = const([1, 4, 7]), ramp((3, 2))
    results = [f32(4, 2), T(np.uint8, (4,))]
    lookup = const([4, 5, 1, 7])
    yield case("HASHTABLE_LOOKUP", [lookup, keys, f32(3, 2)], results, "float")
    yield case("HASHTABLE_LOOKUP", [i32(4), keys, values], results, "keys", below=9)
    hashes = ramp((3, 2))
    for kind, count in ((1, 3), (2, 6)):
        inputs = [hashes, i32(5), ramp((5,))]
        label = f"kind {kind}"
        fields = {"Type": kind, "below": 99}
        yield case("LSH_PROJECTION", inputs, i32(count), label, **fields)
    table = ramp((3, 4), I8, scale=(0.5,))
    hal = "EMBEDDING_LOOKUP DEQUANTIZE"
    indices = const([2, 0])
    yield case("EMBEDDING_LOOKUP", [indices, table], f32(2, 4), "hybrid", hal=hal)


def choices() -> Iterator[Case]:
    rows = [boolean(2), f32(2, 3), f32(2, 3)]
    yield case("SELECT", rows, f32(2, 3), "rows", hal=ANY)
    yield case(
        "FILL", [const([2, 3]), f32()], f32(2, 3), "computed", hal="RESHAPE TILE"
    )


def folded() -> Iterator[Case]:
    """Operators that follow from shapes or constants: only a copy is left."""
    copy = "RESHAPE"
    yield case("RANK", [f32(2, 3)], i32(), hal=copy)
    bounds = [const(2), const(9), const(3)]
    yield case("RANGE", bounds, i32(3), hal=copy)
    yield case("BROADCAST_ARGS", [const([2, 1]), const([3])], i32(2), hal=copy)
    yield case("WHERE", [const([[1, 0], [0, 1]], np.bool_)], T(I64, (2, 2)), hal=copy)


COMPOSED_CASES = [
    *functions(),
    *aliases(),
    *booleans(),
    *integers(),
    *slices(),
    *gathers(),
    *scatters(),
    *lookups(),
    *choices(),
    *folded(),
]

FOLDED = frozenset({"RANGE", "BROADCAST_ARGS", "WHERE"})
"""Operators that are imported on constants alone."""

ELSEWHERE = frozenset(
    {"COMPLEX_ABS", "IMAG", "MULTINOMIAL", "REAL", "RFFT2D", "STABLEHLO_CLAMP"}
)
"""Operators that are tested by themselves: in company, or without LiteRT."""
