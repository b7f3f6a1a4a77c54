"""Reductions and normalisations, and what finds or sorts elements along an axis."""

import math
from collections.abc import Sequence

import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.axes import MAX_RANK, merged_axes
from asyncnn.runtime.composing import Composer
from asyncnn.runtime.drafting import B8, F16, F32, I32, Q8, Q8S, Argument, Form, Value
from asyncnn.runtime.onnx.node import Converter, OnnxNode
from asyncnn.runtime.unsupported import UnsupportedOperatorError

_NATIVE = {
    **dict.fromkeys((Op.REDUCE_SUM, Op.REDUCE_PROD), (F16, F32)),
    **dict.fromkeys((Op.REDUCE_MAX, Op.REDUCE_MIN, Op.MEAN), (F16, F32, Q8, Q8S)),
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
    raise UnsupportedOperatorError(f"{type_.name} of {value.dtype}")


def _reduced(draft: Composer, type_: Op, value: Value, axes: Sequence[int]) -> Value:
    lengths, places = merged_axes(value.shape, axes)
    if len(lengths) > MAX_RANK:
        raise UnsupportedOperatorError("it reduces too many axes apart")
    flat = draft.reshape(value, lengths)
    where = tuple(places.values())
    if not where:
        return value
    return draft.emit(type_, [flat, where, 1 if type_ == Op.MEAN else True])


def axes_of(node: OnnxNode) -> tuple[list[int], bool]:
    """Return the axes that a node reduces and whether it keeps them."""
    value = node.input(0)
    axes = node.given("axes", 1)
    keep = bool(node.attribute("keepdims", 1))
    if not axes and node.attribute("noop_with_empty_axes", 0):
        return [], True
    return node.axes(axes or range(value.rank), value.rank), keep


def _reduction(type_: Op) -> Converter:
    def convert(node: OnnxNode) -> Value:
        axes, keep = axes_of(node)
        return reduce(node.draft, type_, node.input(0), axes, keep=keep)

    return convert


def _composed(*steps: Op | None) -> Converter:
    """Return what does something before and after a sum: both None for nothing."""
    before, after = steps

    def convert(node: OnnxNode) -> Value:
        value, draft = node.input(0), node.draft
        axes, keep = axes_of(node)
        if before == Op.MUL:
            value = draft.mul(value, value)
        elif before is not None:
            value = draft.unary(before, value)
        total = reduce(draft, Op.REDUCE_SUM, value, axes, keep=keep)
        return total if after is None else draft.unary(after, total)

    return convert


def _lp_normalization(node: OnnxNode) -> Value:
    value, draft = node.input(0), node.draft
    axes = [node.axis(node.attribute("axis", -1), value.rank)]
    if node.attribute("p", 2) == 1:
        norm = reduce(draft, Op.REDUCE_SUM, draft.unary(Op.ABS, value), axes)
    else:
        squares = reduce(draft, Op.REDUCE_SUM, draft.mul(value, value), axes)
        norm = draft.unary(Op.SQRT, squares)
    # Zeros stay zeros.
    least = float(np.finfo(value.dtype).tiny)
    return draft.div(value, draft.binary(Op.MAXIMUM, norm, least))


def _arg(type_: Op) -> Converter:
    def convert(node: OnnxNode) -> Value:
        value, draft = node.input(0), node.draft
        axis = node.axis(node.attribute("axis", 0), value.rank)
        if node.attribute("select_last_index", 0):
            raise node.refuse("the last one of equal elements")
        if value.rank <= MAX_RANK:
            arguments: list[Argument] = [value, axis]
        else:
            arguments = [draft.as_three(value, axis), 1]
        found = draft.emit(type_, arguments, Form(I32), dtype=np.int64)
        keep = [1] if node.attribute("keepdims", 1) else []
        shape = (*value.shape[:axis], *keep, *value.shape[axis + 1 :])
        return draft.reshape(found, shape)

    return convert


def _batch_normalization(node: OnnxNode) -> Value:
    value, draft = node.input(0), node.draft
    if node.attribute("training_mode", 0) or node.wants(1):
        raise node.refuse("training")
    epsilon = node.attribute("epsilon", 1e-5)
    scale, shift, mean, variance = (
        np.asarray(node.data(index), np.float64) for index in range(1, 5)
    )
    factor = scale / np.sqrt(variance + epsilon)
    along_channels = (math.prod(factor.shape), *(1,) * (max(value.rank, 2) - 2))
    factor, rest = (
        each.astype(value.dtype).reshape(along_channels)
        for each in (factor, shift - mean * factor)
    )
    return draft.add(draft.mul(value, factor), rest)


def _lrn(node: OnnxNode) -> Value:
    value, draft = node.input(0), node.draft
    size = node.attribute("size", 1)
    if value.rank < 2 or size < 1:
        raise InvalidArgumentError(f"{size} neighbours in rank {value.rank}")
    alpha = node.attribute("alpha", 1e-4) / size
    bias, beta = node.attribute("bias", 1.0), node.attribute("beta", 0.75)
    if size % 2 and value.rank <= MAX_RANK:
        scalars = [size // 2, bias, alpha, beta, 1]
        return draft.emit(Op.LOCAL_RESPONSE_NORMALIZATION, [value, *scalars])
    raise node.refuse("an even number of neighbours, or images of rank above 4")


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
    "ArgMax": _arg(Op.ARGMAX),
    "ArgMin": _arg(Op.ARGMIN),
    "BatchNormalization": _batch_normalization,
    "LRN": _lrn,
    "LpNormalization": _lp_normalization,
}
