"""Layer normalisation of gates, in float32."""

import numpy as np

from asyncnn.hal.operations.bound import Array
from asyncnn.kernels.kernel import Scratch

_EPSILON = np.array(1e-8, np.float32)


class LayerNorm:
    """Normalises ``gates`` [batches, gates, units] in place along the units.

    ``weights * (x - mean(x)) / sqrt(variance(x) + 1e-8) + bias``, the latter two
    [gates, units].
    Source: TensorFlow Lite's LSTM, to which the HAL's reference device delegates.
    """

    def __init__(
        self, scratch: Scratch, gates: Array, weights: Array, bias: Array
    ) -> None:
        per_gate = (*gates.shape[:2], 1)
        self._gates, self._weights, self._bias = gates, weights, bias
        self._mean = scratch.transient(per_gate, np.float32)
        self._deviation = scratch.transient(per_gate, np.float32)
        self._squares = scratch.transient(gates.shape, np.float32)
        self._share = np.array(1 / gates.shape[2], np.float32)

    def __call__(self) -> None:
        """Replace the gates by their normalised values."""
        gates, mean, deviation = self._gates, self._mean, self._deviation
        np.add.reduce(gates, axis=2, out=mean, keepdims=True)
        np.multiply(mean, self._share, out=mean)
        np.subtract(gates, mean, out=gates)
        np.multiply(gates, gates, out=self._squares)
        np.add.reduce(self._squares, axis=2, out=deviation, keepdims=True)
        np.multiply(deviation, self._share, out=deviation)
        np.add(deviation, _EPSILON, out=deviation)
        np.sqrt(deviation, out=deviation)
        np.divide(gates, deviation, out=gates)
        np.multiply(gates, self._weights, out=gates)
        np.add(gates, self._bias, out=gates)
