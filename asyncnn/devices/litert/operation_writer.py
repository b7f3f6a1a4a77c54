"""What the families of operators share: how one operation of the HAL is written.

A `Rule` says of an operation type which types are claimed and calls its function with
an `OperationWriter`, which has the operation's operands as tensors. The function raises
`NotWrittenError` for what it does not claim. Whether an operation is claimed and how it
is written therefore cannot differ.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from asyncnn.devices.litert.operand_tensors import (
    NotWrittenError,
    OperandTensors,
    computed_type,
    quantization_in,
)
from asyncnn.devices.litert.tflite_graph import (
    FLOAT32,
    INT8,
    UINT8,
    OperatorOptions,
    WrittenGraph,
    WrittenTensor,
    elements,
    options,
)
from asyncnn.hal.operands import QUANT8_TYPES, is_scalar
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation, Shape
from asyncnn.hal.operations.shapes import NCHW_TO_NHWC
from asyncnn.hal.types import FusedActivationFunc, OperandType, OperationType

FLOATS = (OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16)
CODES = (OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED)
I32 = OperandType.TENSOR_INT32
B8 = OperandType.TENSOR_BOOL8

MAX_ELEMENTS = 2**29 - 1
"""Most elements of a tensor: as float32 it has a size that int32 can hold."""

MAX_RANK = 4

_LARGEST_GROWTH = 16
_ANY_SIZE = 2**16
"""A padded image has not more elements than that, or than so many times those of
inputs and outputs: padding must not take the memory of the process.
"""

_BEYOND_XNNPACK = 7
"""A rank that XNNPACK does not take, and LiteRT's own kernels of one input do."""

_FINEST_ACTIVATED = 2.0**-20
"""Finest scale whose bounds of a fused activation are int32 for certain."""

_SCALES = (2.0**-60, 2.0**60)
_RATIOS = (2.0**-8, 2.0**7)
"""Between scales of inputs and outputs, where codes are rescaled: beyond, fixed-point
multipliers saturate, and LiteRT ends the process.
"""


