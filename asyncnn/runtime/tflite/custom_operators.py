"""Custom operators: of extensions, and those that are operations of the HAL.

Source: TensorFlow Lite's builtin data (TfLiteTransposeConvParams) and the options of
TFLite_Detection_PostProcess.
"""

import numpy as np
from msgspec.structs import replace

from asyncnn.extensions import CustomOperators, FlexOptions, packed_integers
from asyncnn.extensions.extension import CustomOperator
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Operand, OperandType, OperationType
from asyncnn.runtime.tflite.node import Converter, Node
from asyncnn.runtime.unsupported import UnsupportedOperatorError

PREFIX = "CUSTOM "
"""What stands before the name of a custom operator in `Operator.name`."""

_F32, _I32 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_INT32


def convert_custom(node: Node, extensions: CustomOperators) -> None:
    """Add the operation of an extension that a custom operator is.

    :raises UnsupportedOperatorError: if no extension has it.
    """
    name, version = node.operator.name.removeprefix(PREFIX), node.operator.version
    found = extensions.find(name, version)
    if found is None:
        raise UnsupportedOperatorError(
            "no extension has this custom operator",
            hint="give the one that has: load(path, extensions=[...])",
        )
    inputs = [
        node.read(index) if node.has(index) else node.builder.omitted(_F32)
        for index in range(len(node.operator.inputs))
    ]
    for value in _options(found, node):
        if isinstance(value, np.ndarray):
            inputs.append(node.builder.constant(value))
        else:
            inputs.append(node.scalar(value))
    targets = [node.target(index) for index in range(len(node.operator.outputs))]
    for index, result in enumerate(node.compute_all(found.operation, inputs, targets)):
        node.store(result, index)


def _options(found: CustomOperator, node: Node) -> list[float | Array]:
    """Return what the extension makes of the options.

    :raises InvalidArgumentError: if it raises anything, whatever it is.
    """
    try:
        return list(found.options(node.operator.custom_options()))
    except (AsyncnnError, MemoryError):
        raise
    except Exception as error:
        raise InvalidArgumentError(
            f"reading its options failed: {type(error).__name__}: {error}",
            hint=f"that is done by the extension {found.operation.extension}",
        ) from error


def _transpose_conv_bias(node: Node) -> None:
    """Add a TRANSPOSE_CONV_2D whose padding is given: it is not as the HAL implies.

    The output has ``stride * (length - 1) + window`` elements along an axis, less what
    the scheme SAME cuts off: all of the window beyond the last stride.
    """
    scheme, stride_x, stride_y = packed_integers(node.operator.custom_options(), 3)
    shape, filter_ = node.tensor(0).shape, node.tensor(1).shape
    if scheme not in (1, 2) or min(stride_x, stride_y) < 1:
        raise InvalidArgumentError(f"padding {scheme}, strides {stride_x}, {stride_y}")
    if len(shape) != 4 or len(filter_) != 4:
        raise InvalidArgumentError(f"shapes {list(shape)} and {list(filter_)}")
    paddings = []
    for axis, stride in ((2, stride_x), (1, stride_y)):
        whole = filter_[axis] - (shape[axis] - 1) % stride - 1 if scheme == 1 else 0
        before = max(0, whole) // 2
        paddings += [before, max(0, whole) - before]
    tensors = [node.dequantize(node.read(index)) for index in range(3)]
    scalars = [*paddings, stride_x, stride_y, 0, False]
    inputs = [*tensors, *map(node.scalar, scalars)]
    node.emit(OperationType.TRANSPOSE_CONV_2D, inputs)


def _detection_postprocess(node: Node) -> None:
    options = FlexOptions(node.operator.custom_options())
    classes = options.integer("num_classes")
    most = options.integer("max_detections")
    of_box = min(options.integer("max_classes_per_detection", 1), classes)
    is_regular = options.boolean("use_regular_nms", False)
    deltas, scores, anchors = (node.dequantize(node.read(k)) for k in range(3))
    scores = _with_background(node, scores, classes)
    batch = node.tensor(0).shape[0]
    count = most if is_regular else most * of_box
    scales = [options.real(f"{axis}_scale") for axis in "yxhw"]
    scalars = [
        *scales,
        is_regular,
        most,
        of_box,
        options.integer("detections_per_class", 100),
        options.real("nms_score_threshold"),
        options.real("nms_iou_threshold"),
        False,
    ]
    floats, integers = Operand(_F32, (batch, count)), Operand(_I32, (batch, count))
    outputs = [
        floats,
        replace(floats, dimensions=(batch, count, 4)),
        integers,
        replace(integers, dimensions=(batch,)),
    ]
    inputs = [scores, deltas, anchors, *map(node.scalar, scalars)]
    found, boxes, labels, number = node.compute_all(
        OperationType.DETECTION_POSTPROCESSING, inputs, outputs
    )
    for index, result in enumerate((boxes, labels, found, number)):
        like = node.builder.operand(result)
        if like.type == _I32:
            output = replace(like, type=_F32)
            result = node.compute(OperationType.CAST, [result], output)
        node.store(result, index)


def _with_background(node: Node, scores: int, classes: int) -> int:
    """Return scores of which the first class is the background, as the HAL has it."""
    dimensions = node.builder.operand(scores).dimensions
    if dimensions[-1] == classes + 1:
        return scores
    if dimensions[-1] != classes or len(dimensions) != 3:
        raise InvalidArgumentError(
            f"scores of shape {list(dimensions)} for {classes} classes"
        )
    padding = node.builder.constant(np.array([[0, 0], [0, 0], [1, 0]], np.int32))
    output = Operand(_F32, (*dimensions[:-1], classes + 1))
    return node.compute(OperationType.PAD, [scores, padding], output)


CONVERTERS: dict[str, Converter] = {
    f"{PREFIX}Convolution2DTransposeBias": _transpose_conv_bias,
    f"{PREFIX}TFLite_Detection_PostProcess": _detection_postprocess,
}
"""Those that are operations of the HAL, by the operator's name."""
