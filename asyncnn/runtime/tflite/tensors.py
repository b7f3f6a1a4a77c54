"""TFLite tensors as HAL operands, and what a file says of an operator's."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operands import DTYPES, size_of_data_bytes
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Operand, OperandType, SymmPerChannelQuantParams
from asyncnn.runtime.axes import CountsAxes, dimensions_of
from asyncnn.runtime.unsupported import UnsupportedOperatorError
from asyncnn.tflite.tables import Graph, Operator, Tensor

if TYPE_CHECKING:  # regions are loaded without it
    from asyncnn.runtime.graph_builder import GraphBuilder

_TYPES = {
    "FLOAT32": OperandType.TENSOR_FLOAT32,
    "FLOAT16": OperandType.TENSOR_FLOAT16,
    "INT64": OperandType.TENSOR_INT32,
    "INT32": OperandType.TENSOR_INT32,
    "INT16": OperandType.TENSOR_QUANT16_SYMM,
    "INT8": OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
    "UINT8": OperandType.TENSOR_QUANT8_ASYMM,
    "BOOL": OperandType.TENSOR_BOOL8,
}
_ZERO_POINTS = {"INT16": (0, 0), "INT8": (-128, 127), "UINT8": (0, 255)}
"""The least and the greatest zero point of the quantised types."""


def describe(tensor: Tensor) -> Operand:
    """Return type, dimensions and quantisation of the operand of ``tensor``.

    The HAL has no tensors of rank 0 and of int64: they become rank 1 and int32. Of more
    than four axes the first ones are merged. Bytes without quantisation get scale 1, so
    that they stand for themselves.

    :raises UnsupportedOperatorError: if the HAL has no such tensors.
    :raises InvalidArgumentError: if the tensor contradicts itself.
    """
    if tensor.unsupported:
        raise UnsupportedOperatorError(f"{tensor.label} has {tensor.unsupported}")
    if 0 in tensor.shape:
        raise UnsupportedOperatorError(f"{tensor.label} has no elements")
    dimensions = dimensions_of(tensor.shape)
    size_of_data_bytes(_TYPES[tensor.type], dimensions)
    if tensor.type not in _ZERO_POINTS:
        return Operand(_TYPES[tensor.type], dimensions)
    if not tensor.scales:
        return Operand(_TYPES[tensor.type], dimensions, scale=1.0)
    scales = tuple(tensor.scales)
    _check_quantization(tensor, scales)
    if len(scales) == 1:
        return Operand(
            _TYPES[tensor.type],
            dimensions,
            scale=scales[0],
            zero_point=next(iter(tensor.zero_points), 0),
        )
    return Operand(
        OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
        dimensions,
        extra_params=SymmPerChannelQuantParams(scales, tensor.quantized_dimension),
    )


def same_values(one: Operand, other: Operand) -> bool:
    """Return whether elements of both stand for the same numbers."""
    first, second = ((each.type, each.scale, each.zero_point) for each in (one, other))
    return first == second


def add_constant(builder: "GraphBuilder", tensor: Tensor, operand: Operand) -> int:
    """Add the data of a constant ``tensor`` as ``operand`` describes it.

    The data are not copied where the HAL can use the bytes of the file.

    :raises UnsupportedOperatorError: if a value does not fit in the type.
    """
    data = elements(tensor).reshape(operand.dimensions)
    return constant_like(builder, data, operand)


def constant_like(builder: "GraphBuilder", array: Array, like: Operand) -> int:
    """Add an array as a constant of the type and quantisation of ``like``."""
    quant = like.extra_params
    return builder.constant(
        array,
        OperandType(like.type),
        scale=like.scale,
        zero_point=like.zero_point,
        channel_quant=quant if isinstance(quant, SymmPerChannelQuantParams) else None,
    )


def filled(builder: "GraphBuilder", like: Operand, value: float) -> int:
    """Add a constant like ``like`` whose elements are all stored as ``value``."""
    data = np.full(like.dimensions, value, DTYPES[like.type])
    return constant_like(builder, data, like)


def bias_scale(input_: Operand, filter_: Operand) -> float:
    """Return the scale that the HAL demands of a bias; 0 for per-channel filters."""
    if filter_.type == OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL:
        return 0.0
    return float(np.float32(input_.scale) * np.float32(filter_.scale))


def elements(tensor: Tensor) -> Array:
    """Return the data of a constant ``tensor`` in the dtype of its operand.

    :raises UnsupportedOperatorError: if a value does not fit in the type.
    """
    data = tensor.data
    assert data is not None
    if data.dtype == np.bool_:
        return np.not_equal(data.view(np.uint8), 0)
    if data.dtype != np.int64:
        return data
    narrow = data.astype(np.int32)
    if not np.array_equal(narrow, data):
        raise UnsupportedOperatorError(f"{tensor.label} has values beyond 32 bits")
    return narrow


def _check_quantization(tensor: Tensor, scales: tuple[float, ...]) -> None:
    count = len(scales)
    # What is not finite makes the sum not finite, wherever it stands.
    if min(scales) <= 0 or not math.isfinite(sum(scales)):
        raise InvalidArgumentError(f"{tensor.label} has a scale that is not positive")
    if len(tensor.zero_points) not in (0, count):
        raise InvalidArgumentError(
            f"{tensor.label} has {count} scales but {len(tensor.zero_points)} "
            "zero points"
        )
    if count > 1:
        _check_channels(tensor)
    elif not _zero_point_fits(tensor):
        raise InvalidArgumentError(
            f"{tensor.label} has zero point {tensor.zero_points[0]}"
        )


def _check_channels(tensor: Tensor) -> None:
    axis = tensor.quantized_dimension
    if not 0 <= axis < len(tensor.shape):
        raise InvalidArgumentError(f"{tensor.label} has no axis {axis} to quantise")
    if tensor.shape[axis] != len(tensor.scales):
        raise InvalidArgumentError(
            f"{tensor.label} has {len(tensor.scales)} scales for axis {axis} "
            f"of {list(tensor.shape)}"
        )
    if tensor.type != "INT8" or any(tensor.zero_points) or tensor.data is None:
        raise UnsupportedOperatorError(
            f"{tensor.label} is quantised per channel, which the HAL allows for "
            "constants of int8 with zero point 0"
        )


def _zero_point_fits(tensor: Tensor) -> bool:
    if not tensor.zero_points:
        return True
    least, greatest = _ZERO_POINTS[tensor.type]
    return least <= tensor.zero_points[0] <= greatest


class OperatorTensors(CountsAxes):
    """An operator with the tensors and options that it refers to."""

    def __init__(self, graph: Graph, operator: Operator) -> None:
        self.operator = operator
        self.graph = graph

    def has(self, index: int) -> bool:
        """Return whether input ``index`` is there and not left out."""
        inputs = self.operator.inputs
        return index < len(inputs) and inputs[index] >= 0

    def tensor(self, index: int) -> Tensor:
        """Return the tensor of input ``index``.

        :raises InvalidArgumentError: if the input is left out.
        """
        if not self.has(index):
            raise InvalidArgumentError(f"input {index} is missing")
        return self.graph.tensors[self.operator.inputs[index]]

    def intermediate(self, index: int) -> Tensor:
        """Return the tensor that describes intermediate result ``index``.

        :raises InvalidArgumentError: if there is none.
        """
        intermediates = self.operator.intermediates
        if index >= len(intermediates) or intermediates[index] < 0:
            raise InvalidArgumentError(f"intermediate tensor {index} is missing")
        return self.graph.tensors[intermediates[index]]

    def result(self, index: int = 0) -> Tensor:
        """Return the tensor of output ``index``.

        :raises InvalidArgumentError: if there is no such output.
        """
        outputs = self.operator.outputs
        if index >= len(outputs) or outputs[index] < 0:
            raise InvalidArgumentError(f"output {index} is missing")
        return self.graph.tensors[outputs[index]]

    def target(self, index: int = 0) -> Operand:
        """Return what the file promises output ``index`` to be."""
        return describe(self.result(index))

    @property
    def type(self) -> OperandType:
        """Operand type of input 0."""
        return OperandType(describe(self.tensor(0)).type)

    def options(self, kind: str) -> Any:
        """Return the options, a table of class ``kind`` of the schema."""
        return self.operator.options(kind)

    def values(self, index: int) -> Array:
        """Return the data of input ``index``, which has to be a constant.

        :raises UnsupportedOperatorError: if it is computed.
        """
        tensor = self.tensor(index)
        if tensor.data is None:
            raise UnsupportedOperatorError(f"{tensor.label} is not a constant")
        return tensor.data

    def value(self, index: int) -> Any:
        """Return the only element of constant input ``index``.

        :raises InvalidArgumentError: if it has several.
        """
        return self.values(index).reshape(()).item()

    def rank(self, index: int = 0) -> int:
        """Return the rank of input ``index`` as an operand: at least 1."""
        return max(1, len(self.tensor(index).shape))
