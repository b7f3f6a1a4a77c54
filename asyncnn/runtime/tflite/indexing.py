"""Operators that pick by index, or put by index: gathers, slices, scatters, look-ups.

Where indices are constants, or follow from a few by integer arithmetic, the HAL's
GATHER on a flattened tensor does it; what is put beside comes with SELECT.
"""

import math
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.runtime.composing import Composer
from asyncnn.runtime.drafting import Value
from asyncnn.runtime.moves import gather, reverse, split
from asyncnn.runtime.tflite.node import Converter, Node, with_booleans
from asyncnn.runtime.tflite.rearranging import moved, transpose
from asyncnn.runtime.tflite.tensors import filled
from asyncnn.runtime.unsupported import UnsupportedOperatorError

_I32, _BOOLEAN = OperandType.TENSOR_INT32, OperandType.TENSOR_BOOL8
_F32 = OperandType.TENSOR_FLOAT32


def _strided_slice(node: Node) -> None:
    options = node.options("StridedSliceOptions")
    masks = (options.BeginMask(), options.EndMask(), options.ShrinkAxisMask())
    if _is_plain(node, options) and node.type != _I32:
        inputs = [*node.read_all(), *map(node.scalar, masks)]
        node.emit_like(OperationType.STRIDED_SLICE, inputs)
        return
    if node.type == _I32:
        node.put(moved(node))
        return
    source = node.read(0)
    like = node.builder.operand(source)
    bounds = bounds_of(node, like.dimensions)
    begins, ends, strides = (
        node.integers(column) for column in zip(*bounds, strict=True)
    )
    lengths = tuple(len(range(*bound)) for bound in bounds)
    # An end before the beginning counts from the back: the mask says that it is open.
    mask = sum(1 << axis for axis, (_, end, _) in enumerate(bounds) if end < 0)
    flags = [node.scalar(0), node.scalar(mask), node.scalar(0)]
    output = replace(like, dimensions=lengths)
    inputs = [source, begins, ends, strides, *flags]
    node.store(node.compute(OperationType.STRIDED_SLICE, inputs, output))


def _is_plain(node: Node, options: Any) -> bool:
    """Return whether the HAL has it: each axis once, and ends where they count.

    TFLite takes one element of an axis that it drops, wherever that is said to end.
    """
    if options.EllipsisMask() or options.NewAxisMask() or options.Offset():
        return False
    if node.tensor(1).shape != (node.rank(),):
        return False
    dropped = options.ShrinkAxisMask()
    if not dropped or any(node.tensor(index).data is None for index in (1, 2)):
        return True  # of computed bounds, nothing else would have them
    bounds = zip(node.values(1).tolist(), node.values(2).tolist(), strict=True)
    return not dropped & (options.BeginMask() | options.EndMask()) and all(
        end == begin + 1 != 0 or not dropped >> axis & 1
        for axis, (begin, end) in enumerate(bounds)
    )


