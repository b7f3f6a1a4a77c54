"""RANDOM_MULTINOMIAL: classes drawn with the probabilities that logits give.

Logits are [batch, classes] in float16 or float32, samples [batch, count] in int32. The
random numbers are Philox 4x32-10's, a function of a key and a counter: any part
of a stream can be computed by itself, and all of it at once. Streams are as on the
reference device, number for number.

Source: 1.3/types.hal (RANDOM_MULTINOMIAL); NN common/cpu_operations/Multinomial.cpp;
Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

import secrets
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.operations.bound import Array, BoundOperation, OperationFailedError
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    Prepare,
    PreparedKernel,
    with_scratch,
)

Words: TypeAlias = NDArray[np.uint64]
"""32-bit numbers, in 64 bits to hold their products."""

_ROUNDS = 10
_LOW = 2**32 - 1
_HALF = np.uint64(32)
_MANTISSA_HIGH = np.uint64(2**20 - 1)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox_4x32(
    counter: tuple[Words, Words, Words, Words], key: tuple[int, int]
) -> tuple[Words, Words, Words, Words]:
    """Return four random words for each counter; its words broadcast."""
    a, b, c, d = counter
    for round_ in range(_ROUNDS):
        first, second = (
            np.uint64((word + round_ * step) & _LOW)
            for word, step in zip(key, _WEYL, strict=True)
        )
        left, right = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b = (right >> _HALF) ^ b ^ first, right & np.uint64(_LOW)
        c, d = (left >> _HALF) ^ d ^ second, left & np.uint64(_LOW)
    return a, b, c, d


def uniform_doubles(
    seed: int, stream: int, start: int, count: int
) -> NDArray[np.float64]:
    """Return numbers ``start`` to ``start + count`` of a stream, all in ``[0, 1)``.

    ``seed`` and ``stream`` are 64-bit integers, of either sign.
    """
    blocks = np.arange(start // 2, (start + count + 1) // 2, dtype=np.uint64)
    counter = (*_split(blocks), *_split(np.full(1, stream % 2**64, np.uint64)))
    words = philox_4x32(counter, (seed & _LOW, (seed >> 32) & _LOW))
    pairs = np.stack(words, axis=-1).reshape(-1, 2)
    mantissas = ((pairs[:, 0] & _MANTISSA_HIGH) << _HALF) | pairs[:, 1]
    numbers = mantissas[start % 2 :][:count] * 2.0**-52
    return np.asarray(numbers, np.float64)


def _split(words: Words) -> tuple[Words, Words]:
    """Return the low and the high halves."""
    return words & np.uint64(_LOW), words >> _HALF


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
    operation.require(classes > 0, "there is no class to draw")

    def run(sums: Array, points: Array, inputs: Inputs, outputs: Outputs) -> None:
        _cumulate(inputs[0], sums)
        _fill_uniform(points.reshape(-1), inputs[2])
        np.multiply(points, sums[:, -1:], out=points)
        for row, drawn, output in zip(sums, points, outputs[0], strict=True):
            output[:] = row.searchsorted(drawn, side="right")

    return with_scratch(
        run, ((batches, classes), np.float64), ((batches, samples), np.float64)
    )


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