class OperationWriter:
    """One operation, its operands as tensors, and the graph that it is added to."""

    def __init__(
        self,
        graph: WrittenGraph,
        values: OperandTensors,
        operation: BoundOperation,
        inputs: Sequence[int],
        outputs: Sequence[int],
    ) -> None:
        self.graph = graph
        self.operation = operation
        self._values = values
        self._inputs = inputs
        self._outputs = outputs

    def operand(self, index: int) -> BoundOperand:
        """Return the description of input ``index``."""
        return self.operation.input(index)

    def input(self, index: int, type_: str | None = None) -> WrittenTensor:
        """Return input ``index`` as it is computed, or as ``type_``."""
        operand = self.operand(index)
        return self._values.take(
            self._inputs[index], operand, type_ or computed_type(operand)
        )

    def as_it_is(self, index: int) -> WrittenTensor:
        """Return input ``index`` in a form that it has already, for what only moves it.

        Results of the same type go into `output` of that type.
        """
        operand = self.operand(index)
        if operand.value is not None or operand.type not in QUANT8_TYPES:
            return self.input(index)
        is_signed = INT8 in self._values.forms(self._inputs[index])
        return self.input(index, INT8 if is_signed else UINT8)

    def output(self, position: int = 0, type_: str | None = None) -> WrittenTensor:
        """Add the tensor of output ``position``, computed as usual or as ``type_``."""
        operand = self.operation.outputs[position]
        tensor = self._values.create(operand, type_ or computed_type(operand))
        self._values.put(self._outputs[position], tensor)
        return tensor

    def temporary(self, shape: Shape, type_: str | None = None) -> WrittenTensor:
        """Add a tensor that is like the first output but for its shape."""
        operand = self.operation.outputs[0]
        type_ = type_ or computed_type(operand)
        return self.graph.tensor(type_, shape, *quantization_in(operand, type_))

    def emit(
        self,
        name: str,
        inputs: Sequence[WrittenTensor],
        output: WrittenTensor,
        table: OperatorOptions | None = None,
        version: int | None = None,
    ) -> WrittenTensor:
        """Add an operator of one output, which is returned."""
        self.graph.operator(name, inputs, [output], table, version)
        return output

    def pair(
        self,
        name: str,
        first: WrittenTensor,
        second: WrittenTensor,
        target: WrittenTensor | None = None,
    ) -> WrittenTensor:
        """Add arithmetic without an activation; floats like the first by default."""
        if name in ("MAXIMUM", "MINIMUM"):
            table = options("MaximumMinimumOptions")
        else:
            table = options(f"{name.capitalize()}Options", FusedActivationFunction=0)
        result = self.floats(first.shape) if target is None else target
        return self.emit(name, [first, second], result, table)

    def emit_reshaped(
        self,
        name: str,
        inputs: Sequence[WrittenTensor],
        shape: Shape,
        table: OperatorOptions,
        type_: str | None = None,
    ) -> None:
        """Add an operator with a result of ``shape``, made the output by RESHAPE."""
        kept = shape == self.output_shape()
        target = self.output(type_=type_) if kept else self.temporary(shape, type_)
        self.emit(name, inputs, target, table)
        if not kept:
            self.reshape(target, self.output(type_=type_))

    def require(self, condition: bool, reason: str, *shown: object) -> None:
        """Check what the operation is claimed for; ``reason`` formats what is shown.

        :raises NotWrittenError: if ``condition`` is false.
        """
        if not condition:
            text = reason.format(*shown) if shown else reason
            raise NotWrittenError(f"{self.operation.type.name}: {text}")

    @property
    def is_quantized(self) -> bool:
        """Return whether the first output has 8-bit codes."""
        return self.operation.outputs[0].type in QUANT8_TYPES

    def quantization(self, index: int) -> tuple[float, int]:
        """Return scale and zero point of input ``index`` as it is computed."""
        operand = self.operand(index)
        return quantization_in(operand, computed_type(operand))

    def output_quantization(self, position: int = 0) -> tuple[float, int]:
        """Return scale and zero point of an output as it is computed."""
        operand = self.operation.outputs[position]
        return quantization_in(operand, computed_type(operand))

    def keeps_quantization(self, index: int = 0) -> bool:
        """Return whether input ``index`` and the output share scale and zero."""
        return self.quantization(index) == self.output_quantization()

    def require_kept_quantization(self, index: int = 0) -> None:
        """Check that `keeps_quantization`.

        :raises NotWrittenError: if not.
        """
        self.require(
            self.keeps_quantization(index), "the output is quantised unlike the input"
        )

    def require_ratio(self, *factors: int) -> None:
        """Check what codes are multiplied with: scales of inputs by the output's.

        :raises NotWrittenError: if it is far from 1.
        """
        if not self.is_quantized:
            return
        ratio = 1 / self.operation.outputs[0].scale
        for index in factors:
            ratio *= self.operand(index).scale
        low, high = _RATIOS
        self.require(low < ratio < high, "scales that differ by {:g}", ratio)

    def quantized_like_output(self, index: int) -> WrittenTensor:
        """Return input ``index`` with the output's scale and zero point."""
        tensor = self.input(index)
        self.require_ratio(index)
        if not self.is_quantized or self.keeps_quantization(index):
            return tensor
        target = self.graph.tensor(INT8, tensor.shape, *self.output_quantization())
        return self.emit("QUANTIZE", [tensor], target)

    def dequantized(self, index: int) -> WrittenTensor:
        """Return the real values of input ``index``; constants are converted here."""
        operand = self.operand(index)
        if operand.value is None or operand.type not in QUANT8_TYPES:
            return self.real_values(self.input(index))
        real = RealValues(operand.scale, operand.zero_point)
        return self.graph.constant(FLOAT32, operand.value, convert=real)

    def real_values(self, tensor: WrittenTensor) -> WrittenTensor:
        """Return the real values of codes; all else has them already."""
        if tensor.type not in (INT8, UINT8):
            return tensor
        return self.emit("DEQUANTIZE", [tensor], self.floats(tensor.shape))

    def floats(self, shape: Shape) -> WrittenTensor:
        """Add a float32 tensor."""
        return self.graph.tensor(FLOAT32, shape)

    def quantized(self, real: WrittenTensor, position: int = 0) -> WrittenTensor:
        """Round real values to the codes of an output; floats are the output."""
        return self.emit("QUANTIZE", [real], self.output(position))

    def emit_on_floats(
        self, name: str, inputs: Sequence[int], table: OperatorOptions | None = None
    ) -> None:
        """Add an operator on the real values of inputs; codes are rounded once."""
        tensors = [self.dequantized(index) for index in inputs]
        self.finish_floats(
            lambda target: self.emit(name, tensors, target, table), self.output_shape()
        )

    def finish_floats(
        self, compute: Callable[[WrittenTensor], object], shape: Shape
    ) -> None:
        """Let ``compute`` fill the output, or real values that are rounded to it."""
        if not self.is_quantized:
            compute(self.output())
            return
        real = self.floats(shape)
        compute(real)
        self.quantized(real)

    def output_shape(self, position: int = 0) -> Shape:
        """Return the shape of an output."""
        return self.operation.outputs[position].require_shape()

    def activation(self, index: int) -> int:
        """Return the fused activation in scalar ``index`` by the schema's number."""
        return self.activation_code(self.operation.activation(index))

    def activation_code(self, activation: FusedActivationFunc) -> int:
        """Return the schema's number of an activation, which is the HAL's.

        :raises NotWrittenError: if the output's scale is too fine for its bounds.
        """
        if self.is_quantized and activation:
            scale = self.operation.outputs[0].scale
            is_coarse = scale >= _FINEST_ACTIVATED
            self.require(is_coarse, "an activation at scale {:g}", scale)
        return int(activation)

    def reshaped(self, source: WrittenTensor, shape: Shape) -> WrittenTensor:
        """Return ``source`` in another shape; the same tensor if it has that."""
        if source.shape == shape:
            return source
        return self.reshape(source, self.graph.like(source, shape))

    def reshape(self, source: WrittenTensor, target: WrittenTensor) -> WrittenTensor:
        """Add the operator that copies ``source`` to a tensor of another shape."""
        return self.emit("RESHAPE", [source, self.graph.integers(target.shape)], target)

    def transposed(
        self,
        source: WrittenTensor,
        order: tuple[int, ...],
        target: WrittenTensor | None = None,
    ) -> WrittenTensor:
        """Return ``source`` whose axis ``i`` is its axis ``order[i]`` now."""
        if target is None:
            shape = tuple(source.shape[axis] for axis in order)
            target = self.graph.like(source, shape)
        permutation = self.graph.integers(order)
        return self.emit(
            "TRANSPOSE", [source, permutation], target, options("TransposeOptions")
        )

    def require_moderate(self, shape: Shape) -> None:
        """Check that a tensor in between is not much larger than what comes and goes.

        :raises NotWrittenError: if it is.
        """
        given = elements(self.operation.shape(0)) + elements(self.output_shape())
        limit = min(max(_LARGEST_GROWTH * given, _ANY_SIZE), MAX_ELEMENTS)
        self.require(elements(shape) <= limit, f"{list(shape)} in between is too large")

    def outside_xnnpack(
        self,
        name: str,
        source: WrittenTensor,
        target: WrittenTensor,
        table: OperatorOptions | None = None,
    ) -> None:
        """Add an operator on single elements that XNNPACK does not get to see."""
        shape = (1,) * (_BEYOND_XNNPACK - 1) + (elements(source.shape),)
        result = self.graph.like(target, shape)
        self.emit(name, [self.reshaped(source, shape)], result, table)
        self.reshape(result, target)

    def pad(
        self,
        source: WrittenTensor,
        paddings: Sequence[tuple[int, int]],
        target: WrittenTensor,
        value: WrittenTensor | None = None,
    ) -> WrittenTensor:
        """Add the operator that pads with a value, or with zeros (real ones)."""
        inputs = [source, self.graph.integers(paddings)]
        if value is None:
            return self.emit("PAD", inputs, target, options("PadOptions"))
        return self.emit("PADV2", [*inputs, value], target, options("PadV2Options"))

    def padded(
        self,
        source: WrittenTensor,
        paddings: Sequence[tuple[int, int]],
        value: WrittenTensor | None = None,
    ) -> WrittenTensor:
        """Return ``source`` with ``value`` around it; see `pad`."""
        shape = tuple(
            before + length + after
            for length, (before, after) in zip(source.shape, paddings, strict=True)
        )
        self.require_moderate(shape)
        return self.pad(source, paddings, self.graph.like(source, shape), value)


