"""EMBEDDING_LOOKUP and HASHTABLE_LOOKUP: rows of a table, by index or by key.

Source: 1.3/types.hal (EMBEDDING_LOOKUP, HASHTABLE_LOOKUP).
"""

import numpy as np

from asyncnn.hal.operations.bound import Array, BoundOperation, OperationFailedError
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    Prepare,
    PreparedKernel,
    stateless,
)


def _prepare_embedding(operation: BoundOperation) -> PreparedKernel:
    """Give ``values[lookups[i]]`` for each i.

    ``lookups: int32 [k]``, ``values: any [rows, ...]``; the output is [k, ...].

    :raises OperationFailedError: if an index is not one of a row; at execution where
        only that tells the indices.
    """
    rows = operation.shape(1)[0]
    constant = operation.input(0).value
    if constant is not None:
        _require_rows(constant, rows)

    def run(inputs: Inputs, outputs: Outputs) -> None:
        lookups, values = inputs
        if constant is None:
            _require_rows(lookups, rows)
        if lookups.size:
            values.take(lookups, 0, outputs[0], "clip")

    return stateless(run)


def _require_rows(lookups: Array, rows: int) -> None:
    outside = lookups[(lookups < 0) | (lookups >= rows)]
    if outside.size:
        raise OperationFailedError(
            f"EMBEDDING_LOOKUP: {outside[0]} is not the index of one of {rows} rows"
        )


def _prepare_hashtable(operation: BoundOperation) -> PreparedKernel:
    """Give the row of values that has the key ``lookups[i]``, and whether there is one.

    ``lookups: int32 [k]``, ``keys: int32 [rows]`` in ascending order, ``values: any
    [rows, ...]``. The outputs are [k, ...], with stored zeros where the key is missing,
    and the hits uint8 [k], 0 or 1.
    """
    rows = operation.shape(1)[0]

    def run(inputs: Inputs, outputs: Outputs) -> None:
        lookups, keys, values = inputs
        found, hits = outputs
        places = np.searchsorted(keys, lookups)
        np.equal(keys.take(places, mode="clip"), lookups, out=hits, casting="unsafe")
        values.take(places, 0, found, "clip")
        found[hits == 0] = 0

    def run_without_keys(inputs: Inputs, outputs: Outputs) -> None:
        for output in outputs:
            output.fill(0)

    return stateless(run if rows else run_without_keys)


KERNELS: dict[OperationType, Prepare] = {
    OperationType.EMBEDDING_LOOKUP: _prepare_embedding,
    OperationType.HASHTABLE_LOOKUP: _prepare_hashtable,
}
