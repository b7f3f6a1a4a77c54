"""Operations that pick elements by index, and their reverse.

All are gathers from one axis: indices of several axes are first made one number each.
Scattering needs indices that are known, and is a gather from both tensors.
"""

import math
from collections.abc import Sequence

import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array, Shape
from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.onnx.composing import Composer
from asyncnn.runtime.onnx.emitter import F32, Value
from asyncnn.runtime.onnx.node import Converter, Node
from asyncnn.runtime.onnx.reshaping import concatenate, gather, slice_


def whole_indices(draft: Composer, indices: Value, length: int) -> Value:
    """Return ``indices`` counted from the front.

    :raises InvalidArgumentError: if one that is known is outside of ``length``.
    """
    if indices.data is not None:
        data = indices.data
        if data.size and not (-length <= data.min() and data.max() < length):
            raise InvalidArgumentError(f"an index is outside of {length} elements")
        return draft.constant(np.where(data < 0, data + length, data).astype(np.int32))
    indices = draft.cast(indices, np.int32)
    is_below = draft.compare(Op.LESS, indices, 0)
    return draft.select(is_below, draft.add(indices, length), indices)


def _gather(node: Node) -> Value:
    value = node.input(0)
    axis = node.axis(node.attribute("axis", 0), value.rank)
    indices = whole_indices(node.draft, node.input(1), value.shape[axis])
    return gather(node.draft, value, indices, axis)


def _strides(shape: Shape) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _grid(shape: Shape, strides: Sequence[int], skipped: Sequence[int]) -> Array:
    """Return, of each place in ``shape``, its distance along axes not ``skipped``."""
    total = np.zeros((1,) * len(shape), np.int32)
    for axis, length in enumerate(shape):
        if axis not in skipped:
            steps = np.arange(length, dtype=np.int32) * strides[axis]
            total = total + steps.reshape(
                [-1 if a == axis else 1 for a in range(len(shape))]
            )
    return np.broadcast_to(total, shape).astype(np.int32)


def _gather_elements(node: Node) -> Value:
    value, draft = node.input(0), node.draft
    axis = node.axis(node.attribute("axis", 0), value.rank)
    indices = whole_indices(draft, node.input(1), value.shape[axis])
    if indices.rank != value.rank:
        raise InvalidArgumentError(f"indices of rank {indices.rank}")
    strides = _strides(value.shape)
    draft.allowance.take_elements(indices.shape)
    base = _grid(indices.shape, strides, [axis])
    places = draft.add(draft.mul(indices, strides[axis]), draft.constant(base))
    flat = draft.reshape(value, (math.prod(value.shape),))
    return gather(draft, flat, places, 0)


def _linear(node: Node, value: Value, indices: Value, batch: int) -> Value:
    """Return the places, among rows, that vectors of indices mean."""
    draft = node.draft
    count = indices.shape[-1]
    if batch + count > value.rank:
        raise InvalidArgumentError(f"vectors of {count} indices")
    shape = value.shape[: batch + count]
    strides = _strides(shape)
    outer = indices.shape[:-1]
    draft.allowance.take_elements(outer)
    skipped = list(range(batch, len(outer)))
    grid_strides = [*strides[:batch], *([0] * (len(outer) - batch))]
    total = draft.constant(_grid(outer, grid_strides, skipped))
    for place in range(count):
        begin = [0] * (indices.rank - 1) + [place]
        size = (*outer, 1)
        if indices.data is not None:
            one = draft.constant(indices.data[..., place])
        else:
            one = draft.reshape(slice_(draft, indices, begin, size), outer)
        whole = whole_indices(draft, one, shape[batch + place])
        total = draft.add(draft.mul(whole, strides[batch + place]), total)
    return total


