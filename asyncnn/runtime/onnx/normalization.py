"""Normalisations: folded into factors where they are constant, else computed."""

import math
from collections.abc import Sequence

import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Shape
from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.axes import MAX_RANK
from asyncnn.runtime.composing import Composer
from asyncnn.runtime.drafting import Value
from asyncnn.runtime.onnx.elementwise import in_float32
from asyncnn.runtime.onnx.node import Converter, OnnxNode
from asyncnn.runtime.onnx.reduction import reduce


def along_channels(draft: Composer, value: Value, rank: int) -> Value:
    """Return a vector as it broadcasts along axis 1 of ``rank`` axes."""
    return draft.reshape(value, (math.prod(value.shape), *(1,) * (rank - 2)))


def _batch_normalization(node: OnnxNode) -> Value:
    value, draft = node.input(0), node.draft
    if node.attribute("training_mode", 0) or node.wants(1):
        raise node.refuse("training")
    epsilon = node.attribute("epsilon", 1e-5)
    scale, shift, mean, variance = (node.input(index) for index in range(1, 5))
    if all(part.is_constant for part in (scale, shift, mean, variance)):
        one, two, three, four = (
            np.asarray(node.data(index), np.float64) for index in range(1, 5)
        )
        factor = one / np.sqrt(four + epsilon)
        rest = two - three * factor
        scale = draft.constant(factor.astype(value.dtype))
        shift = draft.constant(rest.astype(value.dtype))
    else:
        root = draft.unary(Op.SQRT, draft.add(variance, epsilon))
        scale = draft.div(scale, root)
        shift = draft.sub(shift, draft.mul(mean, scale))
    rank = max(value.rank, 2)
    scaled = draft.mul(value, along_channels(draft, scale, rank))
    return draft.add(scaled, along_channels(draft, shift, rank))


def centred(
    draft: Composer, value: Value, axes: Sequence[int], epsilon: float
) -> tuple[Value, Value, Value]:
    """Return ``value`` of mean 0 and variance 1 along axes; its mean; 1 / deviation."""
    mean = reduce(draft, Op.MEAN, value, axes)
    rest = draft.sub(value, mean)
    variance = reduce(draft, Op.MEAN, draft.mul(rest, rest), axes)
    inverse = draft.unary(Op.RSQRT, draft.add(variance, epsilon))
    return draft.mul(rest, inverse), mean, inverse


def _instance_normalization(node: OnnxNode) -> Value:
    value, draft = node.input(0), node.draft

    def move(wide: Value) -> Value:
        three = draft.reshape(wide, (*wide.shape[:2], math.prod(wide.shape[2:])))
        epsilon = node.attribute("epsilon", 1e-5)
        return draft.reshape(centred(draft, three, [2], epsilon)[0], wide.shape)

    result = in_float32(draft, value, move)
    factors = [along_channels(draft, node.input(i), value.rank) for i in (1, 2)]
    return draft.add(draft.mul(result, factors[0]), factors[1])


def _group_normalization(node: OnnxNode) -> Value:
    value, draft = node.input(0), node.draft
    groups = node.attribute("num_groups", 1)
    if groups < 1 or value.shape[1] % groups:
        raise InvalidArgumentError(f"{value.shape[1]} channels in {groups} groups")
    batch, channels = value.shape[:2]
    inner = math.prod(value.shape[2:])

    def move(wide: Value) -> Value:
        parts = draft.reshape(wide, (batch, groups, channels // groups * inner))
        return centred(draft, parts, [2], node.attribute("epsilon", 1e-5))[0]

    result = in_float32(draft, value, move)
    if node.opset < 21:
        # Scale and bias are the groups'.
        parts = draft.reshape(result, (batch, groups, channels // groups * inner))
        factors = [draft.reshape(node.input(i), (groups, 1)) for i in (1, 2)]
    else:
        parts = draft.reshape(result, (batch, channels, inner))
        factors = [draft.reshape(node.input(i), (channels, 1)) for i in (1, 2)]
    scaled = draft.add(draft.mul(parts, factors[0]), factors[1])
    return draft.reshape(scaled, value.shape)


def _last_axes(node: OnnxNode) -> tuple[Shape, int]:
    value = node.input(0)
    axis = node.axis(node.attribute("axis", -1), value.rank)
    return (math.prod(value.shape[:axis]), math.prod(value.shape[axis:])), axis


def _layer_normalization(node: OnnxNode) -> list[Value | None]:
    value, draft = node.input(0), node.draft
    rows, axis = _last_axes(node)
    wide = draft.cast(value, np.float32)
    epsilon = node.attribute("epsilon", 1e-5)
    flat, mean, inverse = centred(draft, draft.reshape(wide, rows), [1], epsilon)
    result = draft.reshape(draft.cast(flat, value.dtype), value.shape)
    result = draft.mul(result, node.input(1))
    if node.has(2):
        result = draft.add(result, node.input(2))
    kept = (*value.shape[:axis], *(1,) * (value.rank - axis))
    return [result, draft.reshape(mean, kept), draft.reshape(inverse, kept)]


def _mean_variance(node: OnnxNode) -> Value:
    value, draft = node.input(0), node.draft
    axes = node.axes(node.attribute("axes", [0, 2, 3]), value.rank)
    return centred(draft, value, axes, 1e-9)[0]


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
    "BatchNormalization": _batch_normalization,
    "InstanceNormalization": _instance_normalization,
    "GroupNormalization": _group_normalization,
    "LayerNormalization": _layer_normalization,
    "MeanVarianceNormalization": _mean_variance,
    "LRN": _lrn,
}
