"""Resize and Upsample.

Where the HAL's own operation means the same it is used. All else is exact as well: the
nearest elements by indices, and interpolation as a product with a matrix for each axis,
as sizes are known.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.onnx.emitter import F16, F32, Value
from asyncnn.runtime.onnx.matmul import connected
from asyncnn.runtime.onnx.node import Converter, Node
from asyncnn.runtime.onnx.reshaping import gather, transpose

_MAX_LENGTH = 1 << 16


class _Axis(msgspec.Struct, frozen=True):
    """How one axis is resized."""

    length: int
    output: int
    scale: float
    start: float = 0.0
    end: float = 1.0


def _axes(node: Node) -> dict[int, _Axis]:
    """Return the axes that change, or are cut out."""
    value = node.input(0)
    rank = value.rank
    places = node.attribute("axes", list(range(rank)))
    places = [node.axis(axis, rank) for axis in places]
    at = 1 if node.name == "Upsample" or node.opset < 11 else 2
    scales = node.data(at).reshape(-1) if node.has(at) else np.zeros(0, np.float32)
    lengths = [value.shape[axis] for axis in places]
    if scales.size:
        factors = [float(x) for x in scales]
        if len(factors) != len(places) or not all(0 < f < 1e6 for f in factors):
            raise InvalidArgumentError(f"scales {factors[:8]}")
        sizes = [math.floor(n * f) for n, f in zip(lengths, factors, strict=True)]
    else:
        sizes = node.integers(3)
        if len(sizes) != len(places) or not all(n > 0 for n in sizes):
            raise InvalidArgumentError(f"sizes {sizes}")
        factors = [m / n for m, n in zip(sizes, lengths, strict=True)]
        policy = node.attribute("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            one = min(factors) if policy == "not_larger" else max(factors)
            factors = [one] * len(places)
            sizes = [math.floor(one * n + 0.5) for n in lengths]
    if not all(0 < size < _MAX_LENGTH for size in sizes):
        raise InvalidArgumentError(f"sizes {sizes}")
    roi = [0.0] * len(places) + [1.0] * len(places)
    if node.attribute("coordinate_transformation_mode", "") == "tf_crop_and_resize":
        roi = [float(x) for x in node.data(1).reshape(-1)]
        if len(roi) != 2 * len(places):
            raise InvalidArgumentError(f"a region of {len(roi)} numbers")
    count = len(places)
    found = {
        axis: _Axis(lengths[i], sizes[i], factors[i], roi[i], roi[count + i])
        for i, axis in enumerate(places)
    }
    return {
        axis: one
        for axis, one in found.items()
        if one.length != one.output or one.scale != 1 or (one.start, one.end) != (0, 1)
    }


def _coordinates(mode: str, axis: _Axis) -> Array:
    """Return where, on the input's axis, each element of the output lies."""
    places = np.arange(axis.output, dtype=np.float64)
    half = (places + 0.5) / axis.scale - 0.5
    match mode:
        case "half_pixel":
            return half
        case "pytorch_half_pixel":
            return half if axis.output > 1 else np.zeros(1)
        case "half_pixel_symmetric":
            adjustment = axis.output / (axis.scale * axis.length)
            return axis.length / 2 * (1 - adjustment) + half
        case "asymmetric":
            return places / axis.scale
        case "align_corners":
            # By the factor as it is given, not by the whole length that comes of it.
            last = axis.scale * axis.length - 1
            return places * (axis.length - 1) / last if last else places * 0
        case "tf_crop_and_resize":
            last = axis.length - 1
            if axis.output == 1:
                return np.array([0.5 * (axis.start + axis.end) * last])
            step = (axis.end - axis.start) * last / (axis.output - 1)
            return axis.start * last + places * step
    raise InvalidArgumentError(f"coordinates by {mode!r}")


def _nearest(mode: str, where: Array, length: int) -> Array:
    match mode:
        case "round_prefer_floor":
            found = np.ceil(where - 0.5)
        case "round_prefer_ceil":
            found = np.floor(where + 0.5)
        case "floor":
            found = np.floor(where)
        case "ceil":
            found = np.ceil(where)
        case _:
            raise InvalidArgumentError(f"nearest elements by {mode!r}")
    return np.clip(found, 0, length - 1).astype(np.int32)


def _kernel(mode: str, distance: Array, slope: float) -> Array:
    """Return the weight of an element at a distance."""
    far = np.abs(distance)
    if mode == "linear":
        return np.maximum(0.0, 1.0 - far)
    near = ((slope + 2) * far - (slope + 3)) * far * far + 1
    rest = ((slope * far - 5 * slope) * far + 8 * slope) * far - 4 * slope
    return np.where(far <= 1, near, np.where(far < 2, rest, 0.0))


