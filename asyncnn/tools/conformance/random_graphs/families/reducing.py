"""Draws reductions, normalisation and matrix products."""

import numpy as np

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import BoundOperand, Shape
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.tools.conformance.random_graphs.artist import Artist
from asyncnn.tools.conformance.random_graphs.families.moving import any_axis, divisors
from asyncnn.tools.conformance.random_graphs.families.pointwise import (
    Builder,
    fused_activation,
    rows,
)
from asyncnn.tools.conformance.random_graphs.sketch import (
    I32,
    Q8PC,
    DrawnTensor,
    bound_of,
)


def _reduction(artist: Artist, type_: OperationType, main: OperandType) -> None:
    x = artist.pick(main)
    rank = len(x.shape)
    axes = artist.integers(
        any_axis(artist, rank) for _ in range(artist.number(1, rank))
    )
    keeps = artist.choose(False, True)
    flag = artist.scalar(int(keeps) if type_ is OperationType.MEAN else keeps)
    artist.apply(type_, [x, axes, flag], x.bound)


def _axis_of(artist: Artist, x: DrawnTensor) -> DrawnTensor:
    return artist.scalar(any_axis(artist, len(x.shape)))


def _softmax(artist: Artist, type_: OperationType, main: OperandType) -> None:
    x = artist.pick(main)
    inputs = [x, artist.real_scalar(artist.choose(1.0, 0.5, 2.0), main)]
    if type_ is OperationType.LOG_SOFTMAX or artist.choose(False, True):
        inputs.append(_axis_of(artist, x))
    artist.apply(type_, inputs, main)


def _l2_normalization(artist: Artist, type_: OperationType, main: OperandType) -> None:
    x = artist.pick(main)
    axis = [_axis_of(artist, x)] if artist.choose(False, True) else []
    artist.apply(type_, [x, *axis], main)


def _local_response(artist: Artist, type_: OperationType, main: OperandType) -> None:
    x = artist.pick(main)
    radius = artist.scalar(artist.number(0, 3))
    alpha, beta = artist.choose(0.5, 0.0), artist.choose(0.5, 0.75, 1.0)
    reals = [artist.real_scalar(value, main) for value in (1.0, alpha, beta)]
    axis = [_axis_of(artist, x)] if artist.choose(False, True) else []
    artist.apply(type_, [x, radius, *reals, *axis], main)


def _instance_normalization(
    artist: Artist, type_: OperationType, main: OperandType
) -> None:
    x = artist.pick(main, lambda t: len(t.shape) == 4, lambda: artist.shape(4))
    scalars = [artist.real_scalar(value, main) for value in (1.5, 0.25, 0.125)]
    nchw = artist.scalar(artist.choose(False, True))
    artist.apply(type_, [x, *scalars, nchw], main)


def weights_and_bias(
    artist: Artist,
    x: DrawnTensor,
    shape: Shape,
    units: int,
    channel_axis: int | None = None,
) -> list[DrawnTensor]:
    """Draw weights of this shape for ``x``, and a bias for every unit.

    With ``channel_axis``, quantised weights may have a scale for each unit.
    """
    if x.type not in QUANT8_TYPES:
        bounds = (artist.bound(x.type, each, -1, 1) for each in (shape, (units,)))
        return [artist.weights(bound) for bound in bounds]
    weights = artist.bound(x.type, shape)
    bias_scale = float(np.float32(x.bound.scale * weights.scale))
    if channel_axis is not None and artist.choose(False, True):
        weights = artist.bound(Q8PC, shape, channel_axis=channel_axis)
        bias_scale = 0.0
    return [artist.weights(weights), artist.weights(_bias(artist, units, bias_scale))]


def _bias(artist: Artist, units: int, scale: float) -> BoundOperand:
    numbers = 100 * artist.bound(I32, (units,)).require_value()
    return bound_of(I32, numbers.astype(np.int32), scale)


def _fully_connected(artist: Artist, type_: OperationType, main: OperandType) -> None:
    x = artist.pick(
        main, lambda tensor: len(tensor.shape) > 1, lambda: artist.shape(2, 3, 4)
    )
    size = artist.choose(x.shape[-1], *divisors(x.value.size))
    units = artist.number(1, 5)
    weights, bias = weights_and_bias(artist, x, (units, size), units)
    inputs = [x, weights, bias, fused_activation(artist, main)]
    artist.apply(type_, inputs, main)


def _batch_matmul(artist: Artist, type_: OperationType, main: OperandType) -> None:
    left = artist.pick(
        main, lambda tensor: len(tensor.shape) > 1, lambda: artist.shape(2, 3, 4)
    )
    adjoint_left, adjoint_right = (artist.choose(False, True) for _ in range(2))
    inner = left.shape[-2 if adjoint_left else -1]

    def suits(tensor: DrawnTensor) -> bool:
        return (
            len(tensor.shape) == len(left.shape)
            and tensor.shape[:-2] == left.shape[:-2]
            and tensor.shape[-1 if adjoint_right else -2] == inner
        )

    def matrix() -> Shape:
        lines = inner, artist.number(1, 4)
        return *left.shape[:-2], *(lines[::-1] if adjoint_right else lines)

    right = artist.pick(main, suits, matrix)
    flags = map(artist.scalar, (adjoint_left, adjoint_right))
    artist.apply(type_, [left, right, *flags], main)


BUILDERS: dict[OperationType, Builder] = rows(
    {
        _reduction: "MEAN REDUCE_ALL REDUCE_ANY REDUCE_MAX REDUCE_MIN REDUCE_PROD "
        "REDUCE_SUM",
        _softmax: "SOFTMAX LOG_SOFTMAX",
        _l2_normalization: "L2_NORMALIZATION",
        _local_response: "LOCAL_RESPONSE_NORMALIZATION",
        _instance_normalization: "INSTANCE_NORMALIZATION",
        _fully_connected: "FULLY_CONNECTED",
        _batch_matmul: "BATCH_MATMUL",
    }
)
