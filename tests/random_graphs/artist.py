"""Draws the operands of operations: what is there already, or something new.

Choices list what is simplest first, because that is where a failing graph shrinks to.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

from asyncnn.hal.operands import DTYPES, QUANT8_TYPES, SCALAR_TYPES
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation, Shape
from asyncnn.hal.operations.table import SIGNATURES
from asyncnn.hal.types import (
    Dimensions,
    OperandType,
    OperationType,
)
from tests.random_graphs import naive
from tests.random_graphs.naive.expected import Expected, stored
from tests.random_graphs.sketch import Sketch, Tensor, bound_of

T = TypeVar("T")

F32 = OperandType.TENSOR_FLOAT32
F16 = OperandType.TENSOR_FLOAT16
I32 = OperandType.TENSOR_INT32
B8 = OperandType.TENSOR_BOOL8
Q8 = OperandType.TENSOR_QUANT8_ASYMM
Q8S = OperandType.TENSOR_QUANT8_ASYMM_SIGNED
TYPES = (F32, F16, I32, B8, Q8, Q8S)

LARGEST_TENSOR = 400
"""Elements up to which a tensor is read by further operations."""

LARGEST_VALUE = 1000.0
"""Magnitude up to which a float is; beyond it, results soon overflow."""

_SCALES = (0.05, 0.5, 1 / 128, 1 / 256, 0.013)


class Artist:
    """Draws one subgraph by the ``draw`` of a Hypothesis strategy.

    An input of an inner subgraph is ``captured``: it has a counterpart outside.
    """

    def __init__(self, draw: Any, sketch: Sketch, parent: "Artist | None" = None):
        self.draw = draw
        self.sketch = sketch
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.captured: list[tuple[Tensor, Tensor]] = []
        self.other_values: dict[int, Array] = {}

    def choose(self, *options: T) -> T:
        """Draw one of the options."""
        return self.draw(st.sampled_from(options))

    def number(self, low: int, high: int) -> int:
        """Draw an integer from ``low`` to ``high``."""
        return self.draw(st.integers(low, high))

    def shape(self, *ranks: int) -> Shape:
        """Draw axis lengths, for any of the ranks."""
        rank = self.choose(*(ranks or (1, 2, 3, 4)))
        return tuple(self.number(1, 5 if rank < 4 else 4) for _ in range(rank))

    def leaf(
        self, type_: OperandType, shape: Shape, low: float = -4, high: float = 4
    ) -> Tensor:
        """Draw an input or constant with floats from ``low`` to ``high``."""
        scale, zero_point = self._leaf_quantization(type_)
        seed = self.number(0, 255)
        value = sample(type_, shape, seed, low, high)
        bound = bound_of(type_, value, scale, zero_point)
        if self.choose("input", "input", "constant") == "constant":
            return self.sketch.constant(bound)
        return self.input(bound, sample(type_, shape, seed + 256, low, high))

    def input(self, bound: BoundOperand, other: Array) -> Tensor:
        """Add an input; ``other`` is its value in another execution."""
        if self.parent is None:
            tensor = self.sketch.input(bound, self.declared(bound.require_shape()))
            self.other_values[tensor.index] = other
            return tensor
        outer = self.parent.input(bound, other)
        inner = self.sketch.input(bound, outer.dimensions)
        self.captured.append((outer, inner))
        return inner

    def known(self, bound: BoundOperand) -> Tensor:
        """Add a value that shapes may depend on: a constant, or always this input."""
        if self.choose("constant", "constant", "constant", "input") == "constant":
            return self.sketch.constant(bound)
        return self.input(bound, bound.require_value())

    def integers(self, values: Sequence[int]) -> Tensor:
        """Add an int32 tensor that says something about shapes."""
        return self.known(bound_of(I32, np.array(values, np.int32)))

    def scalar(self, value: float, type_: OperandType | None = None) -> Tensor:
        """Add a scalar: BOOL, INT32 or FLOAT32, by the type of ``value``."""
        if type_ is None:
            types = {bool: OperandType.BOOL, int: OperandType.INT32}
            type_ = types.get(type(value), OperandType.FLOAT32)
        return self.known(bound_of(type_, np.array(value, DTYPES[type_])))

    def real_scalar(self, value: float, main: OperandType) -> Tensor:
        """Add a FLOAT16 for an operation on float16 tensors, a FLOAT32 for others."""
        is_half = main == F16
        return self.scalar(value, OperandType.FLOAT16 if is_half else None or None) if (
            is_half
        ) else self.scalar(float(value))

    def pick(
        self,
        type_: OperandType,
        where: Callable[[Tensor], bool] = lambda tensor: True,
        shape: Callable[[], Shape] | None = None,
        low: float = -4,
        high: float = 4,
    ) -> Tensor:
        """Draw a tensor to read, an existing one or a leaf of the drawn ``shape``."""
        candidates = [
            tensor
            for tensor in self.sketch.tensors
            if tensor.type == type_ and is_tame(tensor) and where(tensor)
        ]
        chosen = self.choose(*candidates, None)
        if chosen is not None:
            return chosen
        return self.leaf(type_, (shape or self.shape)(), low, high)

    def weights(
        self, type_: OperandType, shape: Shape, low: float = -1, high: float = 1
    ) -> Tensor:
        """Draw what is a constant as a rule, maybe one that is folded first."""
        scale, zero_point = self._leaf_quantization(type_)
        value = sample(type_, shape, self.number(0, 255), low, high)
        bound = bound_of(type_, value, scale, zero_point)
        kind = self.choose("constant", "constant", "input", "folded")
        if kind == "input":
            return self.input(bound, value)
        if kind == "constant":
            return self.sketch.constant(bound)
        flat = self.sketch.constant(
            bound_of(type_, value.reshape(-1), scale, zero_point)
        )
        target = self.sketch.constant(bound_of(I32, np.array(shape, np.int32)))
        return self.apply(OperationType.RESHAPE, [flat, target], flat)[0]

    def apply(
        self,
        type_: OperationType,
        inputs: Sequence[Tensor | None],
        *outputs: OperandType | Tensor,
        least_scale: float = 0.0,
    ) -> list[Tensor]:
        """Add an operation. An output of an input's type and scale is that tensor.

        Otherwise its quantisation is what the operation prescribes, or suits its
        values, with a scale of at least ``least_scale``.
        """
        bound = tuple(None if tensor is None else tensor.bound for tensor in inputs)
        asked = tuple(_without_value(output) for output in outputs)
        with np.errstate(all="ignore"):
            expected = naive.evaluate(BoundOperation(type_, bound, asked))
            results = [
                self._result(type_, position, *pair, least_scale)
                for position, pair in enumerate(zip(outputs, expected, strict=True))
            ]
        return self.sketch.operation(
            type_,
            [self._index(tensor) for tensor in inputs],
            [(result, self.declared(result.require_shape())) for result in results],
        )

    def declared(self, shape: Shape) -> Dimensions:
        """Draw what the model says of a shape: all of it, some axes, or nothing."""
        if not shape or self.depth:
            return shape
        match self.choose(*["all"] * 5, "axes", "nothing"):
            case "all":
                return shape
            case "axes":
                return tuple(self.choose(0, length) for length in shape)
        return ()

    def _index(self, tensor: Tensor | None) -> int:
        return self.sketch.omitted(I32) if tensor is None else tensor.index

    def _leaf_quantization(self, type_: OperandType) -> tuple[float, int]:
        if type_ not in QUANT8_TYPES:
            return 0.0, 0
        limits = np.iinfo(DTYPES[type_])
        middle = (int(limits.min) + int(limits.max) + 1) // 2
        scale = self.choose(*_SCALES)
        points = (middle, middle + 3, int(limits.min), int(limits.max))
        return float(np.float32(scale)), self.choose(*points)

    def _result(
        self,
        type_: OperationType,
        position: int,
        output: OperandType | Tensor,
        expected: Expected,
        least_scale: float,
    ) -> BoundOperand:
        if isinstance(output, Tensor):
            kind, scale, zero_point = (
                output.type,
                output.bound.scale,
                output.bound.zero_point,
            )
        else:
            kind = output
            scale, zero_point = self._result_quantization(
                type_, position, kind, expected.value, least_scale
            )
        bound = BoundOperand(kind, expected.value.shape, scale, zero_point)
        return bound_of(kind, stored(expected, bound), scale, zero_point)

    def _result_quantization(
        self,
        type_: OperationType,
        position: int,
        kind: OperandType,
        value: Array,
        least_scale: float,
    ) -> tuple[float, int]:
        if kind not in QUANT8_TYPES:
            return 0.0, 0
        fixed = SIGNATURES[type_].layouts[0].outputs[position].quantization
        if fixed is not None:
            return fixed[kind]
        finite = value[np.isfinite(value)]
        low, high = (fold(finite, initial=0.0) for fold in (np.min, np.max))
        # More than 255 steps cut off the largest values.
        steps = self.choose(250, 100, 400)
        scale = float(np.float32(max((high - low) / steps, least_scale, 1e-3)))
        limits = np.iinfo(DTYPES[kind])
        zero_point = int(np.clip(limits.min - low / scale, limits.min, limits.max))
        return scale, zero_point


def _without_value(output: OperandType | Tensor) -> BoundOperand:
    if isinstance(output, Tensor):
        return BoundOperand(
            output.type, None, output.bound.scale, output.bound.zero_point
        )
    # The formulas of real values don't use the scale of a result.
    return BoundOperand(output, None, scale=1.0)


def is_tame(tensor: Tensor) -> bool:
    """Tell whether a tensor is small, finite and not a scalar."""
    if tensor.type in SCALAR_TYPES or tensor.value.size > LARGEST_TENSOR:
        return False
    if tensor.type not in (F32, F16):
        return True
    return bool(np.abs(tensor.value.astype(np.float64)).max() <= LARGEST_VALUE)


def sample(
    type_: OperandType, shape: Shape, seed: int, low: float = -4, high: float = 4
) -> Array:
    """Return values by seed; those of seed 0 are easy to read."""
    dtype = DTYPES[type_]
    generator = np.random.default_rng(seed)
    if type_ in QUANT8_TYPES:
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
