"""Turns the trained layers into models of the HAL, in floats or in 8-bit integers."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from asyncnn import ModelBuilder, NamedModel, OperandType, OperationType
from asyncnn.hal.types import FusedActivationFunc, Operand, SymmPerChannelQuantParams
from asyncnn.tools.demo import CLASSES
from network import SIDE, Floats, Layer, activations
from quantize import (
    PIXELS,
    PROBABILITIES,
    Quantization,
    calibrate,
    quantize_bias,
    quantize_weights,
)

Parameters: TypeAlias = Callable[[ModelBuilder, Layer, float], list[int]]
"""Adds weights and bias of a layer, given the scale of its input."""

_SAME, _VALID = 1, 2
_RELU6, _LINEAR = FusedActivationFunc.RELU6, FusedActivationFunc.NONE

_SCALARS: dict[OperationType, tuple[int, ...]] = {
    OperationType.CONV_2D: (_SAME, 1, 1, _RELU6),
    OperationType.DEPTHWISE_CONV_2D: (_SAME, 1, 1, 1, _RELU6),
    OperationType.MAX_POOL_2D: (_VALID, 2, 2, 2, 2, _LINEAR),
    OperationType.AVERAGE_POOL_2D: (_VALID, 2, 2, 2, 2, _LINEAR),
    OperationType.RESHAPE: (),
    OperationType.FULLY_CONNECTED: (_LINEAR,),
}
"""Scalar inputs after the tensors: padding scheme, strides, sizes, activation."""

_CHANNEL_AXES = {OperationType.CONV_2D: 0, OperationType.DEPTHWISE_CONV_2D: 3}


class _Form(NamedTuple):
    """How a model stores tensors; ``layers`` describes the output of each layer."""

    type: OperandType
    image: Quantization
    layers: Sequence[Quantization]
    probabilities: Quantization
    parameters: Parameters


def float_model(layers: Sequence[Layer]) -> NamedModel:
    """Return the model that takes grey levels in [0, 1] as float32 [1, 8, 8, 1]."""
    real = Quantization()
    form = _Form(
        type=OperandType.TENSOR_FLOAT32,
        image=real,
        layers=[real] * len(layers),
        probabilities=real,
        parameters=_float_parameters,
    )
    return _export(layers, form)


def int8_model(layers: Sequence[Layer], calibration: Floats) -> NamedModel:
    """Return the quantised model; ranges come from the ``calibration`` images."""
    form = _Form(
        type=OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
        image=PIXELS,
        layers=calibrate(layers, calibration),
        probabilities=PROBABILITIES,
        parameters=_int8_parameters,
    )
    return _export(layers, form)


def _export(layers: Sequence[Layer], form: _Form) -> NamedModel:
    builder = ModelBuilder()
    shape: tuple[int, ...] = (1, SIDE, SIDE, 1)
    shapes = [y.shape for y in activations(layers, np.zeros(shape, np.float32))]
    scale, zero_point = form.image
    x = builder.input("image", form.type, shape, scale=scale, zero_point=zero_point)
    for layer, shape, quantization in zip(layers, shapes, form.layers, strict=True):
        inputs = [x, *_tensors(builder, layer, form, builder.operand(x).scale, shape)]
        inputs += [builder.scalar(int(value)) for value in _SCALARS[layer.operation]]
        x = builder.operation(
            layer.operation, inputs, _operand(form, shape, quantization)
        )
    probabilities = builder.operation(
        OperationType.SOFTMAX,
        [x, builder.scalar(1.0)],
        _operand(form, (1, CLASSES), form.probabilities),
    )
    builder.output(probabilities, "probabilities")
    return builder.build()


def _operand(
    form: _Form, shape: tuple[int, ...], quantization: Quantization
) -> Operand:
    scale, zero_point = quantization
    return Operand(form.type, shape, scale=scale, zero_point=zero_point)


def _tensors(
    builder: ModelBuilder,
    layer: Layer,
    form: _Form,
    input_scale: float,
    output_shape: tuple[int, ...],
) -> list[int]:
    """Add the constant tensors that the operation reads."""
    if layer.operation is OperationType.RESHAPE:
        return [builder.constant(np.array(output_shape, np.int32))]
    if not layer.parameters:
        return []
    return form.parameters(builder, layer, input_scale)


def _float_parameters(
    builder: ModelBuilder, layer: Layer, input_scale: float
) -> list[int]:
    return [builder.constant(array) for array in layer.parameters]


def _int8_parameters(
    builder: ModelBuilder, layer: Layer, input_scale: float
) -> list[int]:
    weights, bias = layer.parameters
    axis = _CHANNEL_AXES.get(layer.operation)
    codes, scales = quantize_weights(weights, axis)
    bias_scales = np.float32(input_scale) * scales
    bias_codes = quantize_bias(bias, bias_scales)
    if axis is None:
        return [
            builder.constant(
                codes, OperandType.TENSOR_QUANT8_ASYMM_SIGNED, scale=float(scales[0])
            ),
            builder.constant(bias_codes, scale=float(bias_scales[0])),
        ]
    per_channel = SymmPerChannelQuantParams(tuple(scales.tolist()), axis)
    return [
        builder.constant(
            codes, OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL, channel_quant=per_channel
        ),
        builder.constant(bias_codes),
    ]
