"""Computes, when a file is read, what follows from its constants and shapes alone.

Shapes, axes and paddings have to be known then, and converters compute them in a few
small operators. What is large is left to the plan, which folds as well.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.runtime.tflite.tensors import OperatorTensors
from asyncnn.tflite.tables import DTYPES, Graph, Operator, Tensor

MAX_FOLDED = 1 << 12
"""Most elements of the operands, and of the results, of what is computed here."""

Values: TypeAlias = Sequence[Any]
"""Arrays of the inputs, in order; None for one that is left out."""

Evaluate: TypeAlias = Callable[[OperatorTensors, Values], Array | Sequence[Array]]
"""Computes the outputs.

:raises ValueError: or another error of `NumPy` if that is not possible: then the
    operator stays.
"""


def folded(graph: Graph, operator: Operator) -> Sequence[Array]:
    """Return the outputs of an operator, or none if it is to be converted."""
    tensors = graph.tensors
    evaluate = EVALUATORS.get(operator.name)
    if evaluate is None or not operator.outputs or -1 in operator.outputs:
        return ()
    outputs = [tensors[index] for index in operator.outputs]
    inputs = [tensors[index] for index in operator.inputs if index >= 0]
    if any(t.data is not None or t.unsupported for t in outputs):
        return ()
    if operator.name not in _OF_SHAPES and not _foldable(inputs):
        return ()
    if not all(t.type in DTYPES and not t.scales for t in outputs):
        return ()
    values = [None if i < 0 else tensors[i].data for i in operator.inputs]
    node = OperatorTensors(graph, operator)
    try:
        with np.errstate(all="raise"):
            found = evaluate(node, values)
    except (ArithmeticError, LookupError, TypeError, ValueError, InvalidArgumentError):
        return ()  # the converter says what is wrong
    arrays = [found] if isinstance(found, np.ndarray | np.generic) else found
    if len(arrays) != len(outputs) or any(a.size > MAX_FOLDED for a in arrays):
        return ()
    return [_stored(a, t) for a, t in zip(arrays, outputs, strict=True)]


def _foldable(tensors: Sequence[Tensor]) -> bool:
    """Return whether all are constants, not quantised, and not large together."""
    left = MAX_FOLDED
    for tensor in tensors:
        if tensor.data is None or tensor.scales:
            return False
        left -= tensor.data.size
        if left < 0:
            return False
    return True


def _stored(array: Any, tensor: Tensor) -> Array:
    stored = np.ascontiguousarray(array, DTYPES[tensor.type]).reshape(np.shape(array))
    stored.flags.writeable = False
    return stored


def _bounded(shape: Sequence[int], most: int = MAX_FOLDED) -> tuple[int, ...]:
    """Return a shape of at most so many elements.

    :raises ValueError: if there are more.
    """
    lengths = tuple(int(length) for length in shape)
    if min(lengths, default=0) < 0 or math.prod(lengths) > most:
        raise ValueError(f"shape {lengths}")
    return lengths


def _no_activation(node: OperatorTensors, kind: str) -> None:
    if node.options(kind).FusedActivationFunction():
        raise ValueError("an activation")


def _binary(compute: Callable[..., Any], kind: str = "") -> Evaluate:
    def evaluate(node: OperatorTensors, values: Values) -> Array:
        if kind:
            _no_activation(node, kind)
        first, second = values
        _bounded(np.broadcast_shapes(first.shape, second.shape))
        return compute(first, second)  # type: ignore[no-any-return]

    return evaluate


def _unary(compute: Callable[..., Any]) -> Evaluate:
    return lambda node, values: compute(values[0])


def truncated_quotient(first: Array, second: Array) -> Array:
    """Return the quotient: of integers it is rounded towards zero."""
    if first.dtype.kind == "f":
        return np.asarray(first / second)
    quotient = np.abs(first) // np.abs(second)
    return np.asarray(np.where((first < 0) != (second < 0), -quotient, quotient))


def _axes(value: Any, rank: int) -> tuple[int, ...]:
    return tuple(sorted({range(rank)[int(axis)] for axis in np.ravel(value)}))


def _reduction(compute: Callable[..., Any]) -> Evaluate:
    def evaluate(node: OperatorTensors, values: Values) -> Array:
        keep = bool(node.options("ReducerOptions").KeepDims())
        axes = _axes(values[1], values[0].ndim)
        dtype = {} if compute in (np.max, np.min) else {"dtype": values[0].dtype}
        return np.asarray(compute(values[0], axis=axes, keepdims=keep, **dtype))

    return evaluate


def _range(node: OperatorTensors, values: Values) -> Array:
    start, limit, delta = (value.item() for value in values)
    _bounded([max(0, int(np.ceil((limit - start) / delta)))])
    return np.arange(start, limit, delta)


def _pack(node: OperatorTensors, values: Values) -> Array:
    return np.stack(values, axis=node.options("PackOptions").Axis())


def _unpack(node: OperatorTensors, values: Values) -> Sequence[Array]:
    found = np.moveaxis(values[0], node.options("UnpackOptions").Axis(), 0)
    if len(found) != len(node.operator.outputs):  # it may be millions
        raise ValueError(f"{len(found)} arrays for {len(node.operator.outputs)}")
    return [*found]


def _concatenate(node: OperatorTensors, values: Values) -> Array:
    _no_activation(node, "ConcatenationOptions")
    return np.concatenate(values, axis=node.options("ConcatenationOptions").Axis())


def _slice(node: OperatorTensors, values: Values) -> Array:
    source, *bounds = values
    begins, sizes = (each.ravel().tolist() for each in bounds)
    place = tuple(
        slice(first, None if length < 0 else first + length)
        for first, length, _ in zip(begins, sizes, source.shape, strict=True)
    )
    return np.asarray(source[place])


def strided_slice(node: OperatorTensors, values: Values) -> Array:
    """Return the elements that STRIDED_SLICE takes, with all of its masks."""
    options = node.options("StridedSliceOptions")
    source, begins, ends, strides = values
    if options.Offset():
        ends = begins + ends
    place: list[Any] = []
    for index, (begin, end, stride) in enumerate(
        zip(begins.tolist(), ends.tolist(), strides.tolist(), strict=True)
    ):
        bit = 1 << index
        if options.EllipsisMask() & bit:
            place.append(Ellipsis)
        elif options.NewAxisMask() & bit:
            place.append(None)
        elif options.ShrinkAxisMask() & bit:
            place.append(0 if options.BeginMask() & bit else begin)
        else:
            first = None if options.BeginMask() & bit else begin
            last = None if options.EndMask() & bit else end
            place.append(slice(first, last, stride))
    return np.asarray(source[tuple(place)])


def _split(node: OperatorTensors, values: Values) -> Sequence[Array]:
    return np.split(values[1], len(node.operator.outputs), axis=values[0].item())


def _split_v(node: OperatorTensors, values: Values) -> Sequence[Array]:
    sizes = values[1].tolist()
    if -1 in sizes:
        whole = values[0].shape[values[2].item()]
        sizes[sizes.index(-1)] = whole - sum(sizes) - 1
    return np.split(values[0], np.cumsum(sizes)[:-1], axis=values[2].item())


def _gather(node: OperatorTensors, values: Values) -> Array:
    options = node.options("GatherOptions")
    source, indices = values
    axis = options.Axis()
    if options.BatchDims() or indices.min(initial=0) < 0:
        raise ValueError("per batch, or before the beginning")
    _bounded([source.size, indices.size])
    return np.asarray(np.take(source, indices, axis=axis))


def _reshape(node: OperatorTensors, values: Values) -> Array:
    if len(values) > 1 and values[1] is not None:
        return np.asarray(np.reshape(values[0], values[1].ravel().tolist()))
    return np.asarray(
        np.reshape(values[0], node.options("ReshapeOptions").NewShapeAsNumpy())
    )


def _squeeze(node: OperatorTensors, values: Values) -> Array:
    axes = node.options("SqueezeOptions").SqueezeDimsAsNumpy()
    where = None if isinstance(axes, int) else tuple(axes)
    return np.asarray(np.squeeze(values[0], where))


def _fill(node: OperatorTensors, values: Values) -> Array:
    return np.full(_bounded(values[0].ravel()), values[1].item())


def _tile(node: OperatorTensors, values: Values) -> Array:
    _bounded(np.multiply(values[0].shape, values[1], dtype=object))
    return np.tile(values[0], values[1].tolist())


def _broadcast_to(node: OperatorTensors, values: Values) -> Array:
    return np.broadcast_to(values[0], _bounded(values[1]))


def _broadcast_args(node: OperatorTensors, values: Values) -> Array:
    shapes = [value.ravel().tolist() for value in values]
    return np.array(np.broadcast_shapes(*shapes))


def _one_hot(node: OperatorTensors, values: Values) -> Array:
    indices, depth, on, off = values
    axis = node.options("OneHotOptions").Axis()
    _bounded([*indices.shape, depth.item()])
    hot = indices[..., None] == np.arange(depth.item())
    return np.moveaxis(np.asarray(np.where(hot, on, off)), -1, axis)


def padded(node: OperatorTensors, values: Values, most: int = MAX_FOLDED) -> Array:
    """Return what PAD, or PADV2 with a value, makes of an array.

    :raises ValueError: if that has more than ``most`` elements.
    """
    source, widths, *value = values
    _bounded(np.add(source.shape, widths.sum(axis=1)), most)
    return np.pad(source, widths.tolist(), constant_values=value[0] if value else 0)


def transposed(node: OperatorTensors, values: Values) -> Array:
    """Return an array with its axes in another order."""
    return np.transpose(values[0], values[1].tolist())


def _cast(node: OperatorTensors, values: Values) -> Array:
    target = DTYPES[node.result().type]
    if values[0].dtype.kind == "f" and target.kind in "iu":
        limits = np.iinfo(target)
        if not ((values[0] >= limits.min) & (values[0] <= limits.max)).all():
            raise ValueError("beyond the type")
    return np.asarray(values[0].astype(target))


def _dequantize(node: OperatorTensors, values: Values) -> Array:
    if values[0].dtype != np.float16:
        raise ValueError("it is not float16")
    return np.asarray(values[0].astype(np.float32))


_OF_SHAPES = frozenset({"SHAPE", "RANK"})
"""Operators that ask for the shape of their input, not for its data."""

EVALUATORS: Mapping[str, Evaluate] = {
    "SHAPE": lambda node, values: np.array(node.tensor(0).shape, np.int64),
    "RANK": lambda node, values: np.array(len(node.tensor(0).shape)),
    "RANGE": _range,
    "ADD": _binary(np.add, "AddOptions"),
    "SUB": _binary(np.subtract, "SubOptions"),
    "MUL": _binary(np.multiply, "MulOptions"),
    "DIV": _binary(truncated_quotient, "DivOptions"),
    "FLOOR_DIV": _binary(np.floor_divide),
    "FLOOR_MOD": _binary(np.mod),
    "MAXIMUM": _binary(np.maximum),
    "MINIMUM": _binary(np.minimum),
    "EQUAL": _binary(np.equal),
    "NOT_EQUAL": _binary(np.not_equal),
    "GREATER": _binary(np.greater),
    "GREATER_EQUAL": _binary(np.greater_equal),
    "LESS": _binary(np.less),
    "LESS_EQUAL": _binary(np.less_equal),
    "LOGICAL_AND": _binary(np.logical_and),
    "LOGICAL_OR": _binary(np.logical_or),
    "LOGICAL_NOT": _unary(np.logical_not),
    "NEG": _unary(np.negative),
    "ABS": _unary(np.abs),
    "SQUARE": _unary(np.square),
    "SIGN": _unary(np.sign),
    "FLOOR": _unary(np.floor),
    "CEIL": _unary(np.ceil),
    "ROUND": _unary(np.rint),
    "CAST": _cast,
    "DEQUANTIZE": _dequantize,
    "SELECT_V2": lambda node, values: np.where(*values),
    "PACK": _pack,
    "UNPACK": _unpack,
    "CONCATENATION": _concatenate,
    "SLICE": _slice,
    "STRIDED_SLICE": strided_slice,
    "SPLIT": _split,
    "SPLIT_V": _split_v,
    "GATHER": _gather,
    "RESHAPE": _reshape,
    "SQUEEZE": _squeeze,
    "EXPAND_DIMS": lambda node, values: np.expand_dims(values[0], values[1].item()),
    "TRANSPOSE": transposed,
    "FILL": _fill,
    "TILE": _tile,
    "BROADCAST_TO": _broadcast_to,
    "BROADCAST_ARGS": _broadcast_args,
    "ZEROS_LIKE": _unary(np.zeros_like),
    "ONE_HOT": _one_hot,
    "WHERE": lambda node, values: np.argwhere(values[0]),
    "REVERSE_V2": lambda node, values: np.flip(
        values[0], _axes(values[1], values[0].ndim)
    ),
    "PAD": padded,
    "PADV2": padded,
    "REDUCE_PROD": _reduction(np.prod),
    "SUM": _reduction(np.sum),
    "REDUCE_MAX": _reduction(np.max),
    "REDUCE_MIN": _reduction(np.min),
}
"""By the operator's name; results are exact, as LiteRT's are."""
