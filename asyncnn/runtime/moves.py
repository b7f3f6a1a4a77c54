"""What moves elements of any rank: transpose, join, slice, reverse, gather, split, pad.

The HAL moves tensors of up to four axes: of more, those that stay together are merged.
"""

import math
from collections.abc import Sequence

import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.axes import MAX_RANK, merged_axes, transpositions
from asyncnn.runtime.composing import Composer
from asyncnn.runtime.drafting import F16, F32, I32, Q8, Q8S, Value
from asyncnn.runtime.unsupported import UnsupportedOperatorError


def transpose(draft: Composer, value: Value, axes: Sequence[int]) -> Value:
    """Return ``value`` with its axes in another order.

    Transposes that meet become one, or none; axes of length 1 cost nothing, and axes
    that stay together move as one.
    """
    axes = list(axes)
    if value.is_constant and value.form.channels is None and value.data is not None:
        return draft.constant_like(value, lambda data: data.transpose(axes))
    before = draft.transposed.get(value.source)
    if before is not None and before[0].shape and value.rank == before[0].rank:
        value, axes = before[0], [before[1][axis] for axis in axes]
    shape = tuple(value.shape[axis] for axis in axes)
    long = [axis for axis in axes if value.shape[axis] != 1]
    if long == sorted(long):
        return draft.reshape(value, shape)
    if value.rank <= MAX_RANK:
        result = _permuted(draft, value, axes)
        draft.transposed[result.source] = (value, axes)
        return result
    result = value
    for each in transpositions(value.shape, axes):
        result = _permuted(draft, draft.reshape(result, each.shape), each.order)
    result = draft.reshape(result, shape)
    draft.transposed[result.source] = (value, axes)
    return result


def _permuted(draft: Composer, value: Value, axes: Sequence[int]) -> Value:
    perm = tuple(axes)

    def move(moved: Value) -> Value:
        return draft.emit(Op.TRANSPOSE, [moved, perm])

    return draft.through(value, move)


def concatenate(draft: Composer, values: Sequence[Value], axis: int) -> Value:
    """Return the values one behind the other along ``axis``."""
    values = draft.alike([value for value in values if value.shape[axis]])
    if len(values) == 1:
        return values[0]
    shape = list(values[0].shape)
    shape[axis] = sum(value.shape[axis] for value in values)
    first = values[0]
    for value in values[1:]:
        others = (*value.shape[:axis], first.shape[axis], *value.shape[axis + 1 :])
        if others != first.shape:
            raise InvalidArgumentError(
                f"{list(first.shape)} and {list(value.shape)} do not join"
            )
    if first.rank > MAX_RANK:
        joined = concatenate(draft, [draft.as_three(v, axis) for v in values], 1)
        return draft.reshape(joined, tuple(shape))
    if first.type in (F16, F32, Q8, Q8S):
        return draft.emit(Op.CONCATENATION, [*values, axis], first.form)
    if first.type == I32:
        raise UnsupportedOperatorError("the HAL joins no integers")
    floats = [draft.cast(value, np.float32) for value in values]
    return draft.cast(concatenate(draft, floats, axis), first.dtype)


def slice_(
    draft: Composer, value: Value, begin: Sequence[int], size: Sequence[int]
) -> Value:
    """Return ``size`` elements from ``begin`` on along each axis."""
    if tuple(size) == value.shape:
        return value
    if not all(size):
        return draft.constant(np.zeros(tuple(size), value.dtype))
    if value.is_constant and value.form.channels is None:
        index = tuple(slice(b, b + n) for b, n in zip(begin, size, strict=True))
        return draft.constant_like(value, lambda data: data[index])
    cut = [axis for axis, n in enumerate(value.shape) if size[axis] != n]
    lengths, places = merged_axes(value.shape, cut)
    if len(lengths) > MAX_RANK:
        for axis in cut:
            three = draft.as_three(value, axis)
            parts = (three.shape[0], size[axis], three.shape[2])
            piece = slice_(draft, three, (0, begin[axis], 0), parts)
            shape = (*value.shape[:axis], size[axis], *value.shape[axis + 1 :])
            value = draft.reshape(piece, shape)
        return value
    # -1 stands for all that is left, whatever the length of the axis.
    starts, sizes = [0] * len(lengths), [-1] * len(lengths)
    for axis, place in places.items():
        starts[place] = begin[axis]
        if begin[axis] + size[axis] < value.shape[axis]:
            sizes[place] = size[axis]

    def move(moved: Value) -> Value:
        return draft.emit(Op.SLICE, [draft.reshape(moved, lengths), starts, sizes])

    return draft.reshape(draft.through(value, move, I32), tuple(size))


