"""A usual case of each operation that is claimed, in each of the types claimed."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from asyncnn.devices.litert.claims import RULES
from asyncnn.hal.operations import infer_shapes
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation, Shape
from asyncnn.hal.types import OperandType, OperationType
from tests.kernels.operations import (
    B8,
    F16,
    F32,
    I32,
    Q8,
    Q8S,
    Q8SYM,
    Argument,
    Given,
    bind,
    compute_all,
    constant,
    random_values,
    tensor,
)

T = OperationType
CODES = (Q8, Q8S)

_ACTIVATION_RELU6 = 3
_SAME, _VALID = 1, 2
_BIAS_TYPES = {F32: F32, F16: F16, Q8: I32, Q8S: I32}


class UsualCase(NamedTuple):
    """An operation, the values of its inputs, and what the kernels make of them."""

    operation: BoundOperation
    arrays: list[Array | None]
    expected: list[Array]


class _Maker:
    """Makes operands of one type; ``side`` is the length of images."""

    def __init__(self, type_: OperandType, side: int) -> None:
        self.type = type_
        self.side = side
        self.zero_point = {Q8: 121, Q8S: -7}.get(type_, 0)
        self._seed = 0

    def tensor(self, *shape: int, type_: OperandType | None = None) -> Argument:
        return tensor(*self._described(shape, type_))

    def constant(self, *shape: int, type_: OperandType | None = None) -> Argument:
        return constant(*self._described(shape, type_))

    def _described(self, shape: Shape, type_: OperandType | None):
        self._seed += 1
        type_ = type_ or self.type
        value = random_values(type_, shape, self._seed, -2, 2)
        scale, zero_point = self.quantization(type_)
        return type_, value, scale, zero_point

    def quantization(self, type_: OperandType) -> tuple[float, int]:
        if type_ == Q8SYM:
            return 0.05, 0
        return (0.05, self.zero_point) if type_ in CODES else (0.0, 0)

    def image(self, channels: int = 8) -> Argument:
        return self.tensor(2, self.side, self.side + 1, channels)

    def scalar(self, value: float) -> Given:
        return np.float16(value) if self.type == F16 else float(value)

    def weights(self, *shape: int, units: int) -> list[Argument]:
        """Return a filter, centred where it has codes, and a bias."""
        bias_type = _BIAS_TYPES[self.type]
        zero_point = {Q8: 128}.get(self.type, 0)
        scale = 0.01 if self.type in CODES else 0.0
        value = random_values(self.type, shape, 77, -0.5, 0.5)
        bias = random_values(bias_type, (units,), 78)
        bias_scale = float(np.float32(0.05) * np.float32(scale))
        return [
            constant(self.type, value, scale, zero_point),
            constant(bias_type, bias, bias_scale),
        ]


Make = Callable[[_Maker], list[Given]]


def _integers(*values: object) -> Argument:
    return constant(I32, np.array(values, np.int32))


_UNARY = (
    T.RELU,
    T.RELU1,
    T.RELU6,
    T.LOGISTIC,
    T.TANH,
    T.HARD_SWISH,
    T.ABS,
    T.EXP,
    T.FLOOR,
    T.NEG,
    T.QUANTIZE,
    T.DEQUANTIZE,
)
_BINARY = (
    T.MAXIMUM,
    T.MINIMUM,
    T.EQUAL,
    T.NOT_EQUAL,
    T.GREATER,
    T.GREATER_EQUAL,
    T.LESS,
    T.LESS_EQUAL,
)
_FUSED = (T.ADD, T.SUB, T.MUL)
_REDUCED = (T.REDUCE_ALL, T.REDUCE_ANY, T.REDUCE_MAX, T.REDUCE_MIN, T.REDUCE_SUM)


def _activation(maker: _Maker) -> int:
    return 0 if maker.type == I32 else _ACTIVATION_RELU6


def _positive(maker: _Maker) -> Argument:
    argument = maker.image()
    positive = np.abs(argument.array) + argument.array.dtype.type(0.25)
    return tensor(maker.type, positive)


def _pooled(maker: _Maker) -> list[Given]:
    return [maker.image(), _SAME, 2, 2, 3, 3, 0, False]


def _convolved(maker: _Maker) -> list[Given]:
    weights = maker.weights(16, 3, 3, 8, units=16)
    return [maker.image(), *weights, _SAME, 2, 2, _ACTIVATION_RELU6]


def _sequence_lstm(maker: _Maker) -> list[Given]:
    """Return five steps of two sequences of three elements, and four units."""
    units, size = 4, 3
    return [
        maker.tensor(2, 5, size),
        *(maker.constant(units, size) for _ in range(4)),
        *(maker.constant(units, units) for _ in range(4)),
        *[None] * 3,
        *(maker.constant(units) for _ in range(4)),
        *[None] * 2,
        maker.tensor(2, units),
        maker.tensor(2, units),
        *(4, maker.scalar(1.5), maker.scalar(0)),
        False,
        *[None] * 4,
    ]


MAKE: dict[OperationType, Make] = {
    **dict.fromkeys(_UNARY, lambda m: [m.image()]),
    **dict.fromkeys(_BINARY, lambda m: [m.image(), m.image()]),
    **dict.fromkeys(_FUSED, lambda m: [m.image(), m.tensor(8), _activation(m)]),
    **dict.fromkeys(_REDUCED, lambda m: [m.image(), _integers(1, 2), False]),
    T.REDUCE_PROD: lambda m: [m.tensor(40, 5), _integers(1), False],
    T.LOG: lambda m: [_positive(m)],
    T.SQRT: lambda m: [_positive(m)],
    T.RSQRT: lambda m: [_positive(m)],
    T.POW: lambda m: [_positive(m), m.tensor(8)],
    T.DIV: lambda m: [m.image(), _positive(m), 0],
    T.PRELU: lambda m: [m.image(), m.constant(1, 1, 8)],
    T.ELU: lambda m: [m.image(), m.scalar(0.5)],
    T.SELECT: lambda m: [
        (image := m.image(), m.tensor(*image.array.shape, type_=B8))[1],
        image,
        m.image(),
    ],
    T.CAST: lambda m: [m.image()],
    T.MEAN: lambda m: [m.image(), _integers(1, 2), 0],
    T.ARGMAX: lambda m: [m.image(), 3],
    T.ARGMIN: lambda m: [m.image(), -1],
    T.SOFTMAX: lambda m: [m.tensor(6, 50), m.scalar(1.0)],
    T.LOG_SOFTMAX: lambda m: [m.tensor(6, 50), m.scalar(0.5), 1],
    T.L2_NORMALIZATION: lambda m: [m.image()],
    T.LOCAL_RESPONSE_NORMALIZATION: lambda m: [
        m.image(),
        2,
        *map(m.scalar, (1.0, 0.5, 0.5)),
    ],
    T.INSTANCE_NORMALIZATION: lambda m: [
        m.image(),
        *map(m.scalar, (1.5, 0.5, 0.0625)),
        False,
    ],
    T.BATCH_MATMUL: lambda m: [m.tensor(3, 9, 16), m.tensor(3, 16, 5), False, False],
    T.RESIZE_BILINEAR: lambda m: [m.image(), 2 * m.side, 2 * m.side, False],
    T.RESIZE_NEAREST_NEIGHBOR: lambda m: [m.image(), 24, 24, False, False, True],
    T.RESHAPE: lambda m: [m.image(), _integers(2, -1)],
    T.SQUEEZE: lambda m: [m.tensor(1, 30, 1, 8), _integers(0, 2)],
    T.EXPAND_DIMS: lambda m: [m.tensor(30, 8), 1],
    T.TRANSPOSE: lambda m: [m.image(), _integers(0, 3, 1, 2)],
    T.PAD: lambda m: [m.image(), _integers((0, 0), (1, 2), (3, 0), (0, 1))],
    T.PAD_V2: lambda m: [
        m.image(),
        _integers((0, 0), (1, 2), (3, 0), (0, 1)),
        3 if m.type in CODES else m.scalar(3),
    ],
    T.SLICE: lambda m: [m.image(), _integers(0, 1, 2, 3), _integers(2, -1, 3, 4)],
    T.STRIDED_SLICE: lambda m: [
        m.image(),
        _integers(1, 0, -1, 5),
        _integers(2, 9, -6, 6),
        _integers(1, 2, -2, 1),
        0,
        2,
        8,
    ],
    T.SPLIT: lambda m: [m.image(), 3, 4],
    T.CONCATENATION: lambda m: [m.image(), m.image(), 3],
    T.PACK: lambda m: [1, m.tensor(5, 6), m.tensor(5, 6)],
    T.TILE: lambda m: [m.tensor(3, 5), _integers(2, 3)],
    T.REVERSE: lambda m: [m.image(), _integers(2)],
    T.CHANNEL_SHUFFLE: lambda m: [m.image(), 4, 3],
    T.DEPTH_TO_SPACE: lambda m: [m.image(), 2],
    T.SPACE_TO_DEPTH: lambda m: [m.tensor(1, 6, 8, 3), 2],
    T.BATCH_TO_SPACE_ND: lambda m: [m.tensor(4, 5, 6, 3), _integers(2, 2)],
    T.SPACE_TO_BATCH_ND: lambda m: [
        m.tensor(2, 5, 6, 3),
        _integers(2, 2),
        _integers((1, 0), (0, 2)),
    ],
    T.GATHER: lambda m: [m.image(), 2, _integers(3, 0, 3)],
    T.EMBEDDING_LOOKUP: lambda m: [tensor(I32, [3, 0, 3]), m.constant(12, 7)],
    T.CONV_2D: _convolved,
    T.GROUPED_CONV_2D: lambda m: [
        m.image(),
        *m.weights(12, 3, 3, 2, units=12),
        _VALID,
        1,
        1,
        4,
        0,
        False,
    ],
    T.DEPTHWISE_CONV_2D: lambda m: [
        m.image(),
        *m.weights(1, 3, 3, 16, units=16),
        *(1, 1, 1, 1),
        *(2, 2, 2),
        _ACTIVATION_RELU6,
    ],
    T.TRANSPOSE_CONV_2D: lambda m: [
        m.image(),
        *m.weights(6, 3, 3, 8, units=6),
        *(1, 1, 1, 1),
        *(2, 2, 0),
        False,
    ],
    T.FULLY_CONNECTED: lambda m: [m.tensor(3, 4, 16), *m.weights(20, 16, units=20), 1],
    T.UNIDIRECTIONAL_SEQUENCE_LSTM: _sequence_lstm,
    T.AVERAGE_POOL_2D: _pooled,
    T.MAX_POOL_2D: _pooled,
    T.L2_POOL_2D: _pooled,
}
"""How to make the inputs of each operation."""

_OF_BOOLS = {T.EQUAL, T.NOT_EQUAL, T.GREATER, T.GREATER_EQUAL, T.LESS, T.LESS_EQUAL}
_WIDE = {T.CONV_2D, T.GROUPED_CONV_2D, T.DEPTHWISE_CONV_2D, T.TRANSPOSE_CONV_2D}


def _output(type_: OperationType, maker: _Maker) -> BoundOperand:
    """Describe an output but for its shape."""
    main = maker.type
    if type_ in _OF_BOOLS:
        return BoundOperand(B8, None)
    if type_ in (T.ARGMAX, T.ARGMIN):
        return BoundOperand(I32, None)
    if type_ == T.QUANTIZE:
        return BoundOperand(Q8S, None, 0.03, 5)
    if type_ == T.DEQUANTIZE:
        return BoundOperand(F32, None)
    if type_ == T.CAST:
        target = {F32: Q8, F16: F32, I32: F32, Q8: I32}.get(main, main)
        return BoundOperand(target, None, *maker.quantization(target))
    scale, zero_point = maker.quantization(main)
    if main in CODES:
        low = 0 if main == Q8 else -128
        if type_ in (T.LOGISTIC, T.SOFTMAX):
            scale, zero_point = 1 / 256, low
        elif type_ in (T.TANH, T.L2_NORMALIZATION):
            scale, zero_point = 1 / 128, low + 128
        elif type_ in (T.ADD, T.SUB, T.MUL, T.CONCATENATION, T.MAXIMUM, T.HARD_SWISH):
            scale, zero_point = 0.06, zero_point + 3
        elif type_ in (*_WIDE, T.FULLY_CONNECTED, T.BATCH_MATMUL):
            scale = 0.4
    return BoundOperand(main, None, scale, zero_point)


def usual_case(
    type_: OperationType, main: OperandType, side: int = 12, *, computed: bool = True
) -> UsualCase:
    """Return the case of an operation on operands of type ``main``."""
    maker = _Maker(main, side)
    inputs = MAKE[type_](maker)
    count = {T.SPLIT: 4, T.UNIDIRECTIONAL_SEQUENCE_LSTM: 3}.get(type_, 1)
    outputs = [_output(type_, maker)] * count
    operation = bind(type_, inputs, outputs)
    shapes = infer_shapes(operation)
    outputs = [replace(o, shape=s) for o, s in zip(outputs, shapes, strict=True)]
    arrays = [
        given.array
        if isinstance(given, Argument) and given.operand.value is None
        else None
        for given in inputs
    ]
    return UsualCase(
        replace(operation, outputs=tuple(outputs)),
        arrays,
        compute_all(type_, inputs, outputs) if computed else [],
    )


def all_pairs() -> Iterator[tuple[OperationType, OperandType]]:
    """Yield each claimed operation with each of its types."""
    for type_, rule in RULES.items():
        for main in rule.types:
            yield type_, main
