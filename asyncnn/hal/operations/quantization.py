"""Conversions of the element type.

Source: 1.3/types.hal (QUANTIZE, DEQUANTIZE, CAST).
"""

from asyncnn.hal.operations.shapes import same_as_input
from asyncnn.hal.operations.signature import (
    B8,
    F16,
    F32,
    I32,
    Q8,
    Q8PC,
    Q8S,
    Q8SYM,
    Q16A,
    Q16S,
    UP_TO_4,
    V1_0,
    V1_2,
    V1_3,
    Argument,
    Layout,
    OperationSignature,
    Requirement,
    Usage,
    row,
)
from asyncnn.hal.types import OperationType

_OUTPUT = (Argument("output", "U"),)


def _dimensions_are_kept(usage: Usage) -> Requirement | None:
    source, target = usage.input("input").dimensions, usage.output.dimensions
    if source and target and 0 not in target and source != target:
        raise usage.error(
            "output", f"has dimensions {list(target)}, the input {list(source)}"
        )
    return None


SIGNATURES = (
    OperationSignature(
        OperationType.QUANTIZE,
        rows=(
            row(V1_2, T=F16, U=Q8),
            row(V1_2, T=F32, U=Q8),
            row(V1_3, T=F16, U=Q8S),
            row(V1_3, T=F32, U=Q8S),
        ),
        layouts=(Layout((Argument("input"),), _OUTPUT),),
        shape=same_as_input,
    ),
    OperationSignature(
        OperationType.DEQUANTIZE,
        rows=(
            row(V1_0, T=Q8, U=F32),
            row(V1_2, T=Q8, U=F16),
            *(row(V1_2, T=t, U=u) for t in (Q8SYM, Q8PC) for u in (F16, F32)),
            *(row(V1_3, T=Q8S, U=u) for u in (F16, F32)),
        ),
        layouts=(Layout((Argument("input", ranks=UP_TO_4),), _OUTPUT),),
        shape=same_as_input,
    ),
    OperationSignature(
        OperationType.CAST,
        rows=(
            *(
                row(V1_2, T=t, U=u)
                for t in (F16, F32, I32, Q8)
                for u in (F16, F32, I32, Q8)
            ),
            *(row(V1_3, T=t, U=t) for t in (B8, Q16A, Q16S, Q8S, Q8SYM)),
        ),
        layouts=(Layout((Argument("input"),), _OUTPUT),),
        shape=same_as_input,
        checks=(_dimensions_are_kept,),
    ),
)
