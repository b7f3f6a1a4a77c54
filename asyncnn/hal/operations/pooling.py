"""Pooling over a sliding window.

Source: 1.3/types.hal (AVERAGE_POOL_2D, L2_POOL_2D, MAX_POOL_2D).
"""

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.shapes import image_shape, in_layout, require
from asyncnn.hal.operations.signature import (
    BOOL,
    F16,
    F32,
    INT32,
    Q8,
    Q8S,
    V1_0,
    V1_2,
    V1_3,
    Argument,
    Layout,
    OperationSignature,
    TypeRow,
    arguments,
    rows,
)
from asyncnn.hal.operations.windows import pool_window
from asyncnn.hal.types import OperationType

_SLIDING = (
    *arguments(INT32, "stride_width", "stride_height"),
    *arguments(INT32, "filter_width", "filter_height", "activation"),
    Argument("nchw", BOOL, since=V1_2),
)
_EXPLICIT = ("padding_left", "padding_right", "padding_top", "padding_bottom")

_LAYOUTS = (
    Layout(
        (Argument("input"), Argument("padding_scheme", INT32), *_SLIDING),
        counts=(7, 8),
    ),
    Layout(
        (Argument("input"), *arguments(INT32, *_EXPLICIT), *_SLIDING),
        counts=(10, 11),
    ),
)


def _pool_shape(operation: BoundOperation) -> tuple[Shape]:
    window = pool_window(operation)
    batches, _, _, channels = image_shape(operation, window.nchw)
    require(operation, channels > 0, "the input has no channels")
    shape = batches, window.height.output, window.width.output, channels
    return (in_layout(shape, window.nchw),)


def _pool(type_: OperationType, types: tuple[TypeRow, ...]) -> OperationSignature:
    return OperationSignature(type_, rows=types, layouts=_LAYOUTS, shape=_pool_shape)


_FLOATS = rows(V1_0, F32) + rows(V1_2, F16)
_ALL = _FLOATS + rows(V1_0, Q8) + rows(V1_3, Q8S)

SIGNATURES = (
    _pool(OperationType.AVERAGE_POOL_2D, _ALL),
    _pool(OperationType.L2_POOL_2D, _FLOATS),
    _pool(OperationType.MAX_POOL_2D, _ALL),
)
