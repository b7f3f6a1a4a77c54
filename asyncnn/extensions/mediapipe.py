"""The extension ``asyncnn.mediapipe``: custom operators of MediaPipe's models.

Pools that return where their maxima are, and the inverse; landmarks that give a
transform, and tensors and landmarks that are transformed by it. All are of float32.
Every device of the project has it. (Convolution2DTransposeBias needs no extension.)

Source: MediaPipe 0.8, operators of its TFLite models, versions 1 and 2.
"""

from collections.abc import Iterable
from functools import partial

import numpy as np

from asyncnn.extensions import mediapipe_kernels as kernels
from asyncnn.extensions.custom import FlexOptions, packed_integers
from asyncnn.extensions.extension import Extension
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array, ShapeRule
from asyncnn.hal.operations.declaring import layout_of
from asyncnn.kernels.kernel import ExtensionOperation, Prepare

mediapipe = Extension("asyncnn.mediapipe")

_POOL = "padding_scheme stride_width stride_height width height"
_LANDMARKS = "landmarks: F32 [3-4], enclosed: I32 [1], left right height width: INT32"
_TO_MATRIX = f"{_LANDMARKS}, {{}} -> matrix: F32"


def _declared(
    name: str, layout: str, shape: ShapeRule, prepare: Prepare
) -> ExtensionOperation:
    """Declare the next operation, by a layout as the HAL's own have it."""
    number, parsed = len(mediapipe.operation_types), layout_of(layout)
    return mediapipe.operation(
        *(name, number),
        inputs=parsed.inputs,
        outputs=parsed.outputs,
        shape=shape,
        prepare=prepare,
    )


MAX_POOL_WITH_ARGMAX = _declared(
    "MAX_POOL_WITH_ARGMAX",
    f"input: F32 [4], {_POOL} activation: INT32 -> maximum place: F32",
    kernels.pool_shape,
    kernels.prepare_pool,
)
MAX_UNPOOL = _declared(
    "MAX_UNPOOL",
    f"input place: F32 [4], {_POOL}: INT32 -> output: F32",
    kernels.unpool_shape,
    kernels.prepare_unpool,
)
TRANSFORM_TENSOR = _declared(
    "TRANSFORM_TENSOR",
    "input: F32 [4], matrix: F32, height width: INT32, centred: BOOL -> output: F32",
    kernels.transformed_shape,
    kernels.prepare_transform,
)
TRANSFORM_LANDMARKS = _declared(
    "TRANSFORM_LANDMARKS",
    "landmarks: F32 [3-4], matrix: F32, dimensions: INT32, scale: FLOAT32 "
    "-> output: F32",
    kernels.landmarks_shape,
    kernels.prepare_landmarks,
)
BOX_MATRIX = _declared(
    "BOX_MATRIX",
    _TO_MATRIX.format("input_height input_width range: INT32, factor: FLOAT32"),
    kernels.matrix_shape,
    kernels.prepare_box_matrix,
)
CROP_MATRIX = _declared(
    "CROP_MATRIX",
    _TO_MATRIX.format("angle factor_x factor_y: FLOAT32"),
    kernels.matrix_shape,
    kernels.prepare_crop_matrix,
)


def _tensor_options(data: bytes) -> Iterable[int]:
    options = FlexOptions(data)
    mode = options.text("mode", "bilinear")
    if mode != "bilinear":
        raise InvalidArgumentError(f"option 'mode' is {mode!r}, not 'bilinear'")
    height, width = options.integers("output_size")
    return height, width, False


def _centred_tensor_options(data: bytes) -> Iterable[int]:
    options = FlexOptions(data)
    return options.integer("output_height"), options.integer("output_width"), True


def _landmark_options(data: bytes) -> Iterable[float]:
    options = FlexOptions(data)
    return options.integer("dimensions", 3), options.real("scale", 1.0)


def _box_options(data: bytes) -> Iterable[float | Array]:
    options = FlexOptions(data)
    if options.integer("dimensions") != 3:
        raise InvalidArgumentError("option 'dimensions' is not 3")
    return (
        np.array(options.integers("subset"), np.int32),
        options.integer("left_rotation_idx"),
        options.integer("right_rotation_idx"),
        *options.integers("output_hw"),
        *options.integers("input_hw"),
        options.integer("landmarks_range"),
        options.real("bbox_size_multiplier"),
    )


def _crop_options(data: bytes) -> Iterable[float | Array]:
    options = FlexOptions(data)
    return (
        np.array(options.integers("subset_idxs"), np.int32),
        options.integer("left_rotation_idx"),
        options.integer("right_rotation_idx"),
        options.integer("output_height"),
        options.integer("output_width"),
        options.real("target_rotation_radians"),
        options.real("scale_x"),
        options.real("scale_y"),
    )


for _name, _version, _operation, _options in (
    (
        "MaxPoolingWithArgmax2D",
        1,
        MAX_POOL_WITH_ARGMAX,
        partial(packed_integers, count=6),
    ),
    ("MaxUnpooling2D", 1, MAX_UNPOOL, partial(packed_integers, count=5)),
    ("TransformTensor", 1, TRANSFORM_TENSOR, _tensor_options),
    ("TransformTensorBilinear", 1, TRANSFORM_TENSOR, _tensor_options),
    ("TransformTensorBilinear", 2, TRANSFORM_TENSOR, _centred_tensor_options),
    ("TransformLandmarks", 1, TRANSFORM_LANDMARKS, _landmark_options),
    ("TransformLandmarks", 2, TRANSFORM_LANDMARKS, lambda _: (0, 1.0)),
    ("Landmarks2TransformMatrix", 1, BOX_MATRIX, _box_options),
    ("Landmarks2TransformMatrix", 2, CROP_MATRIX, _crop_options),
):
    mediapipe.custom_operator(_name, _operation, version=_version, options=_options)
