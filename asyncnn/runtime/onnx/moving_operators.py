"""Operators that move elements or pick them: reshape, join, slice, pad, gather.

All that pick by index are gathers from one axis.
"""

import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.composing import Composer
from asyncnn.runtime.drafting import F16, F32, Q8, Q8S, Value
from asyncnn.runtime.moves import concatenate, gather, pad, sliced, split, transpose
from asyncnn.runtime.onnx.folding import (
    flat_shape,
    permutation,
    reshaped,
    slices_of,
    squeezed,
    unsqueezed,
)
from asyncnn.runtime.onnx.node import Converter, OnnxNode


def _slice(node: OnnxNode) -> Value:
    value = node.input(0)
    return sliced(node.draft, value, slices_of(node, value.shape))


def _split(node: OnnxNode) -> list[Value]:
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


def _concat(node: OnnxNode) -> Value:
    values = node.inputs()
    axis = node.axis(node.attribute("axis", 0), values[0].rank)
    return concatenate(node.draft, values, axis)


def _pad(node: OnnxNode) -> Value:
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


def _tile(node: OnnxNode) -> Value:
    value, repeats = node.input(0), node.integers(1)
    if len(repeats) != value.rank or any(count < 1 for count in repeats):
        raise InvalidArgumentError(f"{list(value.shape)} times {repeats}")
    for axis, count in enumerate(repeats):
        value = node.draft.tile(value, axis, count)
    return value


def _expand(node: OnnxNode) -> Value:
    value = node.input(0)
    try:
        shape = np.broadcast_shapes(value.shape, tuple(node.integers(1)))
    except ValueError:
        raise InvalidArgumentError(f"{list(value.shape)} does not expand") from None
    return node.draft.expand(value, shape)


def _transpose(node: OnnxNode) -> Value:
    value = node.input(0)
    return transpose(node.draft, value, permutation(node, value.rank))


def _depth_to_space(node: OnnxNode) -> Value:
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


def _space_to_depth(node: OnnxNode) -> Value:
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


def _gather(node: OnnxNode) -> Value:
    value = node.input(0)
    axis = node.axis(node.attribute("axis", 0), value.rank)
    indices = whole_indices(node.draft, node.input(1), value.shape[axis])
    return gather(node.draft, value, indices, axis)


def _roi_align(node: OnnxNode) -> Value:
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


def _eye_like(node: OnnxNode) -> Value:
    shape = node.input(0).shape
    dtype = node.input(0).dtype
    if node.attribute("dtype") is not None:
        dtype = node.dtype("dtype")
    if len(shape) != 2:
        raise InvalidArgumentError(f"an identity of shape {list(shape)}")
    node.draft.allowance.take_elements(shape)
    return node.draft.constant(np.eye(*shape, node.attribute("k", 0), dtype))


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
    "Gather": _gather,
    "RoiAlign": _roi_align,
    "EyeLike": _eye_like,
}
