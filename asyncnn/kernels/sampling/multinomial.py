"""RANDOM_MULTINOMIAL: classes drawn with the probabilities that logits give.

Source: 1.3/types.hal (RANDOM_MULTINOMIAL); NN common/cpu_operations/Multinomial.cpp.
"""

import secrets

import numpy as np

from asyncnn.hal.operations.bound import (
    Array,
    BoundOperation,
    OperationFailedError,
)
from asyncnn.hal.operations.shapes import require
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    Prepare,
    PreparedKernel,
    Run,
    Scratch,
)
from asyncnn.kernels.sampling.philox import uniform_doubles

_NUMBERS_AT_ONCE = 2**15


def _prepare(operation: BoundOperation) -> PreparedKernel:
    """Draw classes, class ``c`` of row ``b`` in proportion to ``exp(input[b, c])``.

    ``input: float [batches, classes]``, where a value that is not finite stands for
    probability 0; ``samples: INT32``, drawn for each row; ``seeds: int32 [2]``, which
    determine the result unless both are 0: then it is random. The output is [batches,
    samples].

    :raises OperationFailedError: if there are no classes or, at execution, if a row
        has no finite logit.
    """
    batches, classes = operation.shape(0)
    samples = operation.integer(1)
    require(operation, classes > 0, "there is no class to draw")

    def instantiate(scratch: Scratch) -> Run:
        sums = scratch.transient((batches, classes), np.float64)
        points = scratch.transient((batches, samples), np.float64)

        def run(inputs: Inputs, outputs: Outputs) -> None:
            _cumulate(inputs[0], sums)
            _fill_uniform(points.reshape(-1), inputs[2])
            np.multiply(points, sums[:, -1:], out=points)
            for row, drawn, output in zip(sums, points, outputs[0], strict=True):
                output[:] = row.searchsorted(drawn, side="right")

        return run

    return instantiate


def _cumulate(logits: Array, sums: Array) -> None:
    """Write the running sums of each row's probabilities, not normalised."""
    np.copyto(sums, logits)
    np.copyto(sums, -np.inf, where=~np.isfinite(logits))
    largest = sums.max(axis=1, keepdims=True)
    if not np.isfinite(largest).all():
        raise OperationFailedError("RANDOM_MULTINOMIAL: a row has no finite logit")
    np.subtract(sums, largest, out=sums)
    np.exp(sums, out=sums)
    np.add.accumulate(sums, axis=1, out=sums)


def _fill_uniform(points: Array, seeds: Array) -> None:
    seed, stream = map(int, seeds)
    if seed == stream == 0:
        seed, stream = secrets.randbits(64), secrets.randbits(64)
    for start in range(0, points.size, _NUMBERS_AT_ONCE):
        part = points[start : start + _NUMBERS_AT_ONCE]
        part[:] = uniform_doubles(seed, stream, start, part.size)


KERNELS: dict[OperationType, Prepare] = {OperationType.RANDOM_MULTINOMIAL: _prepare}
