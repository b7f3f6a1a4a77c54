"""Formulas of reductions, normalisation and matrix products."""

from collections.abc import Callable
from typing import Any

import numpy as np

from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.hal.types import OperandType, OperationType
from tests.random_graphs.naive.elementwise import Formula, clamped
from tests.random_graphs.naive.expected import (
    TWICE,
    Expected,
    exact,
    real,
    real_bias,
    rounded,
)
from tests.random_graphs.naive.moving import integers


def _axes(operation: BoundOperation) -> tuple[int, ...]:
    rank = len(operation.shape(0))
    return tuple({axis % rank for axis in integers(operation, 1)})


def _reduced(operation: BoundOperation, fold: Callable[..., Any], x: Array) -> Array:
    value = fold(x, axis=_axes(operation), keepdims=operation.integer(2) > 0)
    return np.reshape(value, np.shape(value) or (1,))


def _exact_reduction(fold: Callable[..., Any]) -> Formula:
    return lambda op: exact(_reduced(op, fold, real(op.input(0))))


def _rounded_reduction(fold: Callable[..., Any]) -> Formula:
    def formula(operation: BoundOperation) -> Expected:
        x = real(operation.input(0))
        magnitude = _reduced(operation, fold, np.abs(x))
        return rounded(_reduced(operation, fold, x), x.size, magnitude)

    return formula


def _softmax_axis(operation: BoundOperation) -> int:
    return operation.integer(2, -1)


def _exponents(operation: BoundOperation) -> Array:
    x = real(operation.input(0))
    below = x - x.max(_softmax_axis(operation), keepdims=True)
    exponents: Array = below * operation.real(1)
    return exponents


def _softmax(operation: BoundOperation) -> Expected:
    exponents = _exponents(operation)
    powers = np.exp(exponents)
    value = powers / powers.sum(_softmax_axis(operation), keepdims=True)
    return rounded(value, value.size + 8, value * (1 + np.abs(exponents)))


def _log_softmax(operation: BoundOperation) -> Expected:
    exponents = _exponents(operation)
    sums = np.exp(exponents).sum(_softmax_axis(operation), keepdims=True)
    value = exponents - np.log(sums)
    return rounded(value, value.size + 8, 1 + np.abs(exponents) + np.log(sums))


def _l2_normalization(operation: BoundOperation) -> Expected:
    x = real(operation.input(0))
    norm = np.sqrt((x * x).sum(operation.integer(1, -1), keepdims=True))
    return rounded(x / np.maximum(norm, 1e-6), x.size + 4)


def _local_response(operation: BoundOperation) -> Expected:
    x, radius = real(operation.input(0)), operation.integer(1)
    bias, alpha, beta = (operation.real(i) for i in (2, 3, 4))
    axis = operation.integer(5, -1)
    squares = np.moveaxis(x * x, axis, 0)
    sums = np.stack(
        [
            squares[max(place - radius, 0) : place + radius + 1].sum(0)
            for place in range(len(squares))
        ]
    )
    value = x * (bias + alpha * np.moveaxis(sums, 0, axis)) ** -beta
    return rounded(value, (len(squares) + 8) * (1 + beta))


def _instance_normalization(operation: BoundOperation) -> Expected:
    x = real(operation.input(0))
    gamma, beta, epsilon = (operation.real(i) for i in (1, 2, 3))
    axes = (2, 3) if operation.boolean(4) else (1, 2)
    mean = x.mean(axes, keepdims=True)
    deviation = np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + epsilon)
    normal = (x - mean) / deviation
    # An error of the mean shifts every element, and changes the deviation.
    shift = np.abs(x).max(axes, keepdims=True) / deviation * (1 + np.abs(normal))
    magnitude = abs(gamma) * (shift + np.abs(normal)) + abs(beta)
    return rounded(normal * gamma + beta, x.size + 8, magnitude)


def _fully_connected(operation: BoundOperation) -> Expected:
    x, weights = real(operation.input(0)), real(operation.input(1))
    bias = real_bias(operation)
    rows = x.reshape(-1, weights.shape[1])
    value = np.array([[row @ unit for unit in weights] for row in rows]) + bias
    magnitude = np.abs(rows) @ np.abs(weights).T + np.abs(bias)
    expected = rounded(value, weights.shape[1] + 2, magnitude)
    return clamped(expected, operation.integer(3))


def _batch_matmul(operation: BoundOperation) -> Expected:
    left, right = (
        np.swapaxes(matrix, -1, -2) if operation.boolean(flag) else matrix
        for matrix, flag in (
            (real(operation.input(0)), 2),
            (real(operation.input(1)), 3),
        )
    )
    value = np.einsum("...ij,...jk->...ik", left, right)
    if operation.outputs[0].type == OperandType.TENSOR_INT32:
        return exact(value.astype(np.int64).astype(np.int32))
    magnitude = np.einsum("...ij,...jk->...ik", np.abs(left), np.abs(right))
    return rounded(value, left.shape[-1] + 2, magnitude, places=TWICE)


_OP = OperationType
FORMULAS: dict[OperationType, Formula] = {
    _OP.MEAN: _rounded_reduction(np.mean),
    _OP.REDUCE_SUM: _rounded_reduction(np.sum),
    _OP.REDUCE_PROD: _rounded_reduction(np.prod),
    _OP.REDUCE_MAX: _exact_reduction(np.max),
    _OP.REDUCE_MIN: _exact_reduction(np.min),
    _OP.REDUCE_ALL: _exact_reduction(np.all),
    _OP.REDUCE_ANY: _exact_reduction(np.any),
    _OP.SOFTMAX: _softmax,
    _OP.LOG_SOFTMAX: _log_softmax,
    _OP.L2_NORMALIZATION: _l2_normalization,
    _OP.LOCAL_RESPONSE_NORMALIZATION: _local_response,
    _OP.INSTANCE_NORMALIZATION: _instance_normalization,
    _OP.FULLY_CONNECTED: _fully_connected,
    _OP.BATCH_MATMUL: _batch_matmul,
}