class Reordered:
    """Input 0 with its axes in the order of an operator, and its result put right.

    ``source`` is what the operator reads.
    """

    def __init__(
        self, writer: OperationWriter, source: WrittenTensor, order: tuple[int, ...]
    ) -> None:
        self._writer, self._order = writer, order
        self._moves = list(order) != sorted(order)
        self.source = writer.transposed(source, order) if self._moves else source

    @classmethod
    def nhwc(
        cls, writer: OperationWriter, source: WrittenTensor, *, nchw: bool
    ) -> "Reordered":
        """Return images with their channels last."""
        return cls(writer, source, NCHW_TO_NHWC if nchw else (0, 1, 2, 3))

    def target(self) -> WrittenTensor:
        """Return the tensor that the operator fills, of the type of ``source``."""
        type_, shape = self.source.type, self._writer.output_shape()
        if not self._moves:
            return self._writer.output(type_=type_)
        return self._writer.temporary(tuple(shape[axis] for axis in self._order), type_)

    def finish(self, target: WrittenTensor) -> None:
        """Bring ``target`` to the output, which is made anew for that."""
        if self._moves:
            output = self._writer.output(type_=target.type)
            back = tuple(map(self._order.index, range(len(self._order))))
            self._writer.transposed(target, back, output)


class RealValues(msgspec.Struct, frozen=True):
    """Converts stored codes to what they stand for."""

    scale: float
    zero_point: int

    def __call__(self, codes: Array) -> Array:
        """Return the real values of ``codes`` as float32."""
        steps = codes.astype(np.int16) - self.zero_point
        return steps.astype(np.float32) * np.float32(self.scale)


