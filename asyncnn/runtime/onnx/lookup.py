"""Operations that pick elements by index, and their reverse.

All are gathers from one axis: indices of several axes are first made one number each.
Scattering needs indices that are known, and is a gather from both tensors.
"""

import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.composing import Composer
from asyncnn.runtime.drafting import F32, Value
from asyncnn.runtime.moves import gather
from asyncnn.runtime.onnx.node import Converter, OnnxNode


def whole_indices(draft: Composer, indices: Value, length: int) -> Value:
    """Return ``indices`` counted from the front.

    :raises InvalidArgumentError: if one that is known is outside of ``length``.
    """
    if indices.data is not None:
        data = indices.data
        if data.size and not (-length <= data.min() and data.max() < length):
            raise InvalidArgumentError(f"an index is outside of {length} elements")
        return draft.constant(np.where(data < 0, data + length, data).astype(np.int32))
    indices = draft.cast(indices, np.int32)
    is_below = draft.compare(Op.LESS, indices, 0)
    return draft.select(is_below, draft.add(indices, length), indices)


def _gather(node: OnnxNode) -> Value:
    value = node.input(0)
    axis = node.axis(node.attribute("axis", 0), value.rank)
    indices = whole_indices(node.draft, node.input(1), value.shape[axis])
    return gather(node.draft, value, indices, axis)


def _roi_align(node: OnnxNode) -> Value:
    value, regions, draft = node.input(0), node.input(1), node.draft
    if node.attribute("mode", "avg") != "avg":
        raise node.refuse("the HAL averages in regions only")
    standard = "half_pixel" if node.opset >= 16 else "output_half_pixel"
    mode = node.attribute("coordinate_transformation_mode", standard)
    if mode != "output_half_pixel" or value.type != F32:
        raise node.refuse(f"regions by {mode!r}, which the HAL widens to one pixel")
    size = node.attribute("output_height", 1), node.attribute("output_width", 1)
    ratio = 1.0 / node.attribute("spatial_scale", 1.0)
    samples = node.attribute("sampling_ratio", 0)
    batches = draft.cast(node.input(2), np.int32)
    scalars = [*size, ratio, ratio, samples, samples, True]
    return draft.emit(Op.ROI_ALIGN, [value, regions, batches, *scalars])


def _eye_like(node: OnnxNode) -> Value:
    shape = node.input(0).shape
    dtype = node.input(0).dtype
    if node.attribute("dtype") is not None:
        dtype = node.dtype("dtype")
    if len(shape) != 2:
        raise InvalidArgumentError(f"an identity of shape {list(shape)}")
    node.draft.allowance.take_elements(shape)
    return node.draft.constant(np.eye(*shape, node.attribute("k", 0), dtype))


CONVERTERS: dict[str, Converter] = {
    "Gather": _gather,
    "RoiAlign": _roi_align,
    "EyeLike": _eye_like,
}
