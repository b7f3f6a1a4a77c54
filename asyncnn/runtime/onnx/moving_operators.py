"""Operators that move elements or pick them: reshape, join, slice, pad, gather.

All that pick by index are gathers from one axis.
"""

import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import OperationType as Op
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
    raise node.refuse(f"padding by {mode!r}")


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


def _in_blocks(type_: Op) -> Converter:
    def convert(node: OnnxNode) -> Value:
        mode = node.attribute("mode", "DCR")
        if mode != "DCR" or node.input(0).type not in (F16, F32, Q8, Q8S):
            raise node.refuse(f"blocks of {node.input(0).dtype} by {mode!r}")
        size = node.attribute("blocksize", 1)
        return node.draft.emit(type_, [node.input(0), size, True])

    return convert


def _gather(node: OnnxNode) -> Value:
    value, indices = node.input(0), node.data(1)
    axis = node.axis(node.attribute("axis", 0), value.rank)
    length = value.shape[axis]
    if indices.size and not (-length <= indices.min() and indices.max() < length):
        raise InvalidArgumentError(f"an index is outside of {length} elements")
    places = np.where(indices < 0, indices + length, indices).astype(np.int32)
    return gather(node.draft, value, node.draft.constant(places), axis)


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
    "DepthToSpace": _in_blocks(Op.DEPTH_TO_SPACE),
    "SpaceToDepth": _in_blocks(Op.SPACE_TO_DEPTH),
    "Identity": lambda n: (
        n.input(0).alias(n.input(0).shape, n.input(0).dtype)
        if not n.input(0).is_constant
        else n.input(0)
    ),
    "Gather": _gather,
    "RoiAlign": _roi_align,
}
