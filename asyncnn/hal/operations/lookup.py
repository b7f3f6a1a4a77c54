"""Picking elements by index, key, hash, rank or chance.

Source: 1.3/types.hal (EMBEDDING_LOOKUP, HASHTABLE_LOOKUP, LSH_PROJECTION, GATHER,
TOPK_V2, RANDOM_MULTINOMIAL).
"""

from asyncnn.hal.operations.bound import BoundOperation, OperationFailedError, Shape
from asyncnn.hal.operations.declaring import declare

SPARSE_DEPRECATED = 1
"""Kind of LSH_PROJECTION whose hashes overlap between the rows of the table."""

DENSE = 2
"""Kind of LSH_PROJECTION that gives every bit an output element."""

SPARSE = 3
"""Kind of LSH_PROJECTION that gives every row of the table an output element."""

MAX_HASH_BITS = 32


def _embedding_shape(operation: BoundOperation) -> tuple[Shape]:
    (lookups,) = operation.shape_of_rank(0, 1)
    values = operation.shape(1)
    operation.require(len(values) >= 2, f"values have rank {len(values)}, not 2")
    return ((lookups, *values[1:]),)


def _hashtable_shape(operation: BoundOperation) -> tuple[Shape, Shape]:
    (lookups,) = operation.shape_of_rank(0, 1)
    (keys,) = operation.shape_of_rank(1, 1)
    values = operation.shape(2)
    operation.require(
        values[:1] == (keys,),
        f"{keys} keys do not name the rows of values {list(values)}",
    )
    return (lookups, *values[1:]), (lookups,)


def _projection_shape(operation: BoundOperation) -> tuple[Shape]:
    hashes, bits = operation.shape_of_rank(0, 2)
    operation.require(bits <= MAX_HASH_BITS, f"{bits} hash bits are more than 32")
    samples = operation.shape(1)[0]
    if operation.has(2):
        operation.check_shape(2, (samples,), "weight")
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
    operation.require(0 < k <= size, f"k is {k}, the last axis has {size} elements")
    shape = (*outer, k)
    return shape, shape


def _multinomial_shape(operation: BoundOperation) -> tuple[Shape]:
    batches, _ = operation.shape_of_rank(0, 2)
    samples = operation.integer(1)
    operation.require(samples >= 0, f"{samples} samples cannot be drawn")
    operation.check_shape(2, (2,), "seeds")
    return ((batches, samples),)


_INDEXED = "1.2: F16 F32 I32 Q8; 1.3: Q8S"

SIGNATURES = (
    declare(
        "EMBEDDING_LOOKUP 1.0: F32; 1.2: I32 Q8; 1.3: F16 Q8S",
        "lookups: I32, values",
        _embedding_shape,
    ),
    declare(
        "HASHTABLE_LOOKUP 1.0: F32 I32 Q8",
        "lookups keys: I32, values -> output, hits: Q8 = flags",
        _hashtable_shape,
    ),
    declare(
        "LSH_PROJECTION H/T 1.0: F32/F16 F32/F32 F32/I32 F32/Q8; "
        "1.2: F16/F16 F16/F32 F16/I32 F16/Q8",
        "hash: H, input, weight?: H, kind: INT32 -> output: I32",
        _projection_shape,
    ),
    declare(f"GATHER {_INDEXED}", "input, axis: INT32, indices: I32", _gather_shape),
    declare(
        f"TOPK_V2 {_INDEXED}", "input, k: INT32 -> values, indices: I32", _top_k_shape
    ),
    declare(
        "RANDOM_MULTINOMIAL 1.2: F16 F32",
        "input, samples: INT32, seeds: I32 -> output: I32",
        _multinomial_shape,
    ),
)
