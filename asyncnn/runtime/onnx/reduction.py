"""Reductions, and what finds or sorts elements along an axis."""

from collections.abc import Sequence

import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.axes import MAX_RANK, merged_axes
from asyncnn.runtime.onnx.composing import Composer
from asyncnn.runtime.onnx.emitter import (
    B8,
    F16,
    F32,
    I32,
    Q8,
    Q8S,
    Argument,
    Form,
    Value,
)
from asyncnn.runtime.onnx.node import Converter, Node
from asyncnn.runtime.onnx.reshaping import concatenate, reverse, transpose

_NATIVE = {
    **dict.fromkeys((Op.REDUCE_SUM, Op.REDUCE_PROD), (F16, F32)),
    **dict.fromkeys((Op.REDUCE_MAX, Op.REDUCE_MIN, Op.MEAN), (F16, F32, Q8, Q8S)),
}
_PAIRWISE = {
    Op.REDUCE_SUM: Op.ADD,
    Op.REDUCE_PROD: Op.MUL,
    Op.REDUCE_MAX: Op.MAXIMUM,
    Op.REDUCE_MIN: Op.MINIMUM,
}


def reduce(
    draft: Composer, type_: Op, value: Value, axes: Sequence[int], *, keep: bool = True
) -> Value:
    """Return ``value`` reduced along ``axes``, which keep the length 1 if ``keep``."""
    shape = tuple(
        1 if axis in axes else length
        for axis, length in enumerate(value.shape)
        if keep or axis not in axes
    )
    if value.type == B8:
        logical = Op.REDUCE_ANY if type_ == Op.REDUCE_MAX else Op.REDUCE_ALL
        return draft.reshape(_reduced(draft, logical, value, axes), shape)
    if value.type in _NATIVE[type_]:
        return draft.reshape(_reduced(draft, type_, value, axes), shape)
    if type_ not in _PAIRWISE:
        return reduce(draft, type_, draft.cast(value, np.float32), axes, keep=keep)
    for axis in axes:
        value = _folded(draft, _PAIRWISE[type_], value, axis)
    return draft.reshape(value, shape)


def _reduced(draft: Composer, type_: Op, value: Value, axes: Sequence[int]) -> Value:
    lengths, places = merged_axes(value.shape, axes)
    if len(lengths) > MAX_RANK:
        for axis in axes:
            three = draft.as_three(value, axis)
            one = draft.emit(type_, [three, (1,), _keep(type_, True)])
            shape = (*value.shape[:axis], 1, *value.shape[axis + 1 :])
            value = draft.reshape(one, shape)
        return value
    flat = draft.reshape(value, lengths)
    where = tuple(places.values())
    if not where:
        return value
    return draft.emit(type_, [flat, where, _keep(type_, True)])


def _keep(type_: Op, keep: bool) -> int | bool:
    return int(keep) if type_ == Op.MEAN else keep


def _folded(draft: Composer, type_: Op, value: Value, axis: int) -> Value:
    """Halve the axis until it is short: for types that the HAL does not reduce."""
    three = draft.as_three(value, axis)
    while three.shape[1] > 1:
        outer, length, inner = three.shape
        half = length // 2
        parts = [
            draft.emit(Op.SLICE, [three, (0, begin, 0), (outer, size, inner)])
            for begin, size in ((0, half), (half, half), (2 * half, length - 2 * half))
            if size
        ]
        three = draft.binary(type_, parts[0], parts[1])
        if len(parts) > 2:
            rest = draft.emit(Op.SLICE, [three, (0, half - 1, 0), (outer, 1, inner)])
            last = draft.binary(type_, rest, parts[2])
            if half == 1:
                three = last
            else:
                kept = draft.emit(
                    Op.SLICE, [three, (0, 0, 0), (outer, half - 1, inner)]
                )
                three = concatenate(draft, [kept, last], 1)
    shape = (*value.shape[:axis], 1, *value.shape[axis + 1 :])
    return draft.reshape(three, shape)


def axes_of(node: Node) -> tuple[list[int], bool]:
    """Return the axes that a node reduces and whether it keeps them."""
    value = node.input(0)
    axes = node.given("axes", 1)
    keep = bool(node.attribute("keepdims", 1))
    if not axes and node.attribute("noop_with_empty_axes", 0):
        return [], True
    return node.axes(axes or range(value.rank), value.rank), keep


def _reduction(type_: Op) -> Converter:
    def convert(node: Node) -> Value:
        axes, keep = axes_of(node)
        return reduce(node.draft, type_, node.input(0), axes, keep=keep)

    return convert


def _composed(*steps: Op | None) -> Converter:
    """Return what does something before and after a sum: both None for nothing."""
    before, after = steps

    def convert(node: Node) -> Value:
        value, draft = node.input(0), node.draft
        axes, keep = axes_of(node)
        if before == Op.MUL:
            value = draft.mul(value, value)
        elif before is not None:
            value = draft.unary(before, value)
        total = reduce(draft, Op.REDUCE_SUM, value, axes, keep=keep)
        return total if after is None else draft.unary(after, total)

    return convert


