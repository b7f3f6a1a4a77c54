"""Activations of recurrent cells, by their code in the HAL.

Beyond `FusedActivationFunc` these operations know tanh and the logistic function.
Source: 1.3/types.hal (LSTM: the activation function).
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from asyncnn.hal.operations.bound import (
    Array,
    BoundOperation,
    OperationFailedError,
)

Activation: TypeAlias = Callable[[Array, Array], object]
"""Takes float32 values and the array for the results, which may be the same."""

_HALF = np.array(0.5, np.float32)


def to_logistic(tanh: Array) -> None:
    """Turn tanh of some values into the logistic function of twice these, in place."""
    np.multiply(tanh, _HALF, out=tanh)
    np.add(tanh, _HALF, out=tanh)


def _logistic(values: Array, out: Array) -> None:
    """Compute ``1 / (1 + exp(-values))``, by way of tanh as that cannot overflow."""
    np.multiply(values, _HALF, out=out)
    np.tanh(out, out=out)
    to_logistic(out)


def _copy(values: Array, out: Array) -> None:
    if values is not out:
        np.copyto(out, values)


def _clamp(low: float, high: float) -> Activation:
    bounds = np.array(low, np.float32), np.array(high, np.float32)
    return lambda values, out: values.clip(*bounds, out)


_BY_CODE: dict[int, Activation] = {
    0: _copy,
    1: _clamp(0, np.inf),
    2: _clamp(-1, 1),
    3: _clamp(0, 6),
    4: lambda values, out: np.tanh(values, out=out),
    6: _logistic,
}


def read_activation(operation: BoundOperation, index: int) -> Activation:
    """Return the activation whose code is scalar input ``index``.

    :raises OperationFailedError: if the code is none of 0, 1, 2, 3, 4 and 6.
    """
    code = operation.integer(index)
    try:
        return _BY_CODE[code]
    except KeyError:
        known = ", ".join(map(str, _BY_CODE))
        raise OperationFailedError(
            f"{operation.type.name}: {code} is not an activation ({known})"
        ) from None
