"""What converters compose operators of: arithmetic, casts and moves on any tensor.

The HAL has ranks 1 to 4, and some types in some operations only. Here, higher ranks are
merged where axes stay together, booleans and integers travel as floats where they have
to, and both without a loss.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array, Shape
from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.axes import (
    MAX_RANK,
    broadcast_groups,
    dimensions_of,
    merged_groups,
)
from asyncnn.runtime.drafting import (
    B8,
    F16,
    F32,
    I32,
    Q8,
    Q8S,
    Argument,
    Draft,
    Form,
    Value,
    hal_type,
)
from asyncnn.runtime.unsupported import UnsupportedOperatorError

_ACTIVATED = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.DIV})


class Composer(Draft):
    """A draft with a vocabulary of tensors of any rank and of all types."""

    def __init__(self) -> None:
        super().__init__()
        self.transposed: dict[Value, tuple[Value, list[int]]] = {}

    def lift(self, value: Value | complex | Array, like: Value) -> Value:
        """Return ``value`` as a tensor of the dtype of ``like``."""
        if isinstance(value, Value):
            return value
        return self.constant(np.asarray(value, like.dtype))

    def binary(
        self, type_: Op, first: Value, second: Value | float | Array, dtype: Any = None
    ) -> Value:
        """Draft an operation that broadcasts two tensors."""
        second = self.lift(second, first)
        shape = _broadcast(first.shape, second.shape)
        form = None if dtype is None else Form.of(np.dtype(dtype))
        extras: list[Argument] = [0] if type_ in _ACTIVATED else []
        merged = _merged(first.shape, second.shape, shape)
        pair = [
            self.reshape(value, target)
            for value, target in zip((first, second), merged[:2], strict=True)
        ]
        result = self.emit(type_, [*pair, *extras], form, dtype=dtype)
        return self.reshape(result, shape)

    def add(self, first: Value, second: Value | float | Array) -> Value:
        """Return the sum."""
        return self.binary(Op.ADD, first, second)

    def sub(self, first: Value, second: Value | float | Array) -> Value:
        """Return the difference."""
        return self.binary(Op.SUB, first, second)

    def mul(self, first: Value, second: Value | float | Array) -> Value:
        """Return the product."""
        return self.binary(Op.MUL, first, second)

    def div(self, first: Value, second: Value | float | Array) -> Value:
        """Return the quotient; of integers, rounded down."""
        return self.binary(Op.DIV, first, second)

    def compare(self, type_: Op, first: Value, second: Value | float | Array) -> Value:
        """Return where a comparison holds."""
        return self.binary(type_, first, second, np.bool_)

    def unary(self, type_: Op, value: Value, *scalars: Argument) -> Value:
        """Draft an operation on each element."""
        if value.rank > MAX_RANK:
            flat = self.reshape(value, (math.prod(value.shape),))
            return self.reshape(self.unary(type_, flat, *scalars), value.shape)
        return self.emit(type_, [value, *scalars], shape=value.shape)

    def chain(self, value: Value, *types: Op) -> Value:
        """Draft operations on each element, one after the other."""
        for type_ in types:
            value = self.unary(type_, value)
        return value

    def reciprocal(self, value: Value) -> Value:
        """Return 1 by each element."""
        return self.div(self.lift(1.0, value), value)

    def clamp(self, value: Value, low: Value | float, high: Value | float) -> Value:
        """Return the elements within two bounds."""
        above = self.binary(Op.MAXIMUM, value, low)
        return self.binary(Op.MINIMUM, above, high)

    def select(
        self,
        condition: Value,
        if_true: Value | float,
        if_false: Value | float,
        like: Value | None = None,
    ) -> Value:
        """Return elements of one or the other, all broadcast."""
        likes = (if_true, if_false, like)
        typed = next(value for value in likes if isinstance(value, Value))
        pair = self.alike([self.lift(value, typed) for value in (if_true, if_false)])
        shape = np.broadcast_shapes(condition.shape, *(value.shape for value in pair))
        flat = shape if len(shape) <= MAX_RANK else (math.prod(shape),)
        inputs = [
            self.reshape(self.expand(value, shape), flat)
            for value in (condition, *pair)
        ]
        form = pair[0].form
        selected = self.emit(Op.SELECT, inputs, form, dtype=typed.dtype)
        return self.reshape(selected, shape)

    def full(self, shape: Shape, value: float, dtype: Any) -> Value:
        """Return a tensor of one value, which takes no room in the model."""
        data = np.full((), value, dtype)
        if math.prod(shape) <= 1 or Form.of(data.dtype).type not in (F16, F32, I32):
            self.allowance.take_elements(shape)
            return self.constant(np.broadcast_to(data, shape))
        whole = [math.prod(shape)] if len(shape) > MAX_RANK else list(shape)
        dims = self.constant(np.array(whole, np.int32))
        like = Form.of(data.dtype)
        plain = int(data) if data.dtype.kind == "i" else float(data)
        scalar = self._argument(plain, Value(data.dtype, (1,), like))
        filled = self.emit(Op.FILL, [dims, scalar], like, dtype=data.dtype)
        return self.reshape(filled, shape)

    def cast(self, value: Value, dtype: Any) -> Value:
        """Return the elements as ``dtype``; floats lose what is behind the point."""
        target = np.dtype(dtype)
        hal_type(target, "its result")
        form = Form.of(target)
        value = self.plain(value)
        if value.type == form.type:
            if value.dtype == target and value.form == form:
                return value
            if value.form == form:
                return value.alias(value.shape, target)
        if value.type == B8:
            between = target if form.type in (F16, F32, I32) else np.dtype(np.float32)
            ones = self.full(value.shape, 1, between)
            picked = self.select(value, ones, self.full(value.shape, 0, between))
            return self.cast(picked, target)
        if form.type == B8:
            plain = self.cast(value, np.float32) if value.type in (Q8, Q8S) else value
            return self.compare(Op.NOT_EQUAL, plain, 0)
        if value.type in (Q8, Q8S):
            real = self.unary_to(Op.DEQUANTIZE, value, Form(F32), np.float32)
            return real if form.type == F32 else self.cast(real, target)
        if form.type in (Q8, Q8S):
            raise UnsupportedOperatorError("a cast to bytes, which wraps in ONNX")
        return self.unary_to(Op.CAST, value, form, target)

    def plain(self, value: Value) -> Value:
        """Return quantised bytes as plain integers: of scale 1, and zero point 0."""
        if value.type not in (Q8, Q8S):
            return value
        form = Form.of(value.dtype)
        if value.form == form:
            return value
        if value.data is not None:
            return self.quantized(value.data, form)
        real = self.unary_to(Op.DEQUANTIZE, value, Form(F32), np.float32)
        steps = self.add(self.div(real, value.form.scale), float(value.form.zero_point))
        return self.unary_to(Op.QUANTIZE, steps, form, value.dtype)

    def alike(self, values: Sequence[Value]) -> Sequence[Value]:
        """Return ``values`` in one form: as they are if theirs agree, else `plain`."""
        if len({value.form for value in values}) <= 1:
            return values
        return [self.plain(value) for value in values]

    def unary_to(self, type_: Op, value: Value, form: Form, dtype: Any) -> Value:
        """Draft an operation on each element that has another type of result."""
        if value.rank > MAX_RANK:
            flat = self.reshape(value, (math.prod(value.shape),))
            moved = self.unary_to(type_, flat, form, dtype)
            return self.reshape(moved, value.shape)
        return self.emit(type_, [value], form, value.shape, dtype)

    def through(
        self, value: Value, move: Callable[[Value], Value], *types: Any
    ) -> Value:
        """Return ``move(value)`` where ``move`` works on ``types`` and floats only.

        It has to move elements without changing them.
        """
        if value.type in types or value.type in (F16, F32, Q8, Q8S):
            return move(value)
        if value.type == B8:
            return self.cast(move(self.cast(value, np.float32)), np.bool_)
        raise UnsupportedOperatorError(f"the HAL does not move {value.dtype} so")

    def reshape(self, value: Value, shape: Shape) -> Value:
        """Return the same elements in another shape."""
        shape = tuple(shape)
        if value.shape == shape:
            return value
        if value.is_constant and value.form.channels is None:
            return self.constant_like(value, lambda data: data.reshape(shape))
        dims = dimensions_of(shape)
        if value.dimensions == dims:
            return value.alias(shape, value.dtype)
        if value.type == B8:
            return self.through(value, lambda moved: self.reshape(moved, shape))
        return self.emit(Op.RESHAPE, [value, dims], shape=shape)

    def constant_like(self, value: Value, change: Callable[[Array], Array]) -> Value:
        """Return a constant ``value`` with its elements moved by ``change``."""
        assert value.data is not None
        result = change(value.data)
        return Value(value.dtype, result.shape, value.form, result, name=value.name)

    def expand(self, value: Value, shape: Shape) -> Value:
        """Return ``value`` repeated along axes of length 1, and along new ones.

        :raises InvalidArgumentError: if another length differs from ``shape``.
        """
        if value.shape == shape:
            return value
        pairs = zip(value.shape[::-1], shape[::-1], strict=False)
        if value.rank > len(shape) or any(n not in (1, m) for n, m in pairs):
            raise InvalidArgumentError(
                f"{list(value.shape)} cannot be broadcast to {list(shape)}"
            )
        if value.is_constant:
            self.allowance.take_elements(shape)
            return self.constant_like(value, lambda data: np.broadcast_to(data, shape))
        lengths = (1,) * (len(shape) - value.rank) + value.shape
        value = self.reshape(value, lengths)
        repeats = [n // m for n, m in zip(shape, lengths, strict=True)]
        if len(shape) <= MAX_RANK:
            return self.through(
                value, lambda moved: self.emit(Op.TILE, [moved, repeats]), I32
            )
        for axis, count in enumerate(repeats):
            value = self.tile(value, axis, count)
        return value

    def tile(self, value: Value, axis: int, count: int) -> Value:
        """Return ``value`` ``count`` times along ``axis``."""
        shape = value.shape
        parts = (math.prod(shape[:axis]), math.prod(shape[axis:]))
        result = (*shape[:axis], shape[axis] * count, *shape[axis + 1 :])
        if count == 1:
            return value

        def move(moved: Value) -> Value:
            if moved.rank <= MAX_RANK:
                repeats = [count if a == axis else 1 for a in range(moved.rank)]
                return self.emit(Op.TILE, [moved, repeats])
            flat = self.reshape(moved, parts)
            return self.emit(Op.TILE, [flat, (1, count)])

        return self.reshape(self.through(value, move, I32), result)

    def connected(
        self, rows: Value, weights: Value, bias: Value | None = None
    ) -> Value:
        """Return rows [M, K] by weights [N, K], as one fully connected layer."""
        if bias is None:
            self.allowance.take_elements(weights.shape[:1])
            bias = self.constant(np.zeros(weights.shape[:1], rows.dtype))
        return self.emit(Op.FULLY_CONNECTED, [rows, weights, bias, 0])

    def as_three(self, value: Value, axis: int) -> Value:
        """Return ``value`` with all axes before and all behind ``axis`` merged."""
        shape = value.shape
        return self.reshape(
            value, (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
        )


def _broadcast(first: Shape, second: Shape) -> Shape:
    if first == second:  # NumPy takes longer to say so than all else here
        return first
    try:
        return np.broadcast_shapes(first, second)
    except ValueError:
        raise InvalidArgumentError(
            f"{list(first)} and {list(second)} do not broadcast"
        ) from None


def _merged(first: Shape, second: Shape, shape: Shape) -> tuple[Shape, Shape]:
    """Return both shapes, if ranks are too high with axes merged that go alike."""
    rank = len(shape)
    if rank <= MAX_RANK:
        return first, second
    if all(part == shape or math.prod(part) == 1 for part in (first, second)):
        whole = dimensions_of(shape)  # without moving any, which BOOL8 has no means for
        return whole if first == shape else (1,), whole if second == shape else (1,)
    padded = [(1,) * (rank - len(part)) + part for part in (first, second)]
    groups = broadcast_groups(shape, padded)
    if len(groups) > MAX_RANK:
        raise UnsupportedOperatorError(
            f"{list(first)} and {list(second)} broadcast along too many axes"
        )
    return merged_groups(padded[0], groups), merged_groups(padded[1], groups)