def sliced(
    draft: Composer, value: Value, slices: Sequence[tuple[int, int, int]]
) -> Value:
    """Return the elements from a start up to an end, by a step, along each axis.

    An end of -1 behind a negative step stands for what is before the first element.
    """
    counts = [len(range(*found)) for found in slices]
    if not all(counts):
        return draft.constant(np.zeros(counts, value.dtype))
    begin = [start for start, _, _ in slices]
    for axis, (start, _, step) in enumerate(slices):
        count = counts[axis]
        if step == 1:
            continue
        indices = np.arange(start, start + step * count, step, dtype=np.int32)
        if step == -1 and count == value.shape[axis]:
            value = reverse(draft, value, axis)
        else:
            value = gather(draft, value, draft.constant(indices), axis)
        begin[axis] = 0
    return slice_(draft, value, begin, counts)


def reverse(draft: Composer, value: Value, axis: int) -> Value:
    """Return the elements along ``axis`` in reverse order."""

    def move(moved: Value) -> Value:
        if moved.rank <= MAX_RANK:
            return draft.emit(Op.REVERSE, [moved, (axis,)])
        three = draft.as_three(moved, axis)
        return draft.reshape(draft.emit(Op.REVERSE, [three, (1,)]), value.shape)

    return draft.through(value, move, I32)


def gather(draft: Composer, value: Value, indices: Value, axis: int) -> Value:
    """Return the slices along ``axis`` at ``indices``, none of which is negative."""
    shape = (*value.shape[:axis], *indices.shape, *value.shape[axis + 1 :])
    if indices.rank != 1 and max(len(shape), value.rank) > MAX_RANK:
        indices = draft.reshape(indices, (math.prod(indices.shape),))

    def move(moved: Value) -> Value:
        if moved.rank <= MAX_RANK:
            return draft.emit(Op.GATHER, [moved, axis, indices])
        three = draft.as_three(moved, axis)
        return draft.emit(Op.GATHER, [three, 1, indices])

    return draft.reshape(draft.through(value, move, I32), shape)


def split(
    draft: Composer, value: Value, axis: int, sizes: Sequence[int]
) -> list[Value]:
    """Return pieces of ``sizes`` along ``axis``."""
    if sum(sizes) != value.shape[axis] or any(size < 0 for size in sizes):
        raise InvalidArgumentError(f"{value.shape[axis]} elements are no {list(sizes)}")
    pieces = []
    begin = [0] * value.rank
    for size in sizes:
        shape = [*value.shape[:axis], size, *value.shape[axis + 1 :]]
        pieces.append(slice_(draft, value, begin, shape))
        begin[axis] += size
    return pieces


def pad(
    draft: Composer, value: Value, pads: Sequence[tuple[int, int]], fill: float = 0.0
) -> Value:
    """Return ``value`` with so many elements before and behind each axis.

    Negative numbers cut elements off.
    """
    cut = [(min(a, 0), min(b, 0)) for a, b in pads]
    begin = [-a for a, _ in cut]
    size = [n + a + b for n, (a, b) in zip(value.shape, cut, strict=True)]
    value = slice_(draft, value, begin, size)
    pads = [(max(a, 0), max(b, 0)) for a, b in pads]
    padded = [axis for axis, pair in enumerate(pads) if any(pair)]
    if not padded:
        return value
    lengths, places = merged_axes(value.shape, padded)
    if len(lengths) > MAX_RANK:
        for axis in padded:
            one = [pair if a == axis else (0, 0) for a, pair in enumerate(pads)]
            value = pad(draft, value, one, fill)
        return value
    matrix = np.zeros((len(lengths), 2), np.int32)
    for axis, place in places.items():
        matrix[place] = pads[axis]
    shape = tuple(a + n + b for n, (a, b) in zip(value.shape, pads, strict=True))
    scalar = int(fill) if value.type in (Q8, Q8S) else float(fill)
    draft.allowance.take_elements(matrix.shape)

    def move(moved: Value) -> Value:
        flat = draft.reshape(moved, lengths)
        return draft.emit(Op.PAD_V2, [flat, draft.constant(matrix), scalar])

    return draft.reshape(draft.through(value, move), shape)
