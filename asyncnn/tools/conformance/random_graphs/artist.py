"""Draws the operands of operations: what is there already, or something new.

Choices list what is simplest first, because that is where a failing graph shrinks to.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st
from msgspec.structs import replace

from asyncnn import hal
from asyncnn.hal.operands import DTYPES, QUANT8_TYPES, SCALAR_TYPES
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation, Shape
from asyncnn.hal.operations.table import SIGNATURES, allowed_types
from asyncnn.tools.conformance.random_graphs.checking import evaluate
from asyncnn.tools.conformance.random_graphs.sketch import (
    F16,
    F32,
    I32,
    Q8PC,
    Q8S,
    Q8SYM,
    DrawnTensor,
    Sketch,
    another,
    as_float32,
    bound_of,
    sample,
)

T = TypeVar("T")

_numbers = cache(st.integers)
_options = lru_cache(maxsize=4096)(lambda options, _types: st.sampled_from(options))
"""A strategy is looked at when it draws first, which takes longer than to draw."""

LARGEST_TENSOR = 400
"""Elements up to which a tensor is read by further operations."""

LARGEST_VALUE = 1000.0
"""Magnitude up to which a float is; beyond it, results soon overflow."""

_SCALES = (0.05, 0.5, 1 / 128, 1 / 256, 0.013)


def chosen(draw: Any, options: Sequence[T]) -> T:
    """Draw one of the options."""
    # By types as well, since False is 0.
    one: T = draw(_options((*options,), (*map(type, options),)))
    return one


def completely(shape: Shape) -> hal.Dimensions:
    """Declare all of a shape."""
    return shape


class Artist:
    """Draws one subgraph by the ``draw`` of a Hypothesis strategy.

    An input of an inner subgraph is ``captured``: it has a counterpart outside. With
    ``is_static``, nothing that shapes or preparation depend on is an input.
    """

    def __init__(
        self,
        draw: Any,
        sketch: Sketch,
        parent: "Artist | None" = None,
        *,
        is_static: bool = False,
    ) -> None:
        self.draw = draw
        self.sketch = sketch
        self.parent = parent
        self.is_static: bool = is_static if parent is None else parent.is_static
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.captured: list[tuple[DrawnTensor, DrawnTensor]] = []
        self.other_values: dict[int, Array] = {}

    def choose(self, *options: T) -> T:
        """Draw one of the options."""
        return chosen(self.draw, options)

    def number(self, low: int, high: int) -> int:
        """Draw an integer from ``low`` to ``high``."""
        drawn: int = self.draw(_numbers(low, high))
        return drawn

    def shape(self, *ranks: int) -> Shape:
        """Draw axis lengths, for any of the ranks."""
        rank = self.choose(*(ranks or (1, 2, 3, 4)))
        return tuple(self.number(1, 5 if rank < 4 else 4) for _ in range(rank))

    def bound(
        self,
        type_: hal.OperandType,
        shape: Shape,
        low: float = -4,
        high: float = 4,
        channel_axis: int = 0,
    ) -> BoundOperand:
        """Draw a value, floats from ``low`` to ``high``, and how it is quantised."""
        scale, zero_point, channels = 0.0, 0, None
        if type_ in QUANT8_TYPES:
            scale, zero_point = self._quantization(type_)
        elif type_ == Q8SYM:
            scale = self._quantization(Q8S)[0]
        elif type_ == Q8PC:
            steps = range(1, shape[channel_axis] + 1)
            scales = tuple(as_float32(0.004 * step) for step in steps)
            channels = hal.SymmPerChannelQuantParams(scales, channel_axis)
        value = sample(type_, shape, self.number(0, 255), low, high)
        return BoundOperand(type_, shape, scale, zero_point, channels, value)

    def leaf(
        self, type_: hal.OperandType, shape: Shape, low: float = -4, high: float = 4
    ) -> DrawnTensor:
        """Draw an input or constant with floats from ``low`` to ``high``."""
        bound = self.bound(type_, shape, low, high)
        if self.choose("input", "input", "constant") == "constant":
            return self.sketch.add_constant(bound)
        return self.input(bound, another(bound.require_value()))

    def input(
        self, bound: BoundOperand, other: Array, *, is_open: bool = True
    ) -> DrawnTensor:
        """Add an input; ``other`` is its value in another execution."""
        shape = bound.require_shape()
        if self.parent is None:
            is_open &= bound.channel_quant is None
            dimensions = self.declared(shape) if is_open else shape
            tensor = self.sketch.add_input(bound, dimensions)
            self.other_values[tensor.index] = other
            return tensor
        outer = self.parent.input(bound, other, is_open=False)
        inner = self.sketch.add_input(bound, shape)
        self.captured.append((outer, inner))
        return inner

    def known(self, bound: BoundOperand, *, is_open: bool = True) -> DrawnTensor:
        """Add a value that shapes may depend on: a constant, or always this input."""
        if self.is_static or self.choose(*["constant"] * 5, "input") == "constant":
            return self.sketch.add_constant(bound)
        return self.input(bound, bound.require_value(), is_open=is_open)

    def integers(self, values: Iterable[int]) -> DrawnTensor:
        """Add an int32 tensor that says something about shapes."""
        return self.known(bound_of(I32, np.array(list(values), np.int32)))

    def scalar(self, value: float, type_: hal.OperandType | None = None) -> DrawnTensor:
        """Add a scalar: BOOL, INT32 or FLOAT32, by the type of ``value``."""
        if type_ is None:
            types = {bool: hal.OperandType.BOOL, int: hal.OperandType.INT32}
            type_ = types.get(type(value), hal.OperandType.FLOAT32)
        return self.known(bound_of(type_, np.array(value, DTYPES[type_])))

    def real_scalar(self, value: float, main: hal.OperandType) -> DrawnTensor:
        """Add a FLOAT16 for an operation on float16 tensors, a FLOAT32 for others."""
        half, single = hal.OperandType.FLOAT16, hal.OperandType.FLOAT32
        return self.scalar(value, half if main == F16 else single)

    def pick(
        self,
        type_: hal.OperandType,
        where: Callable[[DrawnTensor], bool] = lambda tensor: True,
        shape: Callable[[], Shape] | None = None,
        low: float = -4,
        high: float = 4,
    ) -> DrawnTensor:
        """Draw a tensor to read, an existing one or a leaf of the drawn ``shape``."""
        candidates = [
            tensor
            for tensor in self.sketch.tensors
            if tensor.type == type_ and is_tame(tensor) and where(tensor)
        ]
        unread = [tensor for tensor in self.sketch.unread if tensor in candidates]
        # Results that nothing reads yet make chains, of which arenas have a use.
        sources = ["new", *["any"] * bool(candidates), *["unread"] * 3 * bool(unread)]
        match self.choose(*sources):
            case "any":
                return self.latest(candidates)
            case "unread":
                return self.latest(unread)
        return self.leaf(type_, (shape or self.shape)(), low, high)

    def latest(self, tensors: Sequence[DrawnTensor]) -> DrawnTensor:
        """Draw a tensor by how late it came, which does not depend on what is before.

        So a graph shrinks by its first operations without a change of the others.
        """
        return self.choose(*reversed(tensors))

    def weights(self, bound: BoundOperand) -> DrawnTensor:
        """Add what is a constant as a rule, maybe one that is folded first."""
        kinds = ["constant", "constant"]
        if bound.type in allowed_types(hal.OperationType.RESHAPE):
            kinds.append("folded")
        if not self.is_static:
            kinds.append("input")
        match self.choose(*kinds):
            case "input":
                return self.input(bound, another(bound.require_value()))
            case "constant":
                return self.sketch.add_constant(bound)
        value = bound.require_value().reshape(-1)
        flat = self.sketch.add_constant(replace(bound, shape=value.shape, value=value))
        shape = np.array(bound.require_shape(), np.int32)
        target = self.sketch.add_constant(bound_of(I32, shape))
        return self.apply(hal.OperationType.RESHAPE, [flat, target], flat.bound)[0]

    def apply(
        self,
        type_: hal.OperationType,
        inputs: Sequence[DrawnTensor | None],
        *outputs: hal.OperandType | BoundOperand,
        least_scale: float = 0.0,
        declare: Callable[[Shape], hal.Dimensions] | None = None,
    ) -> list[DrawnTensor]:
        """Add an operation, its outputs of these types or quantised like these.

        The quantisation that a mere type leaves open is what the operation prescribes,
        or suits the real values, with a scale of at least ``least_scale``. ``declare``
        is what the model says of a shape, which is drawn otherwise.
        """
        bound = tuple(None if tensor is None else tensor.bound for tensor in inputs)
        asked = []
        with np.errstate(all="ignore"):
            for position, output in enumerate(outputs):
                if isinstance(output, hal.OperandType):
                    output = self._unfilled(type_, bound, position, output, least_scale)
                asked.append(replace(output, shape=None, value=None))
            values = evaluate(BoundOperation(type_, bound, tuple(asked)))
        declare = declare or self.declared
        results = [
            (replace(each, shape=value.shape, value=value), declare(value.shape))
            for each, value in zip(asked, values, strict=True)
        ]
        return self.sketch.add_operation(type_, list(map(self._index, inputs)), results)

    def declared(self, shape: Shape) -> hal.Dimensions:
        """Draw what the model says of a shape: all of it, some axes, or nothing."""
        if not shape:
            return shape
        match self.choose(*["all"] * 5, "axes", "nothing"):
            case "all":
                return shape
            case "axes":
                return tuple(self.choose(0, length) for length in shape)
        return ()

    def _index(self, tensor: DrawnTensor | None) -> int:
        return self.sketch.omitted(I32) if tensor is None else tensor.index

    def _quantization(self, type_: hal.OperandType) -> tuple[float, int]:
        limits = np.iinfo(DTYPES[type_])
        middle = (int(limits.min) + int(limits.max) + 1) // 2
        points = (middle, middle + 3, int(limits.min), int(limits.max))
        return as_float32(self.choose(*_SCALES)), self.choose(*points)

    def _unfilled(
        self,
        type_: hal.OperationType,
        inputs: Sequence[BoundOperand | None],
        position: int,
        output: hal.OperandType,
        least_scale: float,
    ) -> BoundOperand:
        """Draw how an output is quantised, if it is."""
        if output not in QUANT8_TYPES:
            return BoundOperand(output, None)
        prescribed = SIGNATURES[type_].layouts[0].outputs[position].quantization
        if prescribed:
            return BoundOperand(output, None, *prescribed[output])
        value = _real_result(type_, inputs)
        return BoundOperand(output, None, *self._fitting(output, value, least_scale))

    def _fitting(
        self, type_: hal.OperandType, value: Array, least_scale: float
    ) -> tuple[float, int]:
        """Draw a quantisation of about 100, of most, or of too many steps."""
        finite = value[np.isfinite(value)]
        low, high = finite.min(initial=0.0), finite.max(initial=0.0)
        steps = self.choose(250, 100, 400)
        scale = as_float32(max((high - low) / steps, least_scale, 1e-3))
        limits = np.iinfo(DTYPES[type_])
        zero_point = np.clip(limits.min - low / scale, limits.min, limits.max)
        return scale, int(zero_point)


def _real_result(
    type_: hal.OperationType, inputs: Sequence[BoundOperand | None]
) -> Array:
    """Return the first output of an operation, float32, in place of codes."""
    reals = list(map(_real, inputs))
    if type_ == hal.OperationType.QUANTIZE and reals[0] is not None:
        return reals[0].require_value()
    if len(reals) > 2 and reals[2] is not None and reals[2].type == I32:
        reals[2] = _real_bias(*filter(None, inputs[:3]))
    return evaluate(BoundOperation(type_, tuple(reals), (BoundOperand(F32, None),)))[0]


def _real_bias(
    data: BoundOperand, weights: BoundOperand, bias: BoundOperand
) -> BoundOperand:
    """Return an int32 bias, which has the scales of data times weights."""
    quant = weights.channel_quant
    scales = np.array([weights.scale] if quant is None else quant.scales)
    value = bias.require_value() * data.scale * scales
    return bound_of(F32, value.astype(np.float32))


def _real(operand: BoundOperand | None) -> BoundOperand | None:
    if operand is None or operand.type not in {*QUANT8_TYPES, Q8SYM, Q8PC}:
        return operand
    dequantize, single = hal.OperationType.DEQUANTIZE, BoundOperand(F32, None)
    return bound_of(F32, evaluate(BoundOperation(dequantize, (operand,), (single,)))[0])


def is_tame(tensor: DrawnTensor) -> bool:
    """Return whether a tensor is small, finite and not a scalar."""
    if tensor.type in SCALAR_TYPES or tensor.value.size > LARGEST_TENSOR:
        return False
    if tensor.type not in (F32, F16):
        return True
    return bool(np.abs(tensor.value.astype(np.float64)).max() <= LARGEST_VALUE)