def _gather_nd(node: Node) -> Value:
    value, indices, draft = node.input(0), node.input(1), node.draft
    batch = node.attribute("batch_dims", 0)
    if not 0 <= batch < min(value.rank, indices.rank):
        raise InvalidArgumentError(f"{batch} batch axes")
    places = _linear(node, value, indices, batch)
    rest = value.shape[batch + indices.shape[-1] :]
    rows = draft.reshape(value, (-1 if not rest else _count(value, rest), *rest))
    if not rest:
        rows = draft.reshape(value, (math.prod(value.shape),))
    return gather(draft, rows, places, 0)


def _count(value: Value, rest: Shape) -> int:
    return math.prod(value.shape) // math.prod(rest)


_REDUCTIONS = {"add": Op.ADD, "mul": Op.MUL, "max": Op.MAXIMUM, "min": Op.MINIMUM}


def _scattered(
    node: Node, rows: Value, places: Array, updates: Value, reduction: str
) -> Value:
    """Return ``rows`` with ``updates`` at ``places``, which may be repeated."""
    draft, count = node.draft, rows.shape[0]
    if reduction != "none" and reduction not in _REDUCTIONS:
        raise node.refuse(f"scattering by {reduction!r}")
    both = concatenate(draft, [rows, updates], 0)
    draft.allowance.take_elements((count,))
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    if reduction == "none":
        chosen = np.arange(count, dtype=np.int32)
        chosen[places] = count + np.arange(len(places))
        return gather(draft, both, draft.constant(chosen), 0)
    result = rows
    lengths = np.diff(np.r_[first, len(ordered)])
    draft.allowance.take_steps(int(lengths.max(initial=0)))
    for turn in range(int(lengths.max(initial=0))):
        found = order[first[lengths > turn] + turn]
        chosen = np.zeros(count, np.int32)
        chosen[places[found]] = found
        is_there = np.zeros((count,) + (1,) * (rows.rank - 1), np.bool_)
        is_there[places[found]] = True
        picked = gather(draft, updates, draft.constant(chosen), 0)
        changed = draft.binary(_REDUCTIONS[reduction], result, picked)
        result = draft.select(draft.constant(is_there), changed, result)
    return result


def _scatter_elements(node: Node) -> Value:
    value, draft = node.input(0), node.draft
    axis = node.axis(node.attribute("axis", 0), value.rank)
    indices = node.data(1)
    if indices.ndim != value.rank or not indices.size:
        raise InvalidArgumentError(f"indices of shape {list(indices.shape)}")
    if any(
        n > value.shape[a] for a, n in enumerate(indices.shape) if a != axis
    ) or not (
        -value.shape[axis] <= indices.min() and indices.max() < value.shape[axis]
    ):
        raise InvalidArgumentError("an index is outside of its tensor")
    strides = _strides(value.shape)
    whole = np.where(indices < 0, indices + value.shape[axis], indices)
    places = whole * strides[axis] + _grid(indices.shape, strides, [axis])
    flat = draft.reshape(value, (math.prod(value.shape),))
    updates = draft.reshape(node.input(2), (indices.size,))
    reduction = node.attribute("reduction", "none")
    result = _scattered(node, flat, places.reshape(-1), updates, reduction)
    return draft.reshape(result, value.shape)


def _scatter_nd(node: Node) -> Value:
    value, draft = node.input(0), node.draft
    indices = node.data(1)
    count = indices.shape[-1] if indices.ndim else 0
    if not 0 < count <= value.rank:
        raise InvalidArgumentError(f"indices of shape {list(indices.shape)}")
    places = _linear(node, value, draft.constant(indices), 0)
    total = _known(places, indices, value.shape[:count])
    rest = value.shape[count:]
    rows = draft.reshape(value, (math.prod(value.shape[:count]), *rest))
    updates = draft.reshape(node.input(2), (total.size, *rest))
    reduction = node.attribute("reduction", "none")
    result = _scattered(node, rows, total, updates, reduction)
    return draft.reshape(result, value.shape)


def _known(places: Value, indices: Array, shape: Shape) -> Array:
    lengths = np.array(shape)
    if (indices < -lengths).any() or (indices >= lengths).any():
        raise InvalidArgumentError("an index is outside of its tensor")
    whole = np.where(indices < 0, indices + lengths, indices)
    return np.asarray(whole @ np.array(_strides(shape))).reshape(-1)


