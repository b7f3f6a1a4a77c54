"""A small model whose results are exact: what LiteRT is tried on."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncnn.devices.litert.writer import write_graph
from asyncnn.engine.delegation import Segment, Step
from asyncnn.hal.operations.bound import BoundOperand, BoundOperation
from asyncnn.hal.types import FusedActivationFunc, OperandType, OperationType

Array = NDArray[np.float32]


class Chain:
    """Fully connected layers in a row, with a barrier between two.

    The input and both outputs, the first layer's and the last one's, are float32
    [rows, width]. Weights permute the columns and change signs, the bias is whole
    numbers: no rounding whatever the order of sums, as long as inputs are small whole
    numbers.
    """

    def __init__(self, links: int, rows: int, width: int) -> None:
        self._links, self._shape = links, (rows, width)
        random = np.random.default_rng(width)
        signs = random.choice(np.array([-1, 1], np.float32), width)
        self._weights: Array = np.diag(signs)[random.permutation(width)]
        self._bias: Array = random.integers(-3, 4, width).astype(np.float32)

    def expected(self, x: Array) -> tuple[Array, Array]:
        """Return both outputs for an input."""
        results = [x]
        for _ in range(self._links):
            results.append(results[-1] @ self._weights.T + self._bias)
        return results[1], results[-1]

    def model(self) -> bytes:
        """Return the TFLite flatbuffer."""
        values = BoundOperand(OperandType.TENSOR_FLOAT32, self._shape)
        constants = *map(_constant, (self._weights, self._bias)), scalar(0)
        layer = BoundOperation(
            OperationType.FULLY_CONNECTED, (values, *constants), (values,)
        )
        others = tuple(range(self._links + 1, self._links + 4))
        steps = tuple(
            Step(number, layer, (number, *others), (number + 1,), None)
            for number in range(self._links)
        )
        segment = Segment(steps, (0,), (1, self._links))
        return write_graph(segment, range(1, self._links))


def scalar(value: int | FusedActivationFunc) -> BoundOperand:
    """Return a constant INT32."""
    return BoundOperand(OperandType.INT32, (), value=np.array(value, np.int32))


def _constant(array: NDArray[Any]) -> BoundOperand:
    return BoundOperand(OperandType.TENSOR_FLOAT32, array.shape, value=array)
