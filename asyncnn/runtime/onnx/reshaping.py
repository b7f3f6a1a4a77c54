"""Operations that move elements: reshape, transpose, join, slice, pad, repeat."""

import math
from collections.abc import Sequence

import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.axes import MAX_RANK, merged_axes, transpositions
from asyncnn.runtime.onnx.composing import Composer
from asyncnn.runtime.onnx.emitter import (
    F16,
    F32,
    I32,
    Q8,
    Q8S,
    Value,
)
from asyncnn.runtime.onnx.folding import (
    flat_shape,
    permutation,
    reshaped,
    slices_of,
    squeezed,
    unsqueezed,
)
from asyncnn.runtime.onnx.node import Converter, Node
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
    # -1 stands for all that is left, whatever the length of the axis.
    starts, sizes = [0] * len(lengths), [-1] * len(lengths)
    for axis, place in places.items():
        starts[place] = begin[axis]
        if begin[axis] + size[axis] < value.shape[axis]:
            sizes[place] = size[axis]

    def move(moved: Value) -> Value:
        return draft.emit(Op.SLICE, [draft.reshape(moved, lengths), starts, sizes])

    return draft.reshape(draft.through(value, move, I32), tuple(size))


def _slice(node: Node) -> Value:
    value, draft = node.input(0), node.draft
    slices = slices_of(node, value.shape)
    counts = [len(range(*found)) for found in slices]
    if not all(counts):
        return draft.constant(np.zeros(counts, value.dtype))
    for axis, (start, _, step) in enumerate(slices):
        count = counts[axis]
        if step == 1:
            continue
        indices = np.arange(start, start + step * count, step, dtype=np.int32)
        if step == -1 and count == value.shape[axis]:
            value = reverse(draft, value, axis)
        else:
            value = gather(draft, value, draft.constant(indices), axis)
        slices[axis] = (0, count, 1)
    return slice_(draft, value, [found[0] for found in slices], counts)


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
    flat = draft.reshape(indices, (math.prod(indices.shape),))

    def move(moved: Value) -> Value:
        if moved.rank <= MAX_RANK:
            return draft.emit(Op.GATHER, [moved, axis, flat])
        three = draft.as_three(moved, axis)
        return draft.emit(Op.GATHER, [three, 1, flat])

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


