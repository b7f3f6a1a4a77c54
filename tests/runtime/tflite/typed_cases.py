"""The cases of operators that move or compare, for all other types that LiteRT has.

Their results are exact. What LiteRT itself does not compute is left out by name.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tests.runtime.tflite.cases import ANY_OPERATIONS, F32, I8, I32, I64, Case
from tests.runtime.tflite.files import T

U8, BOOL = np.uint8, np.bool_

QUANTIZED = {I8: {"scale": (0.05,), "zero_point": (3,)}}
QUANTIZED[U8] = {"scale": (0.05,), "zero_point": (120,)}

_NO_ZEROS, _RESIZED = "ZEROS_LIKE", "RESIZE_NEAREST_NEIGHBOR"
TYPES: dict[Any, frozenset[str]] = {
    I8: frozenset({_NO_ZEROS, "REVERSE_SEQUENCE"}),
    U8: frozenset({_NO_ZEROS}),
    I32: frozenset({_RESIZED}),
    I64: frozenset({"ARG_MAX", _RESIZED, "UNPACK"}),
    BOOL: frozenset(
        {
            *("DEPTH_TO_SPACE", "EMBEDDING_LOOKUP", "GREATER", "GREATER_EQUAL"),
            *("LESS", "LESS_EQUAL", "MAXIMUM", "MINIMUM", "PACK", "REDUCE_MAX"),
            *("REDUCE_MIN", _RESIZED, "REVERSE_SEQUENCE", "SPACE_TO_DEPTH", "SPLIT"),
            *("SPLIT_V", "TOPK_V2", _NO_ZEROS),
            *("MATRIX_DIAG", "MATRIX_SET_DIAG"),  # of which LiteRT copies some
        }
    ),
}
"""Types, and the operators that LiteRT has no kernel of for them."""

MOVING = (
    *("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "TRANSPOSE", "TILE", "REVERSE_V2"),
    *("BROADCAST_TO", "CONCATENATION", "PACK", "UNPACK", "SPLIT", "SPLIT_V"),
    *("PAD", "MIRROR_PAD", "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND"),
    *("SPACE_TO_DEPTH", "DEPTH_TO_SPACE", "SLICE", "STRIDED_SLICE", "GATHER"),
    *("GATHER_ND", "REVERSE_SEQUENCE", "SCATTER_ND", "DYNAMIC_UPDATE_SLICE"),
    *("MATRIX_DIAG", "MATRIX_SET_DIAG", "TOPK_V2", "EMBEDDING_LOOKUP"),
    *("ZEROS_LIKE", "RESIZE_NEAREST_NEIGHBOR", "SELECT", "SELECT_V2"),
    *("MAXIMUM", "MINIMUM", "REDUCE_MAX", "REDUCE_MIN", "ARG_MAX", "ARG_MIN"),
    *("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"),
)


def typed(cases: Sequence[Case], dtype: Any) -> Iterator[Case]:
    """Yield the cases of float32 with another type in its place."""
    for case in cases:
        name = case.operator.name
        tensors = [t for t in (*case.operator.inputs, *case.operator.outputs) if t]
        has_reals = any(np.dtype(t.dtype) == F32 for t in tensors)
        if case.name == "EMBEDDING_LOOKUP hybrid":
            continue  # its table is of bytes already
        if name in MOVING and has_reals and name not in TYPES[dtype]:
            yield _retyped(case, dtype)


def _retyped(case: Case, dtype: Any) -> Case:
    known: dict[T, T] = {}

    def other(tensor: T | None) -> T | None:
        if tensor is None or np.dtype(tensor.dtype) != F32:
            return tensor
        if tensor not in known:
            data = tensor.data
            if data is not None:
                data = np.round(data * 8).astype(dtype)
            known[tensor] = replace(
                tensor, dtype=dtype, data=data, **QUANTIZED.get(dtype, {})
            )
        return known[tensor]

    operator = replace(
        case.operator,
        inputs=[other(t) for t in case.operator.inputs],
        outputs=[other(t) for t in case.operator.outputs],
    )
    return replace(
        case,
        name=f"{case.name} of {np.dtype(dtype).name}",
        operations=ANY_OPERATIONS,
        operator=operator,
        steps=0,
    )
