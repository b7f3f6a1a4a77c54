"""Comparisons, logic, and selection by a condition.

Source: 1.3/types.hal (EQUAL, GREATER, GREATER_EQUAL, LESS, LESS_EQUAL, NOT_EQUAL,
LOGICAL_AND, LOGICAL_NOT, LOGICAL_OR, SELECT).
"""

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.shapes import (
    broadcast_inputs,
    require_shape,
    same_as_input,
)
from asyncnn.hal.operations.signature import (
    B8,
    F16,
    F32,
    I32,
    Q8,
    Q8S,
    V1_2,
    V1_3,
    Argument,
    Layout,
    OperationSignature,
    arguments,
    rows,
)
from asyncnn.hal.types import OperationType

_COMPARED = rows(V1_2, B8, F16, F32, I32, Q8) + rows(V1_3, Q8S)


def _comparison(type_: OperationType) -> OperationSignature:
    return OperationSignature(
        type_,
        rows=_COMPARED,
        layouts=(Layout(arguments("T", "first", "second"), (Argument("output", B8),)),),
        shape=broadcast_inputs,
    )


def _logic(type_: OperationType) -> OperationSignature:
    return OperationSignature(
        type_,
        rows=rows(V1_2, B8),
        layouts=(Layout(arguments("T", "first", "second")),),
        shape=broadcast_inputs,
    )


def _select_shape(operation: BoundOperation) -> tuple[Shape]:
    shape = operation.shape(0)
    require_shape(operation, 1, shape, "if_true")
    require_shape(operation, 2, shape, "if_false")
    return (shape,)


SIGNATURES = (
    *map(
        _comparison,
        (
            OperationType.EQUAL,
            OperationType.GREATER,
            OperationType.GREATER_EQUAL,
            OperationType.LESS,
            OperationType.LESS_EQUAL,
            OperationType.NOT_EQUAL,
        ),
    ),
    _logic(OperationType.LOGICAL_AND),
    _logic(OperationType.LOGICAL_OR),
    OperationSignature(
        OperationType.LOGICAL_NOT,
        rows=rows(V1_2, B8),
        layouts=(Layout((Argument("input"),)),),
        shape=same_as_input,
    ),
    OperationSignature(
        OperationType.SELECT,
        rows=rows(V1_2, F16, F32, I32, Q8) + rows(V1_3, Q8S),
        layouts=(
            Layout((Argument("condition", B8), *arguments("T", "if_true", "if_false"))),
        ),
        shape=_select_shape,
    ),
)
