"""Picking elements by index, key, hash, rank or chance.

Source: 1.3/types.hal (EMBEDDING_LOOKUP, HASHTABLE_LOOKUP, LSH_PROJECTION, GATHER,
TOPK_V2, RANDOM_MULTINOMIAL).
"""

from asyncnn.hal.operations.bound import BoundOperation, OperationFailedError, Shape
from asyncnn.hal.operations.shapes import require, require_shape, shape_of_rank
from asyncnn.hal.operations.signature import (
    F16,
    F32,
    I32,
    INT32,
    OUTPUT,
    Q8,
    Q8S,
    V1_0,
    V1_2,
    V1_3,
    Argument,
    Layout,
    OperationSignature,
    arguments,
    row,
    rows,
)
from asyncnn.hal.types import OperationType

SPARSE_DEPRECATED = 1
"""Kind of LSH_PROJECTION whose hashes overlap between the rows of the table."""

DENSE = 2
"""Kind of LSH_PROJECTION that gives every bit an output element."""

SPARSE = 3
"""Kind of LSH_PROJECTION that gives every row of the table an output element."""

MAX_HASH_BITS = 32


def _embedding_shape(operation: BoundOperation) -> tuple[Shape]:
    (lookups,) = shape_of_rank(operation, 0, 1)
    values = operation.shape(1)
    require(operation, len(values) >= 2, f"values have rank {len(values)}, not 2")
    return ((lookups, *values[1:]),)


def _hashtable_shape(operation: BoundOperation) -> tuple[Shape, Shape]:
    (lookups,) = shape_of_rank(operation, 0, 1)
    (keys,) = shape_of_rank(operation, 1, 1)
    values = operation.shape(2)
    require(
        operation,
        values[:1] == (keys,),
        f"{keys} keys do not name the rows of values {list(values)}",
    )
    return (lookups, *values[1:]), (lookups,)


def _projection_shape(operation: BoundOperation) -> tuple[Shape]:
    hashes, bits = shape_of_rank(operation, 0, 2)
    require(operation, bits <= MAX_HASH_BITS, f"{bits} hash bits are more than 32")
    samples = operation.shape(1)[0]
    if operation.has(2):
        require_shape(operation, 2, (samples,), "weight")
    kind = operation.integer(3)
    if kind == DENSE:
        return ((hashes * bits,),)
    if kind in (SPARSE, SPARSE_DEPRECATED):
        return ((hashes,),)
    raise OperationFailedError(f"LSH_PROJECTION: kind {kind} is not 1, 2 or 3")


def _gather_shape(operation: BoundOperation) -> tuple[Shape]:
    shape = operation.shape(0)
    axis = operation.axis(1, len(shape))
    return (shape[:axis] + operation.shape(2) + shape[axis + 1 :],)


def _top_k_shape(operation: BoundOperation) -> tuple[Shape, Shape]:
    *outer, size = operation.shape(0)
    k = operation.integer(1)
    require(operation, 0 < k <= size, f"k is {k}, the last axis has {size} elements")
    shape = (*outer, k)
    return shape, shape


def _multinomial_shape(operation: BoundOperation) -> tuple[Shape]:
    batches, _ = shape_of_rank(operation, 0, 2)
    samples = operation.integer(1)
    require(operation, samples >= 0, f"{samples} samples cannot be drawn")
    require_shape(operation, 2, (2,), "seeds")
    return ((batches, samples),)


_INDEXED = rows(V1_2, F16, F32, I32, Q8) + rows(V1_3, Q8S)

SIGNATURES = (
    OperationSignature(
        OperationType.EMBEDDING_LOOKUP,
        rows=rows(V1_0, F32) + rows(V1_2, I32, Q8) + rows(V1_3, F16, Q8S),
        layouts=(Layout((Argument("lookups", I32), Argument("values"))),),
        shape=_embedding_shape,
    ),
    OperationSignature(
        OperationType.HASHTABLE_LOOKUP,
        rows=rows(V1_0, F32, I32, Q8),
        layouts=(
            Layout(
                (*arguments(I32, "lookups", "keys"), Argument("values")),
                (OUTPUT, Argument("hits", Q8, quantization={Q8: (1.0, 0)})),
            ),
        ),
        shape=_hashtable_shape,
    ),
    OperationSignature(
        OperationType.LSH_PROJECTION,
        rows=tuple(
            row(since, H=hash_, T=type_)
            for since, hash_ in ((V1_0, F32), (V1_2, F16))
            for type_ in (F16, F32, I32, Q8)
        ),
        layouts=(
            Layout(
                (
                    Argument("hash", "H"),
                    Argument("input"),
                    Argument("weight", "H", optional=True),
                    Argument("kind", INT32),
                ),
                (Argument("output", I32),),
            ),
        ),
        shape=_projection_shape,
    ),
    OperationSignature(
        OperationType.GATHER,
        rows=_INDEXED,
        layouts=(
            Layout(
                (Argument("input"), Argument("axis", INT32), Argument("indices", I32))
            ),
        ),
        shape=_gather_shape,
    ),
    OperationSignature(
        OperationType.TOPK_V2,
        rows=_INDEXED,
        layouts=(
            Layout(
                (Argument("input"), Argument("k", INT32)),
                (Argument("values"), Argument("indices", I32)),
            ),
        ),
        shape=_top_k_shape,
    ),
    OperationSignature(
        OperationType.RANDOM_MULTINOMIAL,
        rows=rows(V1_2, F16, F32),
        layouts=(
            Layout(
                (
                    Argument("input"),
                    Argument("samples", INT32),
                    Argument("seeds", I32),
                ),
                (Argument("output", I32),),
            ),
        ),
        shape=_multinomial_shape,
    ),
)
