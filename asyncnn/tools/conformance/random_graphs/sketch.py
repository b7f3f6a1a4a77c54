"""Subgraphs under construction, in which every operand has a value already.

The values are of one execution, by the reference kernels. They show all shapes,
and let strategies choose operands and quantisation that make sense together.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from asyncnn import hal
from asyncnn.hal.operands import DTYPES
from asyncnn.hal.operations.bound import Array, BoundOperand, Shape
from asyncnn.runtime.builder import ModelBuilder

F32 = hal.OperandType.TENSOR_FLOAT32
F16 = hal.OperandType.TENSOR_FLOAT16
I32 = hal.OperandType.TENSOR_INT32
B8 = hal.OperandType.TENSOR_BOOL8
Q8 = hal.OperandType.TENSOR_QUANT8_ASYMM
Q8S = hal.OperandType.TENSOR_QUANT8_ASYMM_SIGNED
Q8SYM = hal.OperandType.TENSOR_QUANT8_SYMM
Q8PC = hal.OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
TYPES = (F32, F16, I32, B8, Q8, Q8S)

_NOWHERE = hal.DataLocation()


def sample(
    type_: hal.OperandType, shape: Shape, seed: int, low: float = -4, high: float = 4
) -> Array:
    """Return values by seed; seed 0's are easy to read."""
    dtype = DTYPES[type_]
    generator = np.random.default_rng(seed)
    if dtype.itemsize == 1 and dtype != np.bool_:
        limits = np.iinfo(dtype)
        return generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    if seed == 0:
        ramp = np.arange(int(np.prod(shape))) % 5 + 1
        return (ramp if low > 0 else ramp - 2).astype(dtype).reshape(shape)
    if dtype == np.bool_:
        return generator.integers(0, 2, shape).astype(dtype)
    if dtype == np.int32:
        return generator.integers(-9, 10, shape, dtype)
    return generator.uniform(low, high, shape).astype(dtype)


def another(value: Array) -> Array:
    """Return other values in the range of these."""
    if value.size > 1:
        return np.roll(value, 1)
    return ~value if value.dtype == np.bool_ else (value // 2).astype(value.dtype)


def as_float32(value: float) -> float:
    """Return what a float32 holds of ``value``."""
    return float(np.float32(value))


class DrawnTensor(msgspec.Struct, frozen=True, eq=False):
    """An operand of a sketch; ``dimensions`` is what the model declares of it."""

    index: int
    bound: BoundOperand
    dimensions: hal.Dimensions

    @property
    def type(self) -> hal.OperandType:
        """The type of its elements."""
        return hal.OperandType(self.bound.type)

    @property
    def shape(self) -> Shape:
        """Its shape in this execution."""
        return self.bound.require_shape()

    @property
    def value(self) -> Array:
        """Its elements in this execution."""
        return self.bound.require_value()

    @property
    def is_declared(self) -> bool:
        """Return whether the model leaves nothing of the shape open."""
        return self.dimensions == self.shape


class Sketch(ModelBuilder):
    """Operands and operations of one subgraph, ``inner`` to another one if given.

    ``tensors`` can be read by operations, ``results`` are those that one wrote.
    """

    def __init__(self, outer: "Sketch | None" = None) -> None:
        super().__init__()
        if outer is not None:
            self._constants, self._bodies = outer._constants, outer._bodies
        self.inputs: list[DrawnTensor] = []
        self.tensors: list[DrawnTensor] = []
        self.results: list[DrawnTensor] = []

    def add_constant(self, bound: BoundOperand) -> DrawnTensor:
        """Add a constant."""
        shape, place = bound.require_shape(), self._constants.place
        lifetime, location = place(bound.require_value(), copy=True)
        index = self._add(_described(bound, shape, lifetime, location))
        return self._drawn(index, bound, shape)

    def add_input(self, bound: BoundOperand, dimensions: hal.Dimensions) -> DrawnTensor:
        """Add an input that declares ``dimensions``."""
        lifetime = hal.OperandLifeTime.SUBGRAPH_INPUT
        index = self._add(_described(bound, dimensions, lifetime))
        self._input_names[index] = f"x{len(self._input_names)}"
        self.inputs.append(self._drawn(index, bound, dimensions))
        return self.inputs[-1]

    def add_operation(
        self,
        type_: hal.OperationType,
        inputs: Sequence[int],
        outputs: Sequence[tuple[BoundOperand, hal.Dimensions]],
    ) -> list[DrawnTensor]:
        """Add an operation with new operands for its outputs."""
        indexes = self.operation(type_, inputs, [_described(*each) for each in outputs])
        results = [
            self._drawn(index, *output)
            for index, output in zip(indexes, outputs, strict=True)
        ]
        self.results += results
        return results

    @property
    def unread(self) -> list[DrawnTensor]:
        """The results that no operation reads yet."""
        read = {index for operation in self._operations for index in operation.inputs}
        return [result for result in self.results if result.index not in read]

    def end(
        self, outputs: Sequence[DrawnTensor], inputs: Sequence[DrawnTensor] = ()
    ) -> None:
        """Give the subgraph its outputs; its ``inputs`` in another order, if any."""
        for number, output in enumerate(outputs):
            self.output(output.index, f"y{number}")
        if inputs:
            self._input_names = {each.index: "" for each in inputs}

    def _drawn(
        self, index: int, bound: BoundOperand, dimensions: hal.Dimensions
    ) -> DrawnTensor:
        tensor = DrawnTensor(index, bound, dimensions)
        self.tensors.append(tensor)
        return tensor


def _described(
    bound: BoundOperand,
    dimensions: hal.Dimensions,
    lifetime: hal.OperandLifeTime = hal.OperandLifeTime.TEMPORARY_VARIABLE,
    location: hal.DataLocation = _NOWHERE,
) -> hal.Operand:
    return hal.Operand(
        bound.type,
        dimensions,
        scale=bound.scale,
        zero_point=bound.zero_point,
        lifetime=lifetime,
        location=location,
        extra_params=bound.channel_quant,
    )


def bound_of(
    type_: hal.OperandType, value: Array, scale: float = 0.0, zero_point: int = 0
) -> BoundOperand:
    """Return the operand of this type and value."""
    value = np.asarray(value)
    return BoundOperand(type_, value.shape, scale, zero_point, value=value)
