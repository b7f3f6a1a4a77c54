"""The workload of TENSOR_QUANT16_ASYMM, the type of quantised boxes."""

import numpy as np

from asyncnn.devices.measured_capabilities import ReferenceWorkload
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.tools.capabilities.coding import Coding
from asyncnn.tools.capabilities.workload import Workload, add_inputs

_BOXES = 256
_CLASSES = 16
_SIDE = 512.0

_PLACES = Coding(OperandType.TENSOR_QUANT16_ASYMM, scale=0.125)
_DELTAS = Coding(OperandType.TENSOR_QUANT8_ASYMM, 2.0**-6, 128)
_INDICES = Coding(OperandType.TENSOR_INT32)


def boxes() -> Workload:
    """Return AXIS_ALIGNED_BBOX_TRANSFORM of boxes in one image, for each class."""
    rng = np.random.default_rng(4)
    corner, size = rng.uniform(16, 200, (2, _BOXES, 2))
    inputs = (
        _PLACES.write(np.concatenate((corner, corner + size), axis=1)),
        rng.integers(64, 192, (_BOXES, _CLASSES * 4), np.uint8),
        np.zeros(_BOXES, np.int32),
        _PLACES.write(np.full((1, 2), _SIDE)),
    )
    codings = (_PLACES, _DELTAS, _INDICES, _PLACES)
    operands = [
        coding.operand(array.shape)
        for coding, array in zip(codings, inputs, strict=True)
    ]
    builder = ModelBuilder()
    moved = builder.operation(
        OperationType.AXIS_ALIGNED_BBOX_TRANSFORM,
        add_inputs(builder, *operands),
        _PLACES.operand((_BOXES, _CLASSES * 4)),
    )
    builder.output(moved, "moved")
    return Workload(
        ReferenceWorkload.TENSOR_QUANT16_ASYMM, builder.build(), inputs, _moved
    )


def _moved(boxes: Array, deltas: Array, images: Array, sizes: Array) -> tuple[Array]:
    corners = _PLACES.read(boxes).reshape(_BOXES, 1, 2, 2)
    shifts, growths = np.split(
        _DELTAS.read(deltas).reshape(_BOXES, _CLASSES, 4), 2, axis=-1
    )
    size = corners[:, :, 1] - corners[:, :, 0]
    center = corners.mean(axis=2) + shifts * size
    half = size * np.exp(growths) / 2
    most = _PLACES.read(sizes)[images, np.newaxis, ::-1]
    ends = [np.clip(end, 0, most) for end in (center - half, center + half)]
    return (_PLACES.write(np.concatenate(ends, axis=-1).reshape(_BOXES, -1)),)
