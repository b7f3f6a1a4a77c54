"""The operations that ``asyncnn bench kernels`` measures, as data and as TFLite files.

Twenty pairs of an operation and a type: those that keep the device busiest at the sizes
they have in MobileNet, ResNet, BERT and detectors. Scales are chosen so that results
neither vanish nor saturate.
"""

import math
from typing import Any, TypeAlias

import msgspec
import numpy as np

from asyncnn.hal.types import Dimensions
from asyncnn.tools.tflite_writer import Quantization, TfliteWriter

F32 = "f32"
INT8 = "int8"


class Data(msgspec.Struct, frozen=True):
    """An input or the result; ``scale`` and ``zero_point`` are those of int8."""

    shape: Dimensions
    scale: float = 1 / 32
    zero_point: int = 0

    @property
    def quantization(self) -> Quantization:
        """Scale and zero point."""
        return self.scale, self.zero_point


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


class Options(msgspec.Struct, frozen=True):
    """The options of an operator: a class of the schema, and its fields."""

    name: str
    fields: dict[str, Any] = {}


class Case(msgspec.Struct, frozen=True):
    """One TFLite operator on one type, `F32` or `INT8`.

    ``operator`` is a member of the schema's `BuiltinOperator`; ``label`` tells apart
    cases of one operator.
    """

    operator: str
    type: str
    operands: tuple[Operand, ...]
    result: Data
    options: Options | None = None
    version: int = 1
    label: str = ""

    @property
    def name(self) -> str:
        """What the case is called in reports."""
        parts = (self.operator.lower(), self.label, self.type)
        return "_".join(part for part in parts if part)


def _cases(types: tuple[str, ...], operator: str, *rest: Any) -> tuple[Case, ...]:
    return tuple(Case(operator, type_, *rest) for type_ in types)


def _image(size: int, channels: int, *quantization: Any) -> Data:
    return Data((1, size, size, channels), *quantization)


def _strides(name: str, stride: int = 1, **fields: Any) -> Options:
    return Options(name, {"strideW": stride, "strideH": stride, **fields})


_BOTH = (F32, INT8)
_RESULT = (1 / 16, 3)
_X, _Y = _image(56, 256), _image(56, 256, 1 / 24, 5)
_3X3 = (_image(56, 64), Weights((64, 3, 3, 64), 0), Bias(64))
_1X1 = (_image(28, 256), Weights((256, 1, 1, 256), 0), Bias(256))
_EACH = (_image(56, 128), Weights((1, 3, 3, 128), 3), Bias(128))
_TRANSPOSED = (Integers((1, 56, 56, 64)), _3X3[1], _image(28, 64), Bias(64))
_DENSE = (Data((8, 1024)), Weights((1024, 1024)), Bias(1024))
_SIZED = (_image(112, 16), Integers((224, 224)))
_PERMUTED = (_X, Integers((0, 3, 1, 2)))

_CONVOLVE = _strides("Conv2DOptionsT")
_CONVOLVE_EACH = _strides("DepthwiseConv2DOptionsT", depthMultiplier=1)
_POOL = _strides("Pool2DOptionsT", filterWidth=3, filterHeight=3)
_RESIZE = Options("ResizeBilinearOptionsT", {"halfPixelCenters": True})
_UPSAMPLE = _strides("TransposeConvOptionsT", 2)
_HARD_SWISH = Options("HardSwishOptionsT")
_TRANSPOSE = Options("TransposeOptionsT")
_CONNECT = Options("FullyConnectedOptionsT")

CASES: tuple[Case, ...] = (
    *_cases(_BOTH, "CONV_2D", _3X3, _image(56, 64, *_RESULT), _CONVOLVE, 3, "3x3"),
    *_cases(_BOTH, "CONV_2D", _1X1, _image(28, 256, *_RESULT), _CONVOLVE, 3, "1x1"),
    *_cases(
        _BOTH, "DEPTHWISE_CONV_2D", _EACH, _image(56, 128, *_RESULT), _CONVOLVE_EACH, 3
    ),
    *_cases(
        _BOTH, "TRANSPOSE_CONV", _TRANSPOSED, _image(56, 64, *_RESULT), _UPSAMPLE, 3
    ),
    *_cases(_BOTH, "FULLY_CONNECTED", _DENSE, Data((8, 1024), *_RESULT), _CONNECT, 4),
    Case("AVERAGE_POOL_2D", INT8, (_image(56, 128),), _image(56, 128), _POOL, 2),
    Case("ADD", INT8, (_X, _Y), _image(56, 256, *_RESULT), Options("AddOptionsT"), 2),
    Case("MUL", INT8, (_X, _Y), _image(56, 256, 1 / 8, 3), Options("MulOptionsT"), 2),
    Case("LOGISTIC", INT8, (_X,), _image(56, 256, 1 / 256, -128), version=2),
    Case("TANH", INT8, (_X,), _image(56, 256, 1 / 128), version=2),
    Case("HARD_SWISH", INT8, (_X,), _image(56, 256, 1 / 24, -100), _HARD_SWISH),
    Case("PRELU", F32, (_X, Weights((1, 1, 256))), _X),
    *_cases(_BOTH, "RESIZE_BILINEAR", _SIZED, _image(224, 16), _RESIZE, 3),
    Case("TRANSPOSE", F32, _PERMUTED, Data((1, 256, 56, 56)), _TRANSPOSE),
)


def kernel_file(case: Case, *, seed: int = 0) -> bytes:
    """Return the file of the model that consists of ``case`` alone.

    Weights keep the variance of what they are applied to.

    :raises PeerMissingError: if LiteRT, which has the schema, is not installed.
    """
    writer = TfliteWriter(quantized=case.type == INT8, seed=seed)
    data_scale = next(o.scale for o in case.operands if isinstance(o, Data))
    operands: list[int] = []
    inputs: list[int] = []
    for number, operand in enumerate(case.operands):
        name = f"operand_{number}"
        match operand:
            case Data():
                tensor = writer.tensor(name, operand.shape, operand.quantization)
                inputs.append(tensor)
            case Weights(shape, axis):
                terms = math.prod(shape) // shape[axis or 0]
                tensor = writer.weights(name, shape, axis, 1 / math.sqrt(terms))
            case Bias(size):
                tensor = writer.bias(name, size, data_scale)
            case Integers(values):
                tensor = writer.constant(name, np.array(values, np.int32))
        operands.append(tensor)
    result = writer.tensor("result", case.result.shape, case.result.quantization)
    options = None
    if case.options is not None:
        options = getattr(writer.schema, case.options.name)(**case.options.fields)
    writer.operator(case.operator, operands, result, options, version=case.version)
    return writer.finish(inputs, [result])
