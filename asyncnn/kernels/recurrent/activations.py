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

TANH = 4

_HALF = np.array(0.5, np.float32)


def clamp(low: float, high: float) -> Activation:
    """Return the activation that clamps to a range."""
    bounds = np.array(low, np.float32), np.array(high, np.float32)
    return lambda values, out: values.clip(*bounds, out)


def logistic_of_double(values: Array, out: Array) -> None:
    """Compute ``1 / (1 + exp(-2 * values))`` without overflow, by way of tanh."""
    np.tanh(values, out=out)
    halve_tanh(out)


def halve_tanh(values: Array) -> None:
    """Turn the tanh of some values into the logistic function of twice these, there."""
    np.multiply(values, _HALF, out=values)
    np.add(values, _HALF, out=values)


def _logistic(values: Array, out: Array) -> None:
    np.multiply(values, _HALF, out=out)
    logistic_of_double(out, out)


def _copy(values: Array, out: Array) -> None:
    if values is not out:
        np.copyto(out, values)


_BY_CODE: dict[int, Activation] = {
    0: _copy,
    1: clamp(0, np.inf),
    2: clamp(-1, 1),
    3: clamp(0, 6),
    TANH: lambda values, out: np.tanh(values, out=out),
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
