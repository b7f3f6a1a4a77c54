"""Shapes of results where an input has another shape than the file says.

A file fixes the shapes of all its tensors. Where an input is given another shape, by
whoever loads the file or by what runs a subgraph, all results' follow from it.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.operations.bound import Shape
from asyncnn.runtime.tflite.folding import EVALUATORS
from asyncnn.runtime.tflite.tensors import OperatorTensors
from asyncnn.runtime.unsupported import UnsupportedOperatorError

ShapeRule: TypeAlias = Callable[[OperatorTensors], Sequence[Shape]]
"""Returns the shapes of all results of an operator."""


def result_shapes(tensors: OperatorTensors) -> Sequence[Shape]:
    """Return the shapes of what an operator computes of its inputs as they are.

    :raises UnsupportedOperatorError: if they depend on values, or no rule is known.
    :raises InvalidArgumentError: if the inputs do not fit each other.
    """
    rule = RULES.get(tensors.operator.name)
    if rule is None:
        raise UnsupportedOperatorError(
            "what it computes of inputs of other shapes than the file's is not known"
        )
    try:
        shapes = rule(tensors)
    except AsyncnnError:  # some are a ValueError as well
        raise
    except (ArithmeticError, IndexError, ValueError) as error:
        given = [
            list(tensors.tensor(index).shape)
            for index in range(len(tensors.operator.inputs))
            if tensors.has(index)
        ]
        raise InvalidArgumentError(
            f"inputs of shapes {given} do not fit each other: {error}"
        ) from None
    if any(length < 1 for shape in shapes for length in shape):
        raise InvalidArgumentError(f"results of shapes {[list(s) for s in shapes]}")
    return [tuple(map(int, shape)) for shape in shapes]


def _shape(tensors: OperatorTensors, index: int = 0) -> Shape:
    return tensors.tensor(index).shape


def _same(tensors: OperatorTensors) -> list[Shape]:
    return [_shape(tensors)]


def _broadcast(tensors: OperatorTensors) -> list[Shape]:
    count = len(tensors.operator.inputs)
    shapes = [_shape(tensors, index) for index in range(count)]
    return [np.broadcast_shapes(*shapes)]


def _reduced(tensors: OperatorTensors) -> list[Shape]:
    shape = _shape(tensors)
    axes = {tensors.axis(int(axis), len(shape)) for axis in tensors.values(1).ravel()}
    if tensors.options("ReducerOptions").KeepDims():
        return [tuple(1 if k in axes else n for k, n in enumerate(shape))]
    return [tuple(n for k, n in enumerate(shape) if k not in axes)]


def _picked(tensors: OperatorTensors) -> list[Shape]:
    shape = _shape(tensors)
    axis = tensors.axis(tensors.value(1), len(shape))
    return [shape[:axis] + shape[axis + 1 :]]


def _slid(options: Any, shape: Shape, window: tuple[int, int], depth: int) -> Shape:
    batch, height, width, _ = shape
    strides = options.StrideH(), options.StrideW()
    if options.Padding():
        lengths = [
            length - size + 1
            for length, size in zip((height, width), window, strict=True)
        ]
    else:
        lengths = [height, width]
    down, across = (
        -(-length // stride) for length, stride in zip(lengths, strides, strict=True)
    )
    return batch, down, across, depth


def _convolved(kind: str, depth_axis: int) -> ShapeRule:
    def rule(tensors: OperatorTensors) -> list[Shape]:
        options, filter_ = tensors.options(kind), _shape(tensors, 1)
        window = (
            (filter_[1] - 1) * options.DilationHFactor() + 1,
            (filter_[2] - 1) * options.DilationWFactor() + 1,
        )
        return [_slid(options, _shape(tensors), window, filter_[depth_axis])]

    return rule


def _pooled(tensors: OperatorTensors) -> list[Shape]:
    options, shape = tensors.options("Pool2DOptions"), _shape(tensors)
    window = options.FilterHeight(), options.FilterWidth()
    return [_slid(options, shape, window, shape[3])]


def _fully_connected(tensors: OperatorTensors) -> list[Shape]:
    shape, (units, depth) = _shape(tensors), _shape(tensors, 1)
    if tensors.options("FullyConnectedOptions").KeepNumDims():
        return [(*shape[:-1], units)]
    return [(math.prod(shape) // depth, units)]


def _batch_matmul(tensors: OperatorTensors) -> list[Shape]:
    options = tensors.options("BatchMatMulOptions")
    one, other = _shape(tensors, 0), _shape(tensors, 1)
    outer = np.broadcast_shapes(one[:-2], other[:-2])
    rows = one[-1] if options.AdjX() else one[-2]
    columns = other[-2] if options.AdjY() else other[-1]
    return [(*outer, rows, columns)]


def _reshaped(tensors: OperatorTensors) -> list[Shape]:
    if tensors.has(1):
        # A vector of no lengths has no data, either: it makes a scalar.
        scalar = tensors.tensor(1).shape == (0,)
        wanted = [] if scalar else tensors.values(1).ravel().tolist()
    else:
        given = tensors.options("ReshapeOptions").NewShapeAsNumpy()
        if isinstance(given, int):
            raise UnsupportedOperatorError("it does not say what it reshapes to")
        wanted = given.tolist()
    elements = math.prod(_shape(tensors))
    if wanted.count(-1) == 1:
        rest = math.prod(length for length in wanted if length != -1)
        wanted = [elements // rest if length == -1 else length for length in wanted]
    if math.prod(wanted) != elements:
        raise ValueError(f"{elements} elements do not become {wanted}")
    return [tuple(wanted)]


def _moved(name: str, which: int = 0) -> ShapeRule:
    """Return the rule of an operator that moves elements of one input, not copying."""

    def rule(tensors: OperatorTensors) -> list[Shape]:
        # A view of one element that is repeated takes no memory.
        given = [
            np.broadcast_to(np.uint8(0), _shape(tensors, index))
            if index == which
            else tensors.values(index)
            for index in range(len(tensors.operator.inputs))
        ]
        found = EVALUATORS[name](tensors, given)
        return (
            [found.shape] if isinstance(found, np.ndarray) else [a.shape for a in found]
        )

    return rule


def _joined(tensors: OperatorTensors) -> list[Shape]:
    shapes = [_shape(tensors, k) for k in range(len(tensors.operator.inputs))]
    axis = tensors.options("ConcatenationOptions").Axis()
    axis = tensors.axis(axis, len(shapes[0]))
    length = sum(shape[axis] for shape in shapes)
    return [(*shapes[0][:axis], length, *shapes[0][axis + 1 :])]


def _packed(tensors: OperatorTensors) -> list[Shape]:
    shape = _shape(tensors)
    axis = tensors.axis(tensors.options("PackOptions").Axis(), len(shape) + 1)
    return [(*shape[:axis], len(tensors.operator.inputs), *shape[axis:])]


def _padded(tensors: OperatorTensors) -> list[Shape]:
    pairs = tensors.values(1).reshape(-1, 2).tolist()
    lengths = zip(_shape(tensors), pairs, strict=True)
    return [tuple(before + length + after for length, (before, after) in lengths)]


def _tiled(tensors: OperatorTensors) -> list[Shape]:
    repeats = tensors.values(1).ravel().tolist()
    lengths = zip(_shape(tensors), repeats, strict=True)
    return [tuple(length * count for length, count in lengths)]


def _gathered(tensors: OperatorTensors) -> list[Shape]:
    options = tensors.options("GatherOptions")
    shape, indices = _shape(tensors), _shape(tensors, 1)
    axis, batches = tensors.axis(options.Axis(), len(shape)), options.BatchDims()
    if batches < 0:
        batches += len(indices)
    return [(*shape[:axis], *indices[batches:], *shape[axis + 1 :])]


def _gathered_by_vectors(tensors: OperatorTensors) -> list[Shape]:
    *outer, depth = _shape(tensors, 1)
    return [(*outer, *_shape(tensors)[depth:])]


def _hot(tensors: OperatorTensors) -> list[Shape]:
    shape = _shape(tensors)
    axis = tensors.axis(tensors.options("OneHotOptions").Axis(), len(shape) + 1)
    return [(*shape[:axis], tensors.value(1), *shape[axis:])]


def _spectrum(tensors: OperatorTensors) -> list[Shape]:
    height, width = tensors.values(1).ravel().tolist()
    return [(*_shape(tensors)[:-2], height, width // 2 + 1)]


def _shape_of(tensors: OperatorTensors) -> list[Shape]:
    return [(len(_shape(tensors)),)]


_SAME = (
    *("ABS", "CAST", "CEIL", "COS", "DEQUANTIZE", "ELU", "EXP", "FLOOR", "GELU"),
    *("HARD_SWISH", "L2_NORMALIZATION", "LEAKY_RELU", "LOCAL_RESPONSE_NORMALIZATION"),
    *("LOG", "LOGICAL_NOT", "LOGISTIC", "LOG_SOFTMAX", "NEG", "QUANTIZE", "RELU"),
    *("RELU6", "RELU_N1_TO_1", "REVERSE_V2", "ROUND", "RSQRT", "SIGN", "SIN"),
    *("SOFTMAX", "SQRT", "SQUARE", "TANH", "ZEROS_LIKE"),
    *("BUCKETIZE", "COMPLEX_ABS", "CUMSUM", "DYNAMIC_UPDATE_SLICE", "FAKE_QUANT"),
    *("IMAG", "REAL", "RELU_0_TO_1", "REVERSE_SEQUENCE", "RIGHT_SHIFT"),
)
_BROADCAST = (
    *("ADD", "ADD_N", "ATAN2", "DIV", "EQUAL", "FLOOR_DIV", "FLOOR_MOD", "GREATER"),
    *("GREATER_EQUAL", "LESS", "LESS_EQUAL", "LOGICAL_AND", "LOGICAL_OR", "MAXIMUM"),
    *("MINIMUM", "MUL", "NOT_EQUAL", "POW", "PRELU", "SELECT_V2"),
    *("SQUARED_DIFFERENCE", "SUB"),
)
_REDUCTIONS = (
    *("MEAN", "REDUCE_ALL", "REDUCE_ANY", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"),
    "SUM",
)

_MOVING = "EXPAND_DIMS", "SLICE", "SQUEEZE", "STRIDED_SLICE", "TRANSPOSE", "UNPACK"

RULES: dict[str, ShapeRule] = {
    **dict.fromkeys(_SAME, _same),
    **dict.fromkeys(_BROADCAST, _broadcast),
    **dict.fromkeys(_REDUCTIONS, _reduced),
    **{name: _moved(name) for name in _MOVING},
    "ARG_MAX": _picked,
    "ARG_MIN": _picked,
    "AVERAGE_POOL_2D": _pooled,
    "BATCH_MATMUL": _batch_matmul,
    "CONCATENATION": _joined,
    "CONV_2D": _convolved("Conv2DOptions", 0),
    "DEPTHWISE_CONV_2D": _convolved("DepthwiseConv2DOptions", 3),
    "FULLY_CONNECTED": _fully_connected,
    "GATHER": _gathered,
    "GATHER_ND": _gathered_by_vectors,
    "L2_POOL_2D": _pooled,
    "MAX_POOL_2D": _pooled,
    "MIRROR_PAD": _padded,
    "ONE_HOT": _hot,
    "PACK": _packed,
    "PAD": _padded,
    "PADV2": _padded,
    "RESHAPE": _reshaped,
    "RFFT2D": _spectrum,
    "SHAPE": _shape_of,
    "SPLIT": _moved("SPLIT", 1),
    "TILE": _tiled,
}
"""Rules by the operator's name; inputs that give sizes have to be constants."""
