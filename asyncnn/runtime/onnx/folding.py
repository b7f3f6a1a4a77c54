"""Nodes that only compute shapes: evaluated with NumPy when a file is read.

Whatever all inputs are known of is folded if it is listed here. Nothing is allocated
before its size was found bearable: a few bytes of a file can ask for terabytes.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array, Shape
from asyncnn.runtime.onnx.node import Node

MAX_ELEMENTS = 1 << 22
"""Most elements of one tensor that is folded and larger than all that it is made of."""

MAX_SUM = 1 << 27
"""Most elements of all tensors that are folded."""

MAX_VISITS = 1 << 20
"""Most nodes of inner graphs and functions that are looked at, each time counted."""

MAX_COPIED_BYTES = 1 << 29
"""Most bytes of inner graphs and functions, counted wherever they are put in place."""


class Budget:
    """What may still be computed for one file."""

    def __init__(self) -> None:
        self._left = MAX_SUM
        self._visits = MAX_VISITS
        self._bytes = MAX_COPIED_BYTES

    def take(self, shape: Shape, source: int) -> None:
        """Account for a tensor of ``shape``, made of ``source`` elements.

        :raises InvalidArgumentError: if it is too large.
        """
        size = math.prod(shape)
        self._left -= size
        if size > max(MAX_ELEMENTS, source) or self._left < 0:
            raise InvalidArgumentError(
                f"a constant of shape {list(shape)} is too large to be computed"
            )

    def visit(self, count: int) -> None:
        """Account for nodes of an inner graph or function that are looked at.

        :raises InvalidArgumentError: if they are too many.
        """
        self._visits -= count
        if self._visits < 0:
            raise InvalidArgumentError(
                f"more than {MAX_VISITS} nodes of inner graphs, with those of "
                "functions and loops counted each time"
            )

    def copy(self, body: Any) -> None:
        """Account for an inner graph or function that is put in place.

        :raises InvalidArgumentError: if all of them together are too large.
        """
        self._bytes -= body.ByteSize()
        if self._bytes < 0:
            raise InvalidArgumentError(
                f"inner graphs of more than {MAX_COPIED_BYTES} bytes, with those of "
                "functions and loops counted each time"
            )


def _elementwise(function: Callable[..., Any]) -> Callable[[Node, Budget], Array]:
    def fold(node: Node, budget: Budget) -> Array:
        arrays = [node.data(index) for index in range(len(node.inputs()))]
        shape = np.broadcast_shapes(*(array.shape for array in arrays))
        budget.take(shape, sum(array.size for array in arrays))
        return np.asarray(function(*arrays))

    return fold


def _divide(first: Array, second: Array) -> Array:
    if first.dtype.kind == "f":
        return np.asarray(np.divide(first, second))
    if not second.all():
        raise InvalidArgumentError("a constant is divided by zero")
    quotient = np.abs(first) // np.abs(second)
    return np.asarray(quotient * np.sign(first) * np.sign(second), first.dtype)


def _mod(first: Array, second: Array) -> Array:
    if first.dtype.kind != "f" and not second.all():
        raise InvalidArgumentError("a constant is divided by zero")
    return np.asarray(np.mod(first, second))


def _shape(node: Node, budget: Budget) -> Array:
    shape = node.input(0).shape
    start, end = node.attribute("start", 0), node.attribute("end")
    return np.array(shape[slice(start, end)], np.int64)


def _constant(node: Node, budget: Budget) -> Array:
    for name, dtype in (
        *(("value_int", np.int64), ("value_ints", np.int64)),
        *(("value_float", np.float32), ("value_floats", np.float32)),
    ):
        value = node.attribute(name)
        if value is not None:
            return np.array(value, dtype)
    tensor = node.attribute("value")
    if tensor is None:
        raise node.refuse("a constant that is no dense tensor of numbers")
    return node.read_tensor(tensor)


def _constant_of_shape(node: Node, budget: Budget) -> Array | None:
    shape = tuple(node.integers(0))
    if any(length < 0 for length in shape):
        raise InvalidArgumentError(f"a constant of shape {list(shape)}")
    if math.prod(shape) > MAX_ELEMENTS:
        return None  # the device fills it
    budget.take(shape, 0)
    tensor = node.attribute("value")
    value = np.zeros(1, np.float32) if tensor is None else node.read_tensor(tensor)
    if value.size != 1:
        raise InvalidArgumentError(f"a value of {value.size} elements")
    return np.full(shape, value.reshape(()), value.dtype)


def _range(node: Node, budget: Budget) -> Array:
    start, limit, step = (node.data(index).reshape(()) for index in range(3))
    if not step or not all(np.isfinite([start, limit, step])):
        raise InvalidArgumentError(f"a range from {start} to {limit} by {step}")
    count = max(0, math.ceil((limit.item() - start.item()) / step.item()))
    budget.take((count,), 0)
    return np.asarray(start + np.arange(count).astype(start.dtype) * step, start.dtype)


def _cast(node: Node, budget: Budget) -> Array:
    data = node.data(0)
    dtype = node.dtype("to") if node.name == "Cast" else node.input(1).dtype
    budget.take(data.shape, data.size)
    with np.errstate(all="ignore"):
        return data.astype(dtype)


def _gather(node: Node, budget: Budget) -> Array:
    data, indices = node.data(0), node.data(1)
    axis = node.axis(node.attribute("axis", 0), data.ndim)
    shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
    budget.take(shape, data.size)
    return np.asarray(np.take(data, indices, axis))


def _concat(node: Node, budget: Budget) -> Array:
    arrays = [node.data(index) for index in range(len(node.inputs()))]
    size = sum(array.size for array in arrays)
    budget.take((size,), size)
    axis = node.axis(node.attribute("axis", 0), arrays[0].ndim)
    return np.concatenate(arrays, axis)


def slices_of(node: Node, shape: Shape) -> list[tuple[int, int, int]]:
    """Return start, end and step of a Slice along each axis of ``shape``.

    An end of -1 behind a negative step stands for what is before the first element.
    """
    if node.has(1):
        starts, ends = node.integers(1), node.integers(2)
        axes = node.integers(3) if node.has(3) else list(range(len(starts)))
        steps = node.integers(4) if node.has(4) else [1] * len(starts)
    else:
        starts, ends = node.attribute("starts", []), node.attribute("ends", [])
        axes = node.attribute("axes", list(range(len(starts))))
        steps = [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise InvalidArgumentError(f"slices {starts}, {ends}, {axes}, {steps}")
    found = [(0, length, 1) for length in shape]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        place = node.axis(axis, len(shape))
        found[place] = slice(start, end, step).indices(shape[place])
    return found


def _slice(node: Node, budget: Budget) -> Array:
    data = node.data(0)
    index = tuple(
        slice(start, None if end < 0 else end, step)
        for start, end, step in slices_of(node, data.shape)
    )
    return np.asarray(data[index])


def unsqueezed(node: Node, shape: Shape) -> Shape:
    """Return the shape that Unsqueeze gives."""
    axes = node.given("axes", 1, [])
    rank = len(shape) + len(axes)
    places = set(node.axes(axes, rank))
    lengths = iter(shape)
    return tuple(1 if axis in places else next(lengths) for axis in range(rank))


def squeezed(node: Node, shape: Shape) -> Shape:
    """Return the shape that Squeeze gives."""
    axes = node.given("axes", 1)
    if axes is None:
        return tuple(length for length in shape if length != 1)
    places = set(node.axes(axes, len(shape)))
    if any(shape[axis] != 1 for axis in places):
        raise InvalidArgumentError(f"axes {axes} of {list(shape)} are not of length 1")
    return tuple(length for axis, length in enumerate(shape) if axis not in places)


def reshaped(node: Node, shape: Shape) -> Shape:
    """Return the shape that Reshape gives."""
    wanted = node.given("shape", 1, [])
    if not node.attribute("allowzero", 0):
        if any(not n and place >= len(shape) for place, n in enumerate(wanted)):
            raise InvalidArgumentError(f"{list(shape)} cannot become {wanted}")
        wanted = [n or shape[place] for place, n in enumerate(wanted)]
    size, known = math.prod(shape), math.prod(n for n in wanted if n != -1)
    if wanted.count(-1) == 1 and known and not size % known:
        wanted = [size // known if n == -1 else n for n in wanted]
    if any(n < 0 for n in wanted) or math.prod(wanted) != size:
        raise InvalidArgumentError(f"{list(shape)} cannot become {wanted}")
    return tuple(wanted)


def permutation(node: Node, rank: int) -> list[int]:
    """Return the permutation of Transpose."""
    axes: list[int] = node.attribute("perm", list(range(rank))[::-1])
    if sorted(axes) != list(range(rank)):
        raise InvalidArgumentError(f"{axes} does not permute {rank} axes")
    return axes


def flat_shape(node: Node, shape: Shape) -> Shape:
    """Return the shape that Flatten gives."""
    axis = node.attribute("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    if not 0 <= axis <= len(shape):
        raise InvalidArgumentError(f"axis {axis} is outside of {list(shape)}")
    return math.prod(shape[:axis]), math.prod(shape[axis:])


def _expand(node: Node, budget: Budget) -> Array:
    data = node.data(0)
    shape = np.broadcast_shapes(data.shape, tuple(node.integers(1)))
    budget.take(shape, data.size)
    return np.broadcast_to(data, shape)


def _tile(node: Node, budget: Budget) -> Array:
    data, repeats = node.data(0), node.integers(1)
    if len(repeats) != data.ndim or any(count < 0 for count in repeats):
        raise InvalidArgumentError(f"{list(data.shape)} times {repeats}")
    budget.take((data.size, *repeats), data.size)
    return np.tile(data, repeats)


def _reduced(function: Callable[..., Any]) -> Callable[[Node, Budget], Array]:
    def fold(node: Node, budget: Budget) -> Array:
        data = node.data(0)
        axes = node.given("axes", 1)
        if not axes and node.attribute("noop_with_empty_axes", 0):
            return data
        places = tuple(node.axes(axes or range(data.ndim), data.ndim))
        keep = bool(node.attribute("keepdims", 1))
        found = function(data, axis=places, keepdims=keep)
        return np.asarray(found, data.dtype)

    return fold


def _same_kind(function: Callable[..., Any]) -> Callable[..., Any]:
    def fold(*arrays: Array) -> Array:
        result = arrays[0]
        for array in arrays[1:]:
            result = function(result, array)
        return np.asarray(result, arrays[0].dtype)

    return fold


def _modulo(node: Node, budget: Budget) -> Array:
    if node.attribute("fmod", 0):
        raise node.refuse("a remainder with the sign of the dividend")
    return _elementwise(_mod)(node, budget)


_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": _divide,
    "Round": np.rint,
    "Sign": np.sign,
    "Reciprocal": np.reciprocal,
    "Neg": np.negative,
    "Abs": np.abs,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Sqrt": np.sqrt,
    "Exp": np.exp,
    "Log": np.log,
    "Not": np.logical_not,
    "Equal": np.equal,
    "Greater": np.greater,
    "Less": np.less,
    "GreaterOrEqual": np.greater_equal,
    "LessOrEqual": np.less_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
    "Where": np.where,
    "Max": _same_kind(np.maximum),
    "Min": _same_kind(np.minimum),
    "Identity": lambda data: data,
    "Relu": lambda data: np.maximum(data, np.zeros((), data.dtype)),
    "Pow": lambda base, power: np.power(base, power).astype(base.dtype),
}

FOLDERS: dict[str, Callable[[Node, Budget], Array | None]] = {
    **{name: _elementwise(function) for name, function in _ELEMENTWISE.items()},
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Cast": _cast,
    "CastLike": _cast,
    "Mod": _modulo,
    "Gather": _gather,
    "Concat": _concat,
    "Slice": _slice,
    "Unsqueeze": lambda node, _: node.data(0).reshape(
        unsqueezed(node, node.input(0).shape)
    ),
    "Squeeze": lambda node, _: node.data(0).reshape(
        squeezed(node, node.input(0).shape)
    ),
    "Reshape": lambda node, _: node.data(0).reshape(
        reshaped(node, node.input(0).shape)
    ),
    "Flatten": lambda node, _: node.data(0).reshape(
        flat_shape(node, node.input(0).shape)
    ),
    "Transpose": lambda node, _: node.data(0).transpose(
        permutation(node, node.input(0).rank)
    ),
    "Expand": _expand,
    "Tile": _tile,
    "ReduceSum": _reduced(np.sum),
    "ReduceProd": _reduced(np.prod),
    "ReduceMax": _reduced(np.max),
    "ReduceMin": _reduced(np.min),
}
"""Folds a node, all of whose inputs are known."""

OF_SHAPES: dict[str, Callable[[Node, Budget], Array]] = {
    "Shape": _shape,
    "Size": lambda node, _: np.array(math.prod(node.input(0).shape), np.int64),
}
"""Folds a node that reads no elements."""


FOLDED = frozenset(FOLDERS) | frozenset(OF_SHAPES)
"""Operators that are never computed if what they read is known."""


def fold(node: Node, inputs: Sequence[object], budget: Budget) -> Array | None:
    """Return the only output of ``node`` if it can be told now."""
    of_shape = OF_SHAPES.get(node.name)
    if of_shape is not None:
        return of_shape(node, budget)
    folder = FOLDERS.get(node.name)
    if folder is None:
        return None
    given = [node.input(i) for i in range(len(inputs)) if node.has(i)]
    if not all(value.is_constant for value in given):
        return None
    if any(value.form.channels or value.form.zero_point for value in given):
        return None
    with np.errstate(all="ignore"):
        return folder(node, budget)