def bounds_of(node: Node, dimensions: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return begin, end and stride of each axis, all masks applied."""
    options = node.options("StridedSliceOptions")
    begins, ends, strides = (node.values(index).tolist() for index in (1, 2, 3))
    if options.Offset():
        ends = [sum(pair) for pair in zip(begins, ends, strict=True)]
    bounds: list[tuple[int, int, int]] = []
    for index, limits in enumerate(zip(begins, ends, strides, strict=True)):
        bit = 1 << index
        if options.EllipsisMask() & bit:
            later = range(index + 1, len(begins))
            rest = sum(not options.NewAxisMask() >> each & 1 for each in later)
            covered = dimensions[len(bounds) : len(dimensions) - rest]
            bounds += [(0, length, 1) for length in covered]
        elif not options.NewAxisMask() & bit:
            begin, end, stride = limits
            length = dimensions[len(bounds)]
            if options.ShrinkAxisMask() & bit:
                first = 0 if options.BeginMask() & bit else begin % length
                bounds.append((first, first + 1, 1))
            else:
                begin = None if options.BeginMask() & bit else begin
                end = None if options.EndMask() & bit else end
                bounds.append(slice(begin, end, stride).indices(length))
    return [*bounds, *((0, length, 1) for length in dimensions[len(bounds) :])]


def _gather(node: Node) -> None:
    options = node.options("GatherOptions")
    batches, rank = options.BatchDims(), node.rank()
    axis = node.axis(options.Axis(), rank)
    if batches < 0:
        batches += len(node.tensor(1).shape)
    if not batches:
        node.put(gather(node.draft, node.input(0), node.input(1), axis))
    elif axis == batches:
        rows = _gather_rows(node.draft, node.input(0), node.input(1), batches)
        node.put(rows)
    else:
        raise UnsupportedOperatorError(
            f"gathering along axis {axis} of {batches} batch axes"
        )


def _gather_rows(draft: Composer, source: Value, indices: Value, batches: int) -> Value:
    """Return rows of ``source`` along the axis after ``batches`` others, [N, row].

    Each of the batches has indices of its own: the row that they count from is added.
    """
    shape = source.shape
    count, length = math.prod(shape[:batches]), shape[batches]
    draft.allowance.take_elements((count,))
    each = math.prod(indices.shape) // count
    rows = draft.reshape(indices, (count, each))
    rows = draft.add(rows, (np.arange(count) * length)[:, None])
    flat = draft.reshape(source, (count * length, math.prod(shape[batches + 1 :])))
    return gather(draft, flat, draft.reshape(rows, (count * each,)), 0)


def _gather_nd(node: Node) -> None:
    draft, source, indices = node.draft, node.input(0), node.input(1)
    depth = indices.dimensions[-1]
    if not 0 < depth <= source.rank:
        raise InvalidArgumentError(f"indices of {depth} axes")
    leading, rest = source.shape[:depth], source.shape[depth:]
    flat = draft.reshape(source, (math.prod(leading), math.prod(rest)))
    node.put(gather(draft, flat, _flat_places(draft, indices, leading), 0))


def _flat_places(draft: Composer, indices: Value, dimensions: Sequence[int]) -> Value:
    """Return the places, in row-major order, that vectors of indices mean."""
    depth = len(dimensions)
    count = math.prod(indices.shape) // depth
    columns = split(draft, draft.reshape(indices, (count, depth)), 1, [1] * depth)
    strides = [math.prod(dimensions[axis + 1 :]) for axis in range(depth)]
    terms = [
        column if stride == 1 else draft.mul(column, stride)
        for column, stride in zip(columns, strides, strict=True)
    ]
    return draft.reshape(reduce(draft.add, terms), (count,))


def _one_hot(node: Node) -> None:
    depth, dimensions = node.value(1), node.target().dimensions
    indices = node.builder.operand(node.read(0)).dimensions
    if not node.tensor(0).shape:
        indices = ()
    axis = node.options("OneHotOptions").Axis()
    axis = len(indices) if axis == -1 else node.axis(axis, len(indices) + 1)
    draft = node.draft
    node.allowance.take_elements((depth,))
    numbers = np.arange(depth).reshape([-1] + [1] * (len(indices) - axis))
    spread = draft.reshape(node.input(0), (*indices[:axis], 1, *indices[axis:]))
    hot = draft.operand(draft.compare(OperationType.EQUAL, spread, numbers))
    if node.target().type == _BOOLEAN:
        if not (node.value(2) and not node.value(3)):
            raise UnsupportedOperatorError("booleans that are false where it is hot")
        node.store(hot)
        return
    inputs = [hot, *(node.broadcast(node.read(k), dimensions) for k in (2, 3))]
    node.emit(OperationType.SELECT, inputs)


def _reverse_sequence(node: Node) -> None:
    options = node.options("ReverseSequenceOptions")
    draft, source = node.draft, node.input(0)
    rank, shape = node.rank(), source.dimensions
    time = node.axis(options.SeqDim(), rank)
    batch = node.axis(options.BatchDim(), rank)
    if time == batch:
        raise InvalidArgumentError(f"axis {time} is of both sequences and batches")
    lengths = draft.reshape(node.input(1), (shape[batch], 1))
    node.allowance.take_elements((shape[time],))
    steps = draft.constant(np.arange(shape[time], dtype=np.int32)[None])
    backwards = draft.sub(draft.sub(lengths, 1), steps)
    is_inside = draft.compare(OperationType.GREATER, lengths, steps)
    taken = draft.select(is_inside, backwards, steps)
    order = [batch, time, *(axis for axis in range(rank) if axis not in (batch, time))]
    front = transpose(draft, source, order)
    rows = draft.reshape(_gather_rows(draft, front, taken, 1), front.shape)
    node.put(transpose(draft, rows, np.argsort(order).tolist()))


def _scatter_nd(node: Node) -> None:
    indices, dimensions = node.values(0), node.target().dimensions
    depth = indices.shape[-1]
    rest = dimensions[depth:]
    places = _places(indices, dimensions[:depth])
    if len(np.unique(places)) != len(places):
        raise UnsupportedOperatorError("scattered rows that are added up")
    _put_rows(node, node.read(1), places, math.prod(dimensions[:depth]), rest, 0)


def _sparse_to_dense(node: Node) -> None:
    indices, dimensions = node.values(0), node.target().dimensions
    columns = indices.reshape(-1, len(dimensions))
    places = _places(columns, dimensions)
    values = node.read(2)
    if not node.tensor(2).shape:
        values = node.broadcast(values, (len(places),))
    _put_rows(node, values, places, math.prod(dimensions), (), node.value(3))


def _places(indices: Array, dimensions: Sequence[int]) -> Array:
    """Return where in row-major order constant vectors of indices lead.

    :raises InvalidArgumentError: if one is out of range.
    """
    columns = indices.reshape(-1, len(dimensions)).astype(np.int64)
    if (columns < 0).any() or (columns >= np.array(dimensions)).any():
        raise InvalidArgumentError(f"an index beyond {list(dimensions)}")
    return np.asarray(np.ravel_multi_index(tuple(columns.T), tuple(dimensions)))


def _put_rows(
    node: Node, rows: int, places: Array, count: int, rest: Sequence[int], value: float
) -> None:
    """Store rows at ``places`` of ``count``; the others are filled with ``value``."""
    draft, given = node.draft, node.draft.tensor(rows)
    width = math.prod(rest)
    node.allowance.take_elements((count, width))
    sources = np.zeros(count, np.int32)
    sources[places] = np.arange(len(places))
    flat = draft.reshape(given, (len(places), width))
    picked = gather(draft, flat, draft.constant(sources), 0)
    taken = np.isin(np.arange(count), places)[:, None]
    condition = draft.constant(np.repeat(taken, width, axis=1))
    # Of bytes, TFLite fills in the value as it is stored, whatever their zero point.
    fill = np.full((count, width), value, given.dtype)
    others = draft.quantized(fill, given.form)
    node.put(draft.select(condition, picked, others))


def _dynamic_update_slice(node: Node) -> None:
    """Replace a box, whose corner may be computed, by the elements of the update."""
    draft, whole, update = node.draft, node.input(0), node.input(1)
    rank = whole.rank
    corner = split(draft, node.input(2), 0, [1] * rank)
    places: list[Value] = []
    inside: list[Value] = []
    for axis, (length, size) in enumerate(zip(whole.shape, update.shape, strict=True)):
        first = draft.clamp(corner[axis], 0, length - size)
        node.allowance.take_elements((length,))
        line = np.arange(length, dtype=np.int32).reshape([-1] + [1] * (rank - axis - 1))
        offset = draft.sub(draft.constant(line), first)
        inside += (
            draft.compare(OperationType.GREATER_EQUAL, offset, 0),
            draft.compare(OperationType.LESS, offset, size),
        )
        step = math.prod(update.shape[axis + 1 :])
        places.append(draft.mul(draft.clamp(offset, 0, size - 1), step))
    count = math.prod(whole.shape)
    flat = draft.reshape(update, (math.prod(update.shape),))
    indices = draft.reshape(reduce(draft.add, places), (count,))
    picked = draft.reshape(gather(draft, flat, indices, 0), whole.shape)
    is_inside = reduce(partial(draft.binary, OperationType.LOGICAL_AND), inside)
    node.put(draft.select(is_inside, picked, whole))


def _matrix_diag(node: Node) -> None:
    like = node.target()
    dimensions = like.dimensions
    # As TFLite does, even where zero is another byte.
    node.allowance.take_elements(dimensions)
    zeros = filled(node.builder, like, 0)
    _put_diagonal(node, node.read(0), zeros, dimensions)


def _matrix_set_diag(node: Node) -> None:
    _put_diagonal(node, node.read(1), node.read(0), node.target().dimensions)


def _put_diagonal(
    node: Node, diagonal: int, others: int, dimensions: Sequence[int]
) -> None:
    *outer, lines, columns = dimensions
    shape = (lines, 1) if lines <= columns else (1, columns)
    spread = node.broadcast(node.reshape(diagonal, (*outer, *shape)), tuple(dimensions))
    node.allowance.take_elements(tuple(dimensions))
    mask = np.broadcast_to(np.eye(lines, columns, dtype=np.bool_), dimensions)
    condition = node.builder.constant(np.ascontiguousarray(mask))
    node.emit(OperationType.SELECT, [condition, spread, others])


def _hashtable_lookup(node: Node) -> None:
    values = node.builder.operand(node.read(2))
    output = replace(node.target(), scale=values.scale, zero_point=values.zero_point)
    results = node.compute_all(
        OperationType.HASHTABLE_LOOKUP, node.read_all(), [output, node.target(1)]
    )
    for index, result in enumerate(results):
        node.store(result, index)


_LSH_KINDS = {1: 3, 2: 2}
"""The HAL's number for sparse and dense projections: 3 is sparse since HAL 1.2."""


def _lsh_projection(node: Node) -> None:
    kind = node.options("LSHProjectionOptions").Type()
    if kind not in _LSH_KINDS:
        raise InvalidArgumentError(f"a projection of kind {kind}")
    weights = node.read(2) if node.has(2) else node.builder.omitted(_F32)
    inputs = [node.read(0), node.read(1), weights, node.scalar(_LSH_KINDS[kind])]
    node.emit(OperationType.LSH_PROJECTION, inputs)


def _topk_v2(node: Node) -> None:
    """Pick from the back: of equal elements the HAL has the last one first."""
    draft, value, target = node.draft, node.input(0), node.target(1)
    operand = draft.operand(reverse(draft, value, value.rank - 1))
    best = replace(node.builder.operand(operand), dimensions=target.dimensions)
    results = node.compute_all(
        OperationType.TOPK_V2, [operand, node.scalar(node.value(1))], [best, target]
    )
    node.store(results[0])
    last = draft.constant(np.array([value.shape[-1] - 1], np.int32))
    places = draft.sub(last, draft.tensor(results[1], target.dimensions))
    node.put(places, 1)


def _embedding_lookup(node: Node) -> None:
    if node.tensor(1).data is not None and len(node.tensor(1).scales) > 1:
        raise UnsupportedOperatorError("rows that are quantised by different scales")
    table = node.read(1)
    output = replace(node.builder.operand(table), dimensions=node.target().dimensions)
    inputs = [node.read(0), table]
    node.store(node.compute(OperationType.EMBEDDING_LOOKUP, inputs, output))


CONVERTERS: dict[str, Converter] = {
    "STRIDED_SLICE": with_booleans(_strided_slice),
    "GATHER": with_booleans(_gather),
    "GATHER_ND": with_booleans(_gather_nd),
    "ONE_HOT": _one_hot,
    "REVERSE_SEQUENCE": with_booleans(_reverse_sequence),
    "SCATTER_ND": with_booleans(_scatter_nd),
    "SPARSE_TO_DENSE": with_booleans(_sparse_to_dense),
    "DYNAMIC_UPDATE_SLICE": with_booleans(_dynamic_update_slice),
    "MATRIX_DIAG": with_booleans(_matrix_diag),
    "MATRIX_SET_DIAG": with_booleans(_matrix_set_diag),
    "EMBEDDING_LOOKUP": _embedding_lookup,
    "HASHTABLE_LOOKUP": _hashtable_lookup,
    "LSH_PROJECTION": _lsh_projection,
    "TOPK_V2": _topk_v2,
}
"""Converters by the operator's name."""

SHAPE_INPUTS = {"SCATTER_ND": frozenset({2}), "SPARSE_TO_DENSE": frozenset({1})}