def _weights(node: Node, mode: str, where: Array, axis: _Axis) -> Array:
    """Return the matrix of weights, [output, input]."""
    slope = node.attribute("cubic_coeff_a", -0.75)
    radius = 1 if mode == "linear" else 2
    squeeze = min(axis.scale, 1.0) if node.attribute("antialias", 0) else 1.0
    reach = math.ceil(radius / squeeze)
    node.draft.allowance.take_elements((axis.output, max(axis.length, 2 * reach + 1)))
    matrix = np.zeros((axis.output, axis.length))
    rows = np.arange(axis.output)
    base = np.floor(where).astype(np.int64)
    outside = node.attribute("exclude_outside", 0)
    for step in range(-reach, reach + 2):
        place = base + step
        weight = _kernel(mode, (place - where) * squeeze, slope)
        if outside:
            weight = np.where((place >= 0) & (place < axis.length), weight, 0.0)
        np.add.at(matrix, (rows, np.clip(place, 0, axis.length - 1)), weight)
    if outside or squeeze != 1:
        matrix /= matrix.sum(1, keepdims=True)
    return matrix


def _resize(node: Node) -> Value:
    value, draft = node.input(0), node.draft
    axes = _axes(node)
    mode = node.attribute("mode", "nearest")
    old = node.name == "Upsample" or node.opset < 11
    default = "asymmetric" if old else "half_pixel"
    transform = node.attribute("coordinate_transformation_mode", default)
    nearest = node.attribute("nearest_mode", "floor" if old else "round_prefer_floor")
    if not axes:
        return value
    own = _native(node, axes, mode, transform, nearest)
    if own is not None:
        return own
    if mode == "nearest":
        for place, axis in axes.items():
            where = _coordinates(transform, axis)
            indices = draft.constant(_nearest(nearest, where, axis.length))
            value = gather(draft, value, indices, place)
        return _extrapolated(node, value, axes, transform)
    if mode not in ("linear", "cubic") or value.type not in (F16, F32):
        raise node.refuse(f"resizing by {mode!r}")
    for place, axis in axes.items():
        matrix = _weights(node, mode, _coordinates(transform, axis), axis)
        value = _multiplied(node, value, matrix.astype(value.dtype), place)
    return _extrapolated(node, value, axes, transform)


def _multiplied(node: Node, value: Value, matrix: Array, place: int) -> Value:
    """Return ``value`` with axis ``place`` multiplied by ``matrix``."""
    draft = node.draft
    order = [axis for axis in range(value.rank) if axis != place] + [place]
    last = transpose(draft, value, order)
    rows = draft.reshape(last, (math.prod(last.shape[:-1]), last.shape[-1]))
    result = connected(draft, rows, draft.constant(matrix), None)
    shape = (*last.shape[:-1], matrix.shape[0])
    back = [order.index(axis) for axis in range(value.rank)]
    return transpose(draft, draft.reshape(result, shape), back)


def _extrapolated(
    node: Node, value: Value, axes: dict[int, _Axis], transform: str
) -> Value:
    """Return ``value`` with another one where it would lie outside of the region."""
    if transform != "tf_crop_and_resize":
        return value
    draft, outside = node.draft, node.attribute("extrapolation_value", 0.0)
    for place, axis in axes.items():
        where = _coordinates(transform, axis)
        is_out = (where < 0) | (where > axis.length - 1)
        if is_out.any():
            shape = [-1 if a == place else 1 for a in range(value.rank)]
            mask = draft.constant(is_out.reshape(shape))
            value = draft.select(mask, outside, value, like=value)
    return value


def _native(
    node: Node, axes: dict[int, _Axis], mode: str, transform: str, nearest: str
) -> Value | None:
    """Return what the HAL's operation computes if it means the same."""
    value = node.input(0)
    if value.rank != 4 or not set(axes) <= {2, 3} or node.attribute("antialias", 0):
        return None
    for axis in axes.values():
        if abs(axis.scale * axis.length - axis.output) > 1e-6 * axis.output:
            return None
    sizes: Sequence[float] = [
        axes[place].output if place in axes else value.shape[place] for place in (3, 2)
    ]
    if all(float(axes[p].scale).is_integer() for p in axes) and node.has(2):
        # Factors do not depend on the size of the image, which may be open.
        sizes = [float(axes[p].scale) if p in axes else 1.0 for p in (3, 2)]
    if mode == "nearest":
        is_whole = all(float(axis.scale).is_integer() for axis in axes.values())
        if (transform, nearest) != ("asymmetric", "floor") or not is_whole:
            return None
        flags = (False, False)
        return node.draft.emit(
            Op.RESIZE_NEAREST_NEIGHBOR, [value, *sizes, True, *flags]
        )
    known = {
        "half_pixel": (False, True),
        "asymmetric": (False, False),
        "align_corners": (True, False),
    }
    if mode != "linear" or transform not in known:
        return None
    if value.type not in (F16, F32):
        return None
    if transform == "align_corners" and 1 in [axis.output for axis in axes.values()]:
        return None
    flags = known[transform]
    return node.draft.emit(Op.RESIZE_BILINEAR, [value, *sizes, True, *flags])


CONVERTERS: dict[str, Converter] = {"Resize": _resize, "Upsample": _resize}
