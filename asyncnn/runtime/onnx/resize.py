"""Resize and Upsample.

Where the HAL's own operation means the same it is used; else the nearest elements are
gathered by indices. What interpolates otherwise has no form in the HAL.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.drafting import F16, F32, Value
from asyncnn.runtime.moves import gather
from asyncnn.runtime.onnx.node import Converter, OnnxNode

_MAX_LENGTH = 1 << 16


class _Axis(msgspec.Struct, frozen=True):
    """How one axis is resized."""

    length: int
    output: int
    scale: float


def _axes(node: OnnxNode) -> dict[int, _Axis]:
    """Return the axes that change."""
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
        if len(sizes) != len(places):
            raise InvalidArgumentError(f"sizes {sizes}")
        factors = [m / n for m, n in zip(sizes, lengths, strict=True)]
    if not all(0 < size < _MAX_LENGTH for size in sizes):
        raise InvalidArgumentError(f"sizes {sizes}")
    rows = zip(places, lengths, sizes, factors, strict=True)
    found = {place: _Axis(*rest) for place, *rest in rows}
    return {
        a: one for a, one in found.items() if (one.output, one.scale) != (one.length, 1)
    }


def _coordinates(node: OnnxNode, mode: str, axis: _Axis) -> Array:
    """Return where, on the input's axis, each element of the output lies."""
    places = np.arange(axis.output, dtype=np.float64)
    match mode:
        case "half_pixel":
            return (places + 0.5) / axis.scale - 0.5
        case "asymmetric":
            return places / axis.scale
    raise node.refuse(f"coordinates by {mode!r}")


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


def _resize(node: OnnxNode) -> Value:
    value, draft = node.input(0), node.draft
    if node.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise node.refuse("sizes that keep the aspect")
    axes = _axes(node)
    mode = node.attribute("mode", "nearest")
    old = node.name == "Upsample" or node.opset < 11
    default = "asymmetric" if old else "half_pixel"
    transform = node.attribute("coordinate_transformation_mode", default)
    nearest = node.attribute("nearest_mode", "floor" if old else "round_prefer_floor")
    if (
        transform == "pytorch_half_pixel"
        and min((axis.output for axis in axes.values()), default=2) > 1
    ):
        transform = "half_pixel"
    if not axes and transform != "tf_crop_and_resize":
        return value
    own = _native(node, axes, mode, transform, nearest)
    if own is not None:
        return own
    if mode != "nearest":
        raise node.refuse(f"resizing by {mode!r}, with coordinates by {transform!r}")
    for place, axis in axes.items():
        where = _coordinates(node, transform, axis)
        indices = draft.constant(_nearest(nearest, where, axis.length))
        value = gather(draft, value, indices, place)
    return value


def _native(
    node: OnnxNode, axes: dict[int, _Axis], mode: str, transform: str, nearest: str
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