def _one_hot(node: Node) -> Value:
    indices, draft = node.input(0), node.draft
    depth = int(node.number(1))
    if depth < 1:
        raise InvalidArgumentError(f"a depth of {depth}")
    axis = node.axis(node.attribute("axis", -1), indices.rank + 1)
    whole = draft.cast(indices, np.int32)
    is_below = draft.compare(Op.LESS, whole, 0)
    whole = draft.select(is_below, draft.add(whole, depth), whole)
    shape = (*indices.shape[:axis], 1, *indices.shape[axis:])
    draft.allowance.take_elements((depth,))
    steps = np.arange(depth, dtype=np.int32)
    steps = steps.reshape([-1 if a == axis else 1 for a in range(len(shape))])
    is_there = draft.compare(
        Op.EQUAL, draft.reshape(whole, shape), draft.constant(steps)
    )
    values = node.input(2)
    off, on = (
        draft.constant(values.data.reshape(-1)[place])
        if values.data is not None
        else draft.reshape(slice_(draft, values, (place,), (1,)), ())
        for place in range(2)
    )
    return draft.select(is_there, on, off)


def _roi_align(node: Node) -> Value:
    value, regions, draft = node.input(0), node.input(1), node.draft
    if node.attribute("mode", "avg") != "avg":
        raise node.refuse("the HAL averages in regions only")
    standard = "half_pixel" if node.opset >= 16 else "output_half_pixel"
    mode = node.attribute("coordinate_transformation_mode", standard)
    if mode != "output_half_pixel" or value.type != F32:
        raise node.refuse(f"regions by {mode!r}, which the HAL widens to one pixel")
    size = node.attribute("output_height", 1), node.attribute("output_width", 1)
    ratio = 1.0 / node.attribute("spatial_scale", 1.0)
    samples = node.attribute("sampling_ratio", 0)
    batches = draft.cast(node.input(2), np.int32)
    scalars = [*size, ratio, ratio, samples, samples, True]
    return draft.emit(Op.ROI_ALIGN, [value, regions, batches, *scalars])


def _reverse_sequence(node: Node) -> Value:
    value, draft = node.input(0), node.draft
    lengths = node.integers(1)
    time, batch = node.attribute("time_axis", 0), node.attribute("batch_axis", 1)
    if {time, batch} != {0, 1} or value.rank < 2 or len(lengths) != value.shape[batch]:
        raise InvalidArgumentError(f"axes {time} and {batch}")
    places = np.tile(np.arange(value.shape[time]), (value.shape[batch], 1))
    for row, length in enumerate(lengths):
        if not 0 <= length <= value.shape[time]:
            raise InvalidArgumentError(f"a sequence of {length}")
        places[row, :length] = places[row, :length][::-1]
    others = np.arange(value.shape[batch])[:, None]
    linear = places + others * value.shape[1]
    if time == 0:
        linear = (places * value.shape[1] + others).T
    rows = draft.reshape(value, (value.shape[0] * value.shape[1], *value.shape[2:]))
    return gather(draft, rows, draft.constant(linear.astype(np.int32)), 0)


def _eye_like(node: Node) -> Value:
    shape = node.input(0).shape
    dtype = node.input(0).dtype
    if node.attribute("dtype") is not None:
        dtype = node.dtype("dtype")
    if len(shape) != 2:
        raise InvalidArgumentError(f"an identity of shape {list(shape)}")
    node.draft.allowance.take_elements(shape)
    return node.draft.constant(np.eye(*shape, node.attribute("k", 0), dtype))


CONVERTERS: dict[str, Converter] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterElements": _scatter_elements,
    "Scatter": _scatter_elements,
    "ScatterND": _scatter_nd,
    "OneHot": _one_hot,
    "RoiAlign": _roi_align,
    "ReverseSequence": _reverse_sequence,
    "EyeLike": _eye_like,
}
