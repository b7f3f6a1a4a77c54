"""The converter of each operator of ONNX that can be imported.

Names of other domains than ONNX's own have theirs in front. What ONNX defines by other
operators needs none.
"""

from asyncnn.runtime.onnx import (
    activation,
    control_flow,
    convolution,
    elementwise,
    lookup,
    matmul,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    reshaping,
    resize,
)
from asyncnn.runtime.onnx.emitter import Value
from asyncnn.runtime.onnx.node import Converter, Node


def _dropout(node: Node) -> list[Value | None]:
    if node.has(2) and node.number(2):
        raise node.refuse("training")
    value = node.input(0)
    mask = None
    if node.wants(1):
        ones = node.draft.full(value.shape, 1, "int32")
        mask = node.draft.cast(ones, "bool")
    return [value, mask]


CONVERTERS: dict[str, Converter] = {
    **activation.CONVERTERS,
    **control_flow.CONVERTERS,
    **convolution.CONVERTERS,
    **elementwise.CONVERTERS,
    **lookup.CONVERTERS,
    **matmul.CONVERTERS,
    **normalization.CONVERTERS,
    **pooling.CONVERTERS,
    **quantization.CONVERTERS,
    **recurrent.CONVERTERS,
    **reduction.CONVERTERS,
    **reshaping.CONVERTERS,
    **resize.CONVERTERS,
    "Dropout": _dropout,
}
"""By the operator's name."""