def _log_sum_exp(node: Node) -> Value:
    value, draft = node.input(0), node.draft
    axes, keep = axes_of(node)
    # What is subtracted first keeps the exponentials from overflowing.
    top = reduce(draft, Op.REDUCE_MAX, value, axes)
    shifted = draft.unary(Op.EXP, draft.sub(value, top))
    total = draft.unary(Op.LOG, reduce(draft, Op.REDUCE_SUM, shifted, axes))
    result = draft.add(total, top)
    shape = tuple(n for a, n in enumerate(value.shape) if keep or a not in axes)
    return result if keep else draft.reshape(result, shape)


def _arg(type_: Op) -> Converter:
    def convert(node: Node) -> Value:
        value, draft = node.input(0), node.draft
        axis = node.axis(node.attribute("axis", 0), value.rank)
        is_last = bool(node.attribute("select_last_index", 0))
        if is_last:
            value = reverse(draft, value, axis)
        if value.rank <= MAX_RANK:
            arguments: list[Argument] = [value, axis]
        else:
            arguments = [draft.as_three(value, axis), 1]
        found = draft.emit(type_, arguments, Form(I32), dtype=np.int64)
        if is_last:
            found = draft.sub(draft.lift(value.shape[axis] - 1, found), found)
        keep = [1] if node.attribute("keepdims", 1) else []
        shape = (*value.shape[:axis], *keep, *value.shape[axis + 1 :])
        return draft.reshape(found, shape)

    return convert


def _top_k(node: Node) -> list[Value]:
    value, draft = node.input(0), node.draft
    axis = node.axis(node.attribute("axis", -1), value.rank)
    count = node.number(1, node.attribute("k", 0))
    if not 0 < count <= value.shape[axis]:
        raise InvalidArgumentError(f"{count} of {value.shape[axis]} elements")
    is_largest = bool(node.attribute("largest", 1))
    if not is_largest and value.type not in (F16, F32, I32):
        raise node.refuse("the least of bytes")
    # Of equal elements the HAL takes the last one first, ONNX the first one.
    moved = reverse(draft, value, axis)
    if not is_largest:
        moved = draft.unary(Op.NEG, moved)
    order = [a for a in range(value.rank) if a != axis] + [axis]
    last = transpose(draft, moved, order)
    rows = draft.reshape(last, (-1 if not last.shape else _rows(last), last.shape[-1]))
    values, indices = draft.emit_all(
        Op.TOPK_V2, [rows, int(count)], (rows.form, Form(I32)), None, (None, np.int64)
    )
    if not is_largest:
        values = draft.unary(Op.NEG, values)
    indices = draft.sub(draft.lift(last.shape[-1] - 1, indices), indices)
    shape = (*last.shape[:-1], int(count))
    back = [order.index(a) for a in range(value.rank)]
    return [
        transpose(draft, draft.reshape(found, shape), back)
        for found in (values, indices)
    ]


def _rows(value: Value) -> int:
    return int(np.prod(value.shape[:-1], dtype=np.int64))


def _cumulative(node: Node) -> Value:
    value, draft = node.input(0), node.draft
    axis = node.axis(node.number(1), value.rank)
    is_sum = node.name == "CumSum"
    three = draft.as_three(value, axis)
    length = value.shape[axis]
    draft.allowance.take_steps(length)
    if node.attribute("reverse", 0):
        three = reverse(draft, three, 1)
    outer, _, inner = three.shape
    type_, neutral = (Op.ADD, 0) if is_sum else (Op.MUL, 1)
    pieces: list[Value] = []
    for place in range(length):
        piece = draft.emit(Op.SLICE, [three, (0, place, 0), (outer, 1, inner)])
        pieces.append(draft.binary(type_, pieces[-1], piece) if pieces else piece)
    if node.attribute("exclusive", 0):
        pieces = [draft.full((outer, 1, inner), neutral, value.dtype), *pieces[:-1]]
    joined = concatenate(draft, pieces, 1)
    if node.attribute("reverse", 0):
        joined = reverse(draft, joined, 1)
    return draft.reshape(joined, value.shape)


CONVERTERS: dict[str, Converter] = {
    "ReduceSum": _reduction(Op.REDUCE_SUM),
    "ReduceMax": _reduction(Op.REDUCE_MAX),
    "ReduceMin": _reduction(Op.REDUCE_MIN),
    "ReduceMean": _reduction(Op.MEAN),
    "ReduceProd": _reduction(Op.REDUCE_PROD),
    "ReduceL1": _composed(Op.ABS, None),
    "ReduceL2": _composed(Op.MUL, Op.SQRT),
    "ReduceLogSum": _composed(None, Op.LOG),
    "ReduceSumSquare": _composed(Op.MUL, None),
    "ReduceLogSumExp": _log_sum_exp,
    "ArgMax": _arg(Op.ARGMAX),
    "ArgMin": _arg(Op.ARGMIN),
    "TopK": _top_k,
    "CumSum": _cumulative,
    "CumProd": _cumulative,
}
