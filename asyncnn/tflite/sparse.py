"""Reads sparse constants: the values that are there, and where they belong.

A tensor of rank R with blocks along B axes is stored as one of rank R + B, whose axes
are stored in some order, each either dense or compressed: then segments, one for each
place that the axes before lead to, say which indices along it there are.

Source: the TFLite schema (SparsityParameters, DimensionMetadata), version 3.
"""

import math
from typing import Any

import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array, Shape
from asyncnn.lazy import module_alone

_DENSE, _COMPRESSED = 0, 1
_VECTORS = ("", "Int32Vector", "Uint16Vector", "Uint8Vector")
_MOST_AXES = 16


def densify(sparsity: Any, values: Array, shape: Shape) -> Array:
    """Return the dense array of ``shape`` whose stored ``values`` lie as recorded.

    :raises InvalidArgumentError: if the parameters contradict the values or the shape.
    """
    order, blocked = _vector(sparsity, "TraversalOrder"), _vector(sparsity, "BlockMap")
    rank, count = len(shape), len(shape) + len(blocked)
    _require(sorted(order) == list(range(count)), f"traversal order {order[:20]}")
    _require(count <= _MOST_AXES, f"{count} axes")
    _require(sparsity.DimMetadataLength() == count, "as many descriptions as axes")
    _require(
        len(set(blocked)) == len(blocked) and all(0 <= a < rank for a in blocked),
        f"block map {blocked[:20]}",
    )
    levels = [sparsity.DimMetadata(level) for level in range(count)]
    sizes = _sizes(shape, order, blocked, levels)
    coordinates = _coordinates(order, levels, sizes, values.size)
    places = np.zeros(values.size, np.int64)
    for axis, length in enumerate(shape):
        along = coordinates[axis]
        if axis in blocked:
            block = rank + blocked.index(axis)
            along = along * sizes[block] + coordinates[block]
        places = places * length + along
    dense = np.zeros(math.prod(shape), values.dtype)
    dense[places] = values
    return dense.reshape(shape)


def _sizes(
    shape: Shape, order: list[int], blocked: list[int], levels: list[Any]
) -> list[int]:
    """Return the length of each axis: first whole blocks, then what is in a block."""
    sizes = list(shape)
    for position, axis in enumerate(blocked):
        level = order.index(len(shape) + position)
        size = levels[level].DenseSize()
        _require(levels[level].Format() == _DENSE and size > 0, f"blocks of {size}")
        _require(shape[axis] % size == 0, f"blocks of {size} along {shape[axis]}")
        sizes[axis] //= size
        sizes.append(size)
    return sizes


def _coordinates(
    order: list[int], levels: list[Any], sizes: list[int], count: int
) -> list[Array]:
    """Return, for each axis, the index along it of each of ``count`` values."""
    found: dict[int, Array] = {}
    places, most = 1, math.prod(sizes)
    for level, axis in zip(levels, order, strict=True):
        if level.Format() == _DENSE:
            length = level.DenseSize()
            _require(length == sizes[axis], f"{length} along an axis of {sizes[axis]}")
            _require(places * length <= most, f"more places than {most}")
            parents = np.repeat(np.arange(places), length)
            along = np.tile(np.arange(length), places)
        else:
            _require(level.Format() == _COMPRESSED, f"format {level.Format()}")
            parents, along = _compressed(level, places, sizes[axis], count)
        places = len(along)
        found = {known: index[parents] for known, index in found.items()}
        found[axis] = along
    _require(places == count, f"{count} values for {places} places")
    return [found[axis] for axis in range(len(order))]


def _compressed(
    level: Any, places: int, length: int, count: int
) -> tuple[Array, Array]:
    """Return of each index along a compressed axis which place it has, and itself."""
    segments = _indexes(level, "ArraySegments")
    along = _indexes(level, "ArrayIndices")
    _require(len(segments) == places + 1, f"{len(segments)} segments")
    counts = np.diff(segments)
    _require(
        segments[0] == 0 and segments[-1] == len(along) and bool((counts >= 0).all()),
        "segments that do not follow each other",
    )
    _require(len(along) <= count, "more places than values")
    inside = bool((along >= 0).all()) and bool((along < length).all())
    _require(inside, f"an index beyond {length}")
    first = np.zeros(len(along), np.bool_)
    first[segments[:-1][counts > 0]] = True
    rising = first[1:] | (np.diff(along) > 0)
    _require(bool(rising.all()), "indices in one segment that do not rise")
    return np.repeat(np.arange(places), counts), along


def _indexes(level: Any, name: str) -> Array:
    kind = getattr(level, f"{name}Type")()
    union = getattr(level, name)()
    _require(union is not None and 0 < kind < len(_VECTORS), f"{name} of kind {kind}")
    vector = getattr(module_alone("tflite", _VECTORS[kind]), _VECTORS[kind])()
    vector.Init(union.Bytes, union.Pos)
    values = vector.ValuesAsNumpy()
    return np.zeros(0, np.int64) if isinstance(values, int) else values.astype(np.int64)


def _vector(table: Any, name: str) -> list[int]:
    values = getattr(table, f"{name}AsNumpy")()
    _require(isinstance(values, int) or len(values) <= _MOST_AXES, f"a long {name}")
    return [] if isinstance(values, int) else values.tolist()


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise InvalidArgumentError(f"sparse data with {what}")