Write: TypeAlias = Callable[[OperationWriter], None]


class Rule(msgspec.Struct, frozen=True):
    """How an operation is written, and of which types it is claimed.

    ``types`` are input ``typed_by``'s. ``said`` names the operators of TFLite,
    ``refused`` what is left to the kernels, and why; both are for the documentation.
    """

    write: Write
    types: tuple[OperandType, ...]
    said: str
    refused: str = ""
    typed_by: int = 0
    max_rank: int = MAX_RANK


def alike(
    names: str,
    write: Callable[[str], Write],
    types: tuple[OperandType, ...],
    note: str = "",
    refused: str = "",
    typed_by: int = 0,
) -> dict[OperationType, Rule]:
    """Return rules of operations that TFLite has by the same names, written alike."""
    return {
        OperationType[name]: Rule(write(name), types, name + note, refused, typed_by)
        for name in names.split()
    }


def check_operands(operation: BoundOperation, rule: Rule) -> None:
    """Check what holds of every operation: types, shapes, scales.

    :raises NotWrittenError: if an operand is beyond what is claimed.
    """
    deciding = operation.input(rule.typed_by).type
    reason = ""
    if deciding not in rule.types:
        reason = f"{deciding.name} is not claimed"
    elif all(each is None or each.value is not None for each in operation.inputs):
        reason = "no input comes with the request"
    for operand in (*operation.inputs, *operation.outputs):
        # Of the scalars, most of which are constants, there is nothing to check.
        if operand is not None and (operand.shape != () or operand.value is None):
            reason = reason or _reason_against(operand, rule)
    if reason:
        raise NotWrittenError(f"{operation.type.name}: {reason}")


def _reason_against(operand: BoundOperand, rule: Rule) -> str:
    """Return why an operand is beyond what is claimed; empty if it is not."""
    shape, type_ = operand.shape, operand.type
    if shape is None:
        return "a shape is open"
    if is_scalar(type_):
        return "a scalar comes with the request"
    if not 1 <= len(shape) <= rule.max_rank:
        return f"rank {len(shape)} is not claimed"
    if 0 in shape:
        return f"{list(shape)} is empty"
    if elements(shape) > MAX_ELEMENTS:
        return f"{list(shape)} is too large"
    if type_ in QUANT8_TYPES and not _SCALES[0] <= operand.scale <= _SCALES[1]:
        return f"scale {operand.scale:g} is extreme"
    return ""
