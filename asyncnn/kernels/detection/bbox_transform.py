"""AXIS_ALIGNED_BBOX_TRANSFORM: boxes refined by the deltas of every class.

Source: 1.3/types.hal (AXIS_ALIGNED_BBOX_TRANSFORM).
"""

from asyncnn.hal.operations.bound import BoundOperation
from asyncnn.hal.types import OperationType
from asyncnn.kernels.detection.boxes import (
    refine,
    require_batch_indices,
    require_boxes,
)
from asyncnn.kernels.detection.numbers import from_float32, to_float32
from asyncnn.kernels.kernel import Inputs, Outputs, Prepare, PreparedKernel, stateless


def _prepare(operation: BoundOperation) -> PreparedKernel:
    """Move each box by its deltas, one set for each class, and clip it to its image.

    ``center + (dx, dy) * size`` becomes the centre, ``size * exp((dw, dh))`` the size.

    Inputs: ``boxes: B [boxes, 4]`` as x1, y1, x2, y2; ``deltas: T [boxes,
    classes * 4]`` as dx, dy, dw, dh; ``batch_indices: int32 [boxes]``; ``image_info: B
    [images, 2]`` as height, width. There may be no boxes.

    Output: ``B [boxes, classes * 4]``. Quantised boxes count eighths of a pixel.

    The run raises `OperationFailedError` if a box ends before it begins or a batch
    index is not that of an image.

    Source: 1.3/types.hal (AXIS_ALIGNED_BBOX_TRANSFORM).
    """
    boxes, deltas, _, image_info = (operation.input(index) for index in range(4))
    output = operation.outputs[0]
    count, columns = deltas.require_shape()
    images = image_info.require_shape()[0]

    def run(inputs: Inputs, outputs: Outputs) -> None:
        places = to_float32(inputs[0], boxes)
        require_boxes(operation, places)
        require_batch_indices(operation, inputs[2], images)
        sizes = to_float32(inputs[3], image_info)[inputs[2]]
        moves = to_float32(inputs[1], deltas).reshape(count, columns // 4, 4)
        refined = refine(places[:, None], moves, sizes[:, None])
        outputs[0][...] = from_float32(refined.reshape(count, columns), output)

    return stateless(run)


KERNELS: dict[OperationType, Prepare] = {
    OperationType.AXIS_ALIGNED_BBOX_TRANSFORM: _prepare,
}
