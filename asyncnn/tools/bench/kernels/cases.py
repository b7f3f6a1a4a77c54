"""The operations that ``asyncnn bench kernels`` measures, as data.

Twenty pairs of an operation and a type: those that keep the device busiest at the sizes
they have in MobileNet, ResNet, BERT and detectors. Scales are chosen so that results
neither vanish nor saturate.
"""

from typing import Any, TypeAlias

import msgspec

from asyncnn.hal.types import Dimensions

F32 = "f32"
INT8 = "int8"


class Data(msgspec.Struct, frozen=True):
    """An input or the result; ``scale`` and ``zero_point`` are those of int8."""

    shape: Dimensions
    scale: float = 1 / 32
    zero_point: int = 0


class Weights(msgspec.Struct, frozen=True):
    """Weights; int8 has a scale for each index of ``axis``, or one if that is None."""

    shape: Dimensions
    axis: int | None = None


class Bias(msgspec.Struct, frozen=True):
    """The bias that belongs to the data and the weights."""

    size: int


class Integers(msgspec.Struct, frozen=True):
    """Constant int32 numbers, such as a shape."""

    values: tuple[int, ...]


Operand: TypeAlias = Data | Weights | Bias | Integers


class Case(msgspec.Struct, frozen=True):
    """One TFLite operator on one type, `F32` or `INT8`.

    ``operator`` is a member of the schema's `BuiltinOperator`, ``options`` the fields
    of its class ``options_class``, "" if the operator has none. ``label`` tells apart
    cases of one operator.
    """

    operator: str
    type: str
    operands: tuple[Operand, ...]
    result: Data
    options_class: str = ""
    options: dict[str, Any] = {}
    version: int = 1
    label: str = ""

    @property
    def name(self) -> str:
        """What the case is called in reports."""
        parts = (self.operator.lower(), self.label, self.type)
        return "_".join(part for part in parts if part)


def _of_types(
    types: tuple[str, ...],
    operator: str,
    operands: tuple[Operand, ...],
    result: Data,
    options_class: str = "",
    **fields: Any,
) -> tuple[Case, ...]:
    return tuple(
        Case(operator, type_, operands, result, options_class, **fields)
        for type_ in types
    )


_BLOCK = (1, 56, 56, 256)

CASES: tuple[Case, ...] = (
    *_of_types(
        (F32, INT8),
        "CONV_2D",
        (Data((1, 56, 56, 64)), Weights((64, 3, 3, 64), 0), Bias(64)),
        Data((1, 56, 56, 64), 1 / 16, 3),
        "Conv2DOptionsT",
        options={"strideW": 1, "strideH": 1},
        version=3,
        label="3x3",
    ),
    *_of_types(
        (F32, INT8),
        "CONV_2D",
        (Data((1, 28, 28, 256)), Weights((256, 1, 1, 256), 0), Bias(256)),
        Data((1, 28, 28, 256), 1 / 16, 3),
        "Conv2DOptionsT",
        options={"strideW": 1, "strideH": 1},
        version=3,
        label="1x1",
    ),
    *_of_types(
        (F32, INT8),
        "DEPTHWISE_CONV_2D",
        (Data((1, 56, 56, 128)), Weights((1, 3, 3, 128), 3), Bias(128)),
        Data((1, 56, 56, 128), 1 / 16, 3),
        "DepthwiseConv2DOptionsT",
        options={"strideW": 1, "strideH": 1, "depthMultiplier": 1},
        version=3,
    ),
    *_of_types(
        (F32, INT8),
        "TRANSPOSE_CONV",
        (
            Integers((1, 56, 56, 64)),
            Weights((64, 3, 3, 64), 0),
            Data((1, 28, 28, 64)),
            Bias(64),
        ),
        Data((1, 56, 56, 64), 1 / 16, 3),
        "TransposeConvOptionsT",
        options={"strideW": 2, "strideH": 2},
        version=3,
    ),
    *_of_types(
        (F32, INT8),
        "FULLY_CONNECTED",
        (Data((8, 1024)), Weights((1024, 1024)), Bias(1024)),
        Data((8, 1024), 1 / 16, 3),
        "FullyConnectedOptionsT",
        version=4,
    ),
    *_of_types(
        (INT8,),
        "AVERAGE_POOL_2D",
        (Data((1, 56, 56, 128)),),
        Data((1, 56, 56, 128)),
        "Pool2DOptionsT",
        options={"strideW": 1, "strideH": 1, "filterWidth": 3, "filterHeight": 3},
        version=2,
    ),
    *_of_types(
        (INT8,),
        "ADD",
        (Data(_BLOCK), Data(_BLOCK, 1 / 24, 5)),
        Data(_BLOCK, 1 / 16, 3),
        "AddOptionsT",
        version=2,
    ),
    *_of_types(
        (INT8,),
        "MUL",
        (Data(_BLOCK), Data(_BLOCK, 1 / 24, 5)),
        Data(_BLOCK, 1 / 8, 3),
        "MulOptionsT",
        version=2,
    ),
    *_of_types(
        (INT8,),
        "LOGISTIC",
        (Data(_BLOCK),),
        Data(_BLOCK, 1 / 256, -128),
        version=2,
    ),
    *_of_types(
        (INT8,),
        "TANH",
        (Data(_BLOCK),),
        Data(_BLOCK, 1 / 128),
        version=2,
    ),
    *_of_types(
        (INT8,),
        "HARD_SWISH",
        (Data(_BLOCK),),
        Data(_BLOCK, 1 / 24, -100),
        "HardSwishOptionsT",
    ),
    *_of_types(
        (F32,),
        "PRELU",
        (Data(_BLOCK), Weights((1, 1, 256))),
        Data(_BLOCK),
    ),
    *_of_types(
        (F32, INT8),
        "RESIZE_BILINEAR",
        (Data((1, 112, 112, 16)), Integers((224, 224))),
        Data((1, 224, 224, 16)),
        "ResizeBilinearOptionsT",
        options={"halfPixelCenters": True},
        version=3,
    ),
    *_of_types(
        (F32,),
        "TRANSPOSE",
        (Data(_BLOCK), Integers((0, 3, 1, 2))),
        Data((1, 256, 56, 56)),
        "TransposeOptionsT",
    ),
)
