"""Subgraphs under construction, in which every operand has a value already.

The values are those of one execution, computed in float64. They tell all shapes, and
let strategies choose operands and quantisation that make sense together.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from asyncnn import hal
from asyncnn.hal.operands import DTYPES
from asyncnn.hal.operations.bound import Array, BoundOperand, Shape
from asyncnn.runtime.graph_builder import ConstantStore

F32 = hal.OperandType.TENSOR_FLOAT32
F16 = hal.OperandType.TENSOR_FLOAT16
I32 = hal.OperandType.TENSOR_INT32
B8 = hal.OperandType.TENSOR_BOOL8
Q8 = hal.OperandType.TENSOR_QUANT8_ASYMM
Q8S = hal.OperandType.TENSOR_QUANT8_ASYMM_SIGNED
Q8SYM = hal.OperandType.TENSOR_QUANT8_SYMM
Q8PC = hal.OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
TYPES = (F32, F16, I32, B8, Q8, Q8S)


def sample(
    type_: hal.OperandType, shape: Shape, seed: int, low: float = -4, high: float = 4
) -> Array:
    """Return values by seed; those of seed 0 are easy to read."""
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


_NOWHERE = hal.DataLocation()


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
        """Tell whether the model leaves nothing of the shape open."""
        return self.dimensions == self.shape


class World:
    """What the subgraphs of one model share: constants, and each other."""

    def __init__(self) -> None:
        self.constants = ConstantStore()
        self.referenced: list[hal.Subgraph] = []

    def refer(self, subgraph: hal.Subgraph) -> int:
        """Add a referenced subgraph and return its number."""
        self.referenced.append(subgraph)
        return len(self.referenced) - 1

    def model(self, main: hal.Subgraph) -> hal.Model:
        """Return the model of ``main`` and all that was added."""
        return hal.Model(
            main,
            tuple(self.referenced),
            self.constants.values(),
            self.constants.pools(),
        )


class Sketch:
    """Operands and operations of one subgraph.

    ``tensors`` can be read by operations, ``results`` are those that one wrote.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.inputs: list[DrawnTensor] = []
        self.tensors: list[DrawnTensor] = []
        self.results: list[DrawnTensor] = []
        self._operands: list[hal.Operand] = []
        self._operations: list[hal.Operation] = []

    def constant(self, bound: BoundOperand) -> DrawnTensor:
        """Add a constant."""
        value = bound.require_value()
        lifetime, location = self.world.constants.place(value, copy=True)
        return self._add(bound, bound.require_shape(), lifetime, location)

    def input(self, bound: BoundOperand, dimensions: hal.Dimensions) -> DrawnTensor:
        """Add an input that declares ``dimensions``."""
        tensor = self._add(bound, dimensions, hal.OperandLifeTime.SUBGRAPH_INPUT)
        self.inputs.append(tensor)
        return tensor

    def omitted(self, type_: hal.OperandType) -> int:
        """Add an operand that stands for an input left out; return its index."""
        self._operands.append(hal.Operand(type_, lifetime=hal.OperandLifeTime.NO_VALUE))
        return len(self._operands) - 1

    def reference(self, number: int) -> int:
        """Add an operand that stands for a referenced subgraph; return its index."""
        self._operands.append(
            hal.Operand(
                hal.OperandType.SUBGRAPH,
                lifetime=hal.OperandLifeTime.SUBGRAPH,
                location=hal.DataLocation(0, number, 0),
            )
        )
        return len(self._operands) - 1

    def operation(
        self,
        type_: hal.OperationType,
        inputs: Sequence[int],
        outputs: Iterable[tuple[BoundOperand, hal.Dimensions]],
    ) -> list[DrawnTensor]:
        """Add an operation with new operands for its outputs."""
        results = [
            self._add(bound, dimensions, hal.OperandLifeTime.TEMPORARY_VARIABLE)
            for bound, dimensions in outputs
        ]
        written = tuple(result.index for result in results)
        self._operations.append(hal.Operation(type_, tuple(inputs), written))
        self.results += results
        return results

    @property
    def unread(self) -> list[DrawnTensor]:
        """The results that no operation reads yet."""
        read = {index for operation in self._operations for index in operation.inputs}
        return [result for result in self.results if result.index not in read]

    def close(
        self,
        outputs: Sequence[DrawnTensor],
        inputs: Sequence[DrawnTensor] | None = None,
    ) -> hal.Subgraph:
        """Return the subgraph with these borders; the inputs in another order, say."""
        consumers = Counter(
            index for operation in self._operations for index in operation.inputs
        )
        for output in outputs:
            self._operands[output.index] = replace(
                self._operands[output.index],
                lifetime=hal.OperandLifeTime.SUBGRAPH_OUTPUT,
            )
        return hal.Subgraph(
            tuple(
                replace(operand, number_of_consumers=consumers[index])
                for index, operand in enumerate(self._operands)
            ),
            tuple(self._operations),
            tuple(t.index for t in (self.inputs if inputs is None else inputs)),
            tuple(output.index for output in outputs),
        )

    def _add(
        self,
        bound: BoundOperand,
        dimensions: hal.Dimensions,
        lifetime: hal.OperandLifeTime,
        location: hal.DataLocation = _NOWHERE,
    ) -> DrawnTensor:
        tensor = DrawnTensor(len(self._operands), bound, dimensions)
        self._operands.append(
            hal.Operand(
                bound.type,
                dimensions,
                scale=bound.scale,
                zero_point=bound.zero_point,
                lifetime=lifetime,
                location=location,
                extra_params=bound.channel_quant,
            )
        )
        self.tensors.append(tensor)
        return tensor


def bound_of(
    type_: hal.OperandType, value: Array, scale: float = 0.0, zero_point: int = 0
) -> BoundOperand:
    """Return the operand of this type and value."""
    value = np.asarray(value)
    return BoundOperand(type_, value.shape, scale, zero_point, value=value)
