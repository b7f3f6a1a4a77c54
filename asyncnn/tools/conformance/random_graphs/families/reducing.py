"""Draws reductions, normalisation and matrix products."""

import numpy as np

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import BoundOperand, Shape
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.tools.conformance.random_graphs.artist import Artist
from asyncnn.tools.conformance.random_graphs.families.moving import (
    any_axis,
    axis_of,
    divisors,
)
from asyncnn.tools.conformance.random_graphs.families.pointwise import (
    Arguments,
    Builder,
    fused_activation,
    operation,
    rows,
)
from asyncnn.tools.conformance.random_graphs.sketch import (
    I32,
    Q8PC,
    DrawnTensor,
    bound_of,
)


def _maybe(drawn: Arguments) -> Arguments:
    """Have arguments, or leave them out."""
    return lambda artist, x: drawn(artist, x) if artist.choose(False, True) else ()


def _axis(artist: Artist, x: DrawnTensor) -> list[DrawnTensor]:
    return [axis_of(artist, x)]


def _reduction(artist: Artist, type_: OperationType, main: OperandType) -> None:
    x = artist.pick(main)
    rank = len(x.shape)
    axes = artist.integers(
        any_axis(artist, rank) for _ in range(artist.number(1, rank))
    )
    keeps = artist.choose(False, True)
    flag = artist.scalar(int(keeps) if type_ is OperationType.MEAN else keeps)
    artist.apply(type_, [x, axes, flag], x.bound)


def _softmax(axis: Arguments) -> Arguments:
    def arguments(artist: Artist, x: DrawnTensor) -> list[DrawnTensor | None]:
        factor = artist.real_scalar(artist.choose(1.0, 0.5, 2.0), x.type)
        return [factor, *axis(artist, x)]

    return arguments


def _local_response(artist: Artist, x: DrawnTensor) -> list[DrawnTensor | None]:
    radius = artist.scalar(artist.number(0, 3))
    alpha, beta = artist.choose(0.5, 0.0), artist.choose(0.5, 0.75, 1.0)
    reals = [artist.real_scalar(value, x.type) for value in (1.0, alpha, beta)]
    return [radius, *reals, *_maybe(_axis)(artist, x)]


def _instance(artist: Artist, x: DrawnTensor) -> list[DrawnTensor]:
    scalars = [artist.real_scalar(value, x.type) for value in (1.5, 0.25, 0.125)]
    return [*scalars, artist.scalar(artist.choose(False, True))]


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


def _dense(artist: Artist, x: DrawnTensor) -> list[DrawnTensor]:
    size = artist.choose(x.shape[-1], *divisors(x.value.size))
    units = artist.number(1, 5)
    constants = weights_and_bias(artist, x, (units, size), units)
    return [*constants, fused_activation(artist, x.type)]


def _right(artist: Artist, left: DrawnTensor) -> list[DrawnTensor]:
    """Draw what batches of matrices are multiplied by, and which are transposed."""
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

    right = artist.pick(left.type, suits, matrix)
    return [right, *map(artist.scalar, (adjoint_left, adjoint_right))]


BUILDERS: dict[OperationType, Builder] = rows(
    {
        _reduction: "MEAN REDUCE_ALL REDUCE_ANY REDUCE_MAX REDUCE_MIN REDUCE_PROD "
        "REDUCE_SUM",
        operation(_softmax(_maybe(_axis))): "SOFTMAX",
        operation(_softmax(_axis)): "LOG_SOFTMAX",
        operation(_maybe(_axis)): "L2_NORMALIZATION",
        operation(_local_response): "LOCAL_RESPONSE_NORMALIZATION",
        operation(_instance, ranks=(4,)): "INSTANCE_NORMALIZATION",
        operation(_dense, ranks=(2, 3, 4)): "FULLY_CONNECTED",
        operation(_right, ranks=(2, 3, 4)): "BATCH_MATMUL",
    }
)