def _split(node: Node) -> list[Value]:
    value = node.input(0)
    axis = node.axis(node.attribute("axis", 0), value.rank)
    sizes = node.given("split", 1)
    if sizes is None:
        count = node.attribute("num_outputs", node.output_count)
        if not 0 < count <= value.shape[axis]:
            raise InvalidArgumentError(f"{value.shape[axis]} elements in {count}")
        size = -(-value.shape[axis] // count)
        sizes = [size] * (count - 1)
        sizes.append(value.shape[axis] - sum(sizes))
    return split(node.draft, value, axis, sizes)


def _concat(node: Node) -> Value:
    values = node.inputs()
    axis = node.axis(node.attribute("axis", 0), values[0].rank)
    return concatenate(node.draft, values, axis)


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


def _pad(node: Node) -> Value:
    value, draft = node.input(0), node.draft
    flat = node.given("pads", 1, [])
    axes = node.integers(3) if node.has(3) else list(range(value.rank))
    count = len(axes)
    if len(flat) != 2 * count:
        raise InvalidArgumentError(f"{len(flat)} paddings for {count} axes")
    pads = [(0, 0)] * value.rank
    for axis, before, after in zip(axes, flat[:count], flat[count:], strict=True):
        pads[node.axis(axis, value.rank)] = (before, after)
    mode = node.attribute("mode", "constant")
    if mode == "constant":
        fill = node.number(2, node.attribute("value", 0.0))
        return pad(draft, value, pads, fill)
    for axis, pair in enumerate(pads):
        if any(pair):
            indices = _padded_indices(mode, value.shape[axis], pair)
            value = gather(draft, value, draft.constant(indices), axis)
    return value


def _padded_indices(
    mode: str, length: int, pair: tuple[int, int]
) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    if max(pair) > 1 << 20 or sum(pair) + length <= 0:
        raise InvalidArgumentError(f"paddings {pair} of {length} elements")
    places = np.arange(-pair[0], length + pair[1])
    if mode == "edge":
        places = np.clip(places, 0, length - 1)
    elif mode == "wrap":
        places %= length
    elif mode == "reflect" and length > 1:
        period = 2 * (length - 1)
        places = np.abs((places + length - 1) % period - (length - 1))
    else:
        raise InvalidArgumentError(f"padding of {length} elements by {mode!r}")
    return places.astype(np.int32)


def _tile(node: Node) -> Value:
    value, repeats = node.input(0), node.integers(1)
    if len(repeats) != value.rank or any(count < 1 for count in repeats):
        raise InvalidArgumentError(f"{list(value.shape)} times {repeats}")
    for axis, count in enumerate(repeats):
        value = node.draft.tile(value, axis, count)
    return value


def _expand(node: Node) -> Value:
    value = node.input(0)
    try:
        shape = np.broadcast_shapes(value.shape, tuple(node.integers(1)))
    except ValueError:
        raise InvalidArgumentError(f"{list(value.shape)} does not expand") from None
    return node.draft.expand(value, shape)


def _transpose(node: Node) -> Value:
    value = node.input(0)
    return transpose(node.draft, value, permutation(node, value.rank))


def _depth_to_space(node: Node) -> Value:
    value, draft = node.input(0), node.draft
    size = node.attribute("blocksize", 1)
    if value.rank != 4 or size < 1 or value.shape[1] % (size * size):
        raise InvalidArgumentError(f"{list(value.shape)} in blocks of {size}")
    n, c, h, w = value.shape
    depth = c // (size * size)
    if node.attribute("mode", "DCR") == "DCR":
        if value.type in (F16, F32, Q8, Q8S):
            return draft.emit(Op.DEPTH_TO_SPACE, [value, size, True])
        parts, axes = (n, size, size, depth, h, w), (0, 3, 4, 1, 5, 2)
    else:
        parts, axes = (n, depth, size, size, h, w), (0, 1, 4, 2, 5, 3)
    moved = transpose(draft, draft.reshape(value, parts), axes)
    return draft.reshape(moved, (n, depth, h * size, w * size))


def _space_to_depth(node: Node) -> Value:
    value, draft = node.input(0), node.draft
    size = node.attribute("blocksize", 1)
    if value.rank != 4 or size < 1 or any(n % size for n in value.shape[2:]):
        raise InvalidArgumentError(f"{list(value.shape)} in blocks of {size}")
    is_native = value.type in (F16, F32, Q8, Q8S)
    if node.attribute("mode", "DCR") == "DCR" and is_native:
        return draft.emit(Op.SPACE_TO_DEPTH, [value, size, True])
    n, c, h, w = value.shape
    parts = draft.reshape(value, (n, c, h // size, size, w // size, size))
    last = (3, 5, 1) if node.attribute("mode", "DCR") == "DCR" else (1, 3, 5)
    moved = transpose(draft, parts, (0, *last, 2, 4))
    return draft.reshape(moved, (n, c * size * size, h // size, w // size))


CONVERTERS: dict[str, Converter] = {
    "Reshape": lambda n: n.draft.reshape(n.input(0), reshaped(n, n.input(0).shape)),
    "Flatten": lambda n: n.draft.reshape(n.input(0), flat_shape(n, n.input(0).shape)),
    "Squeeze": lambda n: n.draft.reshape(n.input(0), squeezed(n, n.input(0).shape)),
    "Unsqueeze": lambda n: n.draft.reshape(n.input(0), unsqueezed(n, n.input(0).shape)),
    "Transpose": _transpose,
    "Concat": _concat,
    "Slice": _slice,
    "Split": _split,
    "Pad": _pad,
    "Tile": _tile,
    "Expand": _expand,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "Identity": lambda n: (
        n.input(0).alias(n.input(0).shape, n.input(0).dtype)
        if not n.input(0).is_constant
        else n.input(0)
    ),
}
