"""LSH_PROJECTION: bits that tell on which side of random hyperplanes an input lies.

Source: 1.3/types.hal (LSH_PROJECTION); NN common/cpu_operations/LSHProjection.cpp.
"""

import math

import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.hal.operations.lookup import DENSE, SPARSE
from asyncnn.hal.operations.shapes import require
from asyncnn.hal.types import OperationType
from asyncnn.kernels.embedding.hashing import fingerprint64
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    Prepare,
    PreparedKernel,
    Run,
    Scratch,
)

_SEED_BYTES = 4
_KEY_BYTES_AT_ONCE = 2**20


def _prepare(operation: BoundOperation) -> PreparedKernel:
    """Give the bits ``sum(weight[i] * hash(seed, input[i])) > 0`` of all seeds.

    ``hash: float [hashes, bits]`` holds the seeds, ``input: any [rows, ...]``,
    ``weight: float [rows]`` (optional, 1 if omitted). The hash of a row is the signed
    64-bit fingerprint of the seed's float32 bytes followed by the row's bytes; sums
    are taken in float64.

    DENSE gives [hashes * bits], one int32 for each bit. SPARSE gives [hashes], the bits
    of each hash as a number, first bit highest, plus ``hash << bits``; that last term
    is missing from SPARSE_DEPRECATED.

    :raises OperationFailedError: if the input has no rows.
    """
    hashes, bits = operation.shape(0)
    rows, *row = operation.shape(1)
    row_bytes = math.prod(row) * operation.input(1).dtype.itemsize
    kind = operation.integer(3)
    require(operation, rows > 0, "the input has no rows")
    powers = np.int64(1) << np.arange(bits - 1, -1, -1, dtype=np.int64)
    offsets = np.arange(hashes, dtype=np.int64) << bits if kind == SPARSE else 0
    key_bytes = _SEED_BYTES + row_bytes
    seeds_at_once = min(hashes * bits, _KEY_BYTES_AT_ONCE // (rows * key_bytes))

    def instantiate(scratch: Scratch) -> Run:
        shape = (max(seeds_at_once, 1), rows, key_bytes)
        keys = scratch.transient(shape, np.uint8)

        def run(inputs: Inputs, outputs: Outputs) -> None:
            seeds, data, weight = inputs[:3]
            keys[..., _SEED_BYTES:] = data.reshape(rows, -1).view(np.uint8)
            signs = _signs(keys, seeds.astype(np.float32).reshape(-1), weight)
            if kind == DENSE:
                np.copyto(outputs[0], signs)
            else:
                signatures = signs.reshape(hashes, bits) @ powers + offsets
                # Signatures wrap around to int32.
                np.copyto(outputs[0], signatures, casting="unsafe")

        return run

    return instantiate


def _signs(keys: Array, seeds: Array, weight: Array | None) -> NDArray[np.bool_]:
    """Return one bit for each float32 seed; ``keys`` has room for some at once."""
    signs = np.empty(seeds.size, np.bool_)
    for start in range(0, seeds.size, len(keys)):
        some = seeds[start : start + len(keys)]
        part = keys[: some.size]
        part[..., :_SEED_BYTES] = some.view(np.uint8).reshape(-1, 1, _SEED_BYTES)
        hashes = fingerprint64(part.reshape(-1, keys.shape[2])).view(np.int64)
        terms = hashes.reshape(part.shape[:2]).astype(np.float64)
        if weight is not None:
            np.multiply(terms, weight, out=terms)
        # Running sums add row after row; a plain sum would round in another order.
        signs[start : start + some.size] = np.add.accumulate(terms, axis=1)[:, -1] > 0
    return signs


KERNELS: dict[OperationType, Prepare] = {OperationType.LSH_PROJECTION: _prepare}
