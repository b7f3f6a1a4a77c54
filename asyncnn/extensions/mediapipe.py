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
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.operations.signature import Argument
from asyncnn.hal.types import OperandType

_F32 = OperandType.TENSOR_FLOAT32
_INT, _REAL, _BOOL = OperandType.INT32, OperandType.FLOAT32, OperandType.BOOL

mediapipe = Extension("asyncnn.mediapipe")


def _scalars(type_: OperandType, *names: str) -> list[Argument]:
    return [Argument(name, type_) for name in names]


_POOL = _scalars(
    _INT, "padding_scheme", "stride_width", "stride_height", "width", "height"
)

MAX_POOL_WITH_ARGMAX = mediapipe.operation(
    "MAX_POOL_WITH_ARGMAX",
    0,
    inputs=[Argument("input", _F32, (4,)), *_POOL, Argument("activation", _INT)],
    outputs=[Argument("maximum", _F32), Argument("place", _F32)],
    shape=kernels.pool_shape,
    prepare=kernels.prepare_pool,
)

MAX_UNPOOL = mediapipe.operation(
    "MAX_UNPOOL",
    1,
    inputs=[Argument("input", _F32, (4,)), Argument("place", _F32, (4,)), *_POOL],
    outputs=[Argument("output", _F32)],
    shape=kernels.unpool_shape,
    prepare=kernels.prepare_unpool,
)

TRANSFORM_TENSOR = mediapipe.operation(
    "TRANSFORM_TENSOR",
    2,
    inputs=[
        Argument("input", _F32, (4,)),
        Argument("matrix", _F32),
        *_scalars(_INT, "height", "width"),
        Argument("centred", _BOOL),
    ],
    outputs=[Argument("output", _F32)],
    shape=kernels.transformed_shape,
    prepare=kernels.prepare_transform,
)

TRANSFORM_LANDMARKS = mediapipe.operation(
    "TRANSFORM_LANDMARKS",
    3,
    inputs=[
        Argument("landmarks", _F32, (3, 4)),
        Argument("matrix", _F32),
        Argument("dimensions", _INT),
        Argument("scale", _REAL),
    ],
    outputs=[Argument("output", _F32)],
    shape=kernels.landmarks_shape,
    prepare=kernels.prepare_landmarks,
)

_LANDMARKS = [
    Argument("landmarks", _F32, (3, 4)),
    Argument("enclosed", OperandType.TENSOR_INT32, (1,)),
    *_scalars(_INT, "left", "right", "height", "width"),
]

BOX_MATRIX = mediapipe.operation(
    "BOX_MATRIX",
    4,
    inputs=[
        *_LANDMARKS,
        *_scalars(_INT, "input_height", "input_width", "range"),
        Argument("factor", _REAL),
    ],
    outputs=[Argument("matrix", _F32)],
    shape=kernels.matrix_shape,
    prepare=kernels.prepare_box_matrix,
)

CROP_MATRIX = mediapipe.operation(
    "CROP_MATRIX",
    5,
    inputs=[*_LANDMARKS, *_scalars(_REAL, "angle", "factor_x", "factor_y")],
    outputs=[Argument("matrix", _F32)],
    shape=kernels.matrix_shape,
    prepare=kernels.prepare_crop_matrix,
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
