"""Formulas of operations that move elements, or join and cut tensors."""

from collections.abc import Callable

import numpy as np

from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.hal.types import OperationType
from tests.random_graphs.naive.expected import QUANTIZED, Expected, exact, real, rounded

Formula = Callable[[BoundOperation], Expected | list[Expected]]


def integers(operation: BoundOperation, index: int) -> list[int]:
    """Return the elements of an int32 tensor."""
    return [int(number) for number in operation.value(index).reshape(-1)]


def _axis(operation: BoundOperation, index: int, rank: int) -> int:
    axis = operation.integer(index)
    return axis + rank if axis < 0 else axis


def _moved(move: Callable[[BoundOperation, Array], Array]) -> Formula:
    return lambda op: exact(move(op, real(op.input(0))))


def _squeeze(operation: BoundOperation, x: Array) -> Array:
    if operation.has(1):
        axes = {axis % x.ndim for axis in integers(operation, 1)}
    else:
        axes = set(range(x.ndim))
    kept = [n for axis, n in enumerate(x.shape) if axis not in axes or n != 1]
    return x.reshape(kept or [1])


def _expand_dims(operation: BoundOperation, x: Array) -> Array:
    axis = _axis(operation, 1, x.ndim + 1)
    return x.reshape(*x.shape[:axis], 1, *x.shape[axis:])


def _transpose(operation: BoundOperation, x: Array) -> Array:
    order = integers(operation, 1) if operation.has(1) else range(x.ndim)[::-1]
    return np.moveaxis(x, order, range(x.ndim))


def _channel_shuffle(operation: BoundOperation, x: Array) -> Array:
    groups, axis = operation.integer(1), _axis(operation, 2, x.ndim)
    size = x.shape[axis] // groups
    order = [g * size + k for k in range(size) for g in range(groups)]
    return np.take(x, order, axis)


def _slice(operation: BoundOperation, x: Array) -> Array:
    places = [
        range(begin, n if size == -1 else begin + size)
        for n, begin, size in zip(
            x.shape, integers(operation, 1), integers(operation, 2), strict=True
        )
    ]
    return x[np.ix_(*places)]


def _strided_slice(operation: BoundOperation, x: Array) -> Array:
    begins, ends, strides = (integers(operation, i) for i in (1, 2, 3))
    begin_mask, end_mask, shrink_mask = (operation.integer(i) for i in (4, 5, 6))
    places, kept = [], []
    for axis, n in enumerate(x.shape):
        begin, end, stride = begins[axis], ends[axis], strides[axis]
        first = begin + n if begin < 0 else begin
        stop = end + n if end < 0 else end
        if begin_mask >> axis & 1:
            first = 0 if stride > 0 else n - 1
        if end_mask >> axis & 1:
            stop = n if stride > 0 else -1
        place = [i for i in range(first, stop, stride) if 0 <= i < n]
        places.append(place)
        if not shrink_mask >> axis & 1:
            kept.append(len(place))
    return x[np.ix_(*places)].reshape(kept or [1])


def _gather(operation: BoundOperation, x: Array) -> Array:
    axis = _axis(operation, 1, x.ndim)
    indices = operation.value(2)
    parts = [np.take(x, int(i), axis) for i in indices.reshape(-1)]
    joined = np.stack(parts, axis)
    return joined.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def _pairs(operation: BoundOperation) -> list[tuple[int, int]]:
    flat = integers(operation, 1)
    return list(zip(flat[::2], flat[1::2], strict=True))


def _pad_v2(operation: BoundOperation, x: Array) -> Array:
    value, operand = operation.real(2), operation.input(0)
    if operand.type in QUANTIZED:
        value = (value - operand.zero_point) * operand.scale
    return np.pad(x, _pairs(operation), constant_values=value)


def _mirror_pad(operation: BoundOperation, x: Array) -> Array:
    if operation.integer(2):
        return np.pad(x, _pairs(operation), mode="symmetric")
    return np.pad(x, _pairs(operation), mode="reflect")


def _concatenation(operation: BoundOperation) -> Expected:
    *parts, _ = (real(operation.input(i)) for i in range(len(operation.inputs)))
    value = np.concatenate(parts, operation.integer(len(parts)))
    quantized = operation.outputs[0].type in QUANTIZED
    return rounded(value) if quantized else exact(value)


def _pack(operation: BoundOperation) -> Expected:
    parts = [real(operation.input(i)) for i in range(1, len(operation.inputs))]
    return exact(np.stack(parts, operation.integer(0)))


def _split(operation: BoundOperation) -> list[Expected]:
    x = real(operation.input(0))
    parts = np.split(x, operation.integer(2), _axis(operation, 1, x.ndim))
    return [exact(part) for part in parts]


def _arg(compare: Callable[[Array, int], Array]) -> Formula:
    def formula(operation: BoundOperation) -> Expected:
        x = real(operation.input(0))
        axis = _axis(operation, 1, x.ndim)
        extreme = np.expand_dims(compare(x, axis), axis)
        first = np.argmax(x == extreme, axis)
        return exact(first.reshape(first.shape or (1,)))

    return formula


def _top_k(operation: BoundOperation) -> list[Expected]:
    """Of equal elements the one with the larger index comes first."""
    x, k = real(operation.input(0)), operation.integer(1)
    places = np.broadcast_to(np.arange(x.shape[-1]), x.shape)
    order = np.lexsort((-places, -x), axis=-1)[..., :k]
    return [exact(np.take_along_axis(x, order, -1)), exact(order)]


def _fill(operation: BoundOperation) -> Expected:
    return exact(np.full(integers(operation, 0), operation.real(1)))


_OP = OperationType
FORMULAS: dict[OperationType, Formula] = {
    _OP.RESHAPE: _moved(lambda op, x: x.reshape(integers(op, 1))),
    _OP.SQUEEZE: _moved(_squeeze),
    _OP.EXPAND_DIMS: _moved(_expand_dims),
    _OP.TRANSPOSE: _moved(_transpose),
    _OP.TILE: _moved(lambda op, x: np.tile(x, integers(op, 1))),
    _OP.CHANNEL_SHUFFLE: _moved(_channel_shuffle),
    _OP.REVERSE: _moved(lambda op, x: np.flip(x, integers(op, 1)[0])),
    _OP.FILL: _fill,
    _OP.RANK: lambda op: exact(np.array(len(op.shape(0)))),
    _OP.SLICE: _moved(_slice),
    _OP.STRIDED_SLICE: _moved(_strided_slice),
    _OP.GATHER: _moved(_gather),
    _OP.PAD: _moved(lambda op, x: np.pad(x, _pairs(op))),
    _OP.PAD_V2: _moved(_pad_v2),
    _OP.MIRROR_PAD: _moved(_mirror_pad),
    _OP.CONCATENATION: _concatenation,
    _OP.PACK: _pack,
    _OP.SPLIT: _split,
    _OP.ARGMAX: _arg(lambda x, axis: x.max(axis)),
    _OP.ARGMIN: _arg(lambda x, axis: x.min(axis)),
    _OP.TOPK_V2: _top_k,
}
