"""Nodes that only compute shapes: evaluated when a file is read.

Whatever all inputs are known of is folded if it is listed here. Nothing is allocated
before its size was found bearable: a few bytes of a file can ask for terabytes.
"""

import math
from collections.abc import Callable

import numpy as np

from asyncnn.extensions.onnx_nodes import size_of_result
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array, Shape
from asyncnn.runtime.allowance import MAX_FOLDED
from asyncnn.runtime.onnx.evaluated import evaluated_constants
from asyncnn.runtime.onnx.node import OnnxNode


def _shape(node: OnnxNode) -> Array:
    shape = node.input(0).shape
    start, end = node.attribute("start", 0), node.attribute("end")
    return np.array(shape[slice(start, end)], np.int64)


def _constant(node: OnnxNode) -> Array:
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


def slices_of(node: OnnxNode, shape: Shape) -> list[tuple[int, int, int]]:
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


def unsqueezed(node: OnnxNode, shape: Shape) -> Shape:
    """Return the shape that Unsqueeze gives."""
    axes = node.given("axes", 1, [])
    rank = len(shape) + len(axes)
    places = set(node.axes(axes, rank))
    lengths = iter(shape)
    return tuple(1 if axis in places else next(lengths) for axis in range(rank))


def squeezed(node: OnnxNode, shape: Shape) -> Shape:
    """Return the shape that Squeeze gives."""
    axes = node.given("axes", 1)
    if axes is None:
        return tuple(length for length in shape if length != 1)
    places = set(node.axes(axes, len(shape)))
    if any(shape[axis] != 1 for axis in places):
        raise InvalidArgumentError(f"axes {axes} of {list(shape)} are not of length 1")
    return tuple(length for axis, length in enumerate(shape) if axis not in places)


def reshaped(node: OnnxNode, shape: Shape) -> Shape:
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


def permutation(node: OnnxNode, rank: int) -> list[int]:
    """Return the permutation of Transpose."""
    axes: list[int] = node.attribute("perm", list(range(rank))[::-1])
    if sorted(axes) != list(range(rank)):
        raise InvalidArgumentError(f"{axes} does not permute {rank} axes")
    return axes


def flat_shape(node: OnnxNode, shape: Shape) -> Shape:
    """Return the shape that Flatten gives."""
    axis = node.attribute("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    if not 0 <= axis <= len(shape):
        raise InvalidArgumentError(f"axis {axis} is outside of {list(shape)}")
    return math.prod(shape[:axis]), math.prod(shape[axis:])


def _size(node: OnnxNode) -> float:
    """Return how many elements the result of a node of constants has."""
    given = [value and value.data for value in node.given_inputs]
    try:
        if node.name != "Gather":
            return size_of_result(node.name, given)
        axis = node.axis(node.attribute("axis", 0), node.input(0).rank)
        rows = node.input(0).shape[axis] or 1
        return node.data(0).size // rows * node.data(1).size
    except (LookupError, ValueError) as error:
        raise InvalidArgumentError(f"{node.name} of what does not fit") from error


_GROWING = frozenset(
    (
        *("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Where", "And", "Or", "Xor"),
        *("Max", "Min", "Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"),
        *("ConstantOfShape", "Expand", "Gather", "Range", "Tile"),
    )
)
"""Operators whose result may be larger than what it is made of."""

_EVALUATED = frozenset(
    (
        *_GROWING,
        *("Round", "Sign", "Reciprocal", "Neg", "Abs", "Floor", "Ceil", "Sqrt", "Exp"),
        *("Log", "Not", "Identity", "Relu", "Cast", "CastLike", "Concat", "Slice"),
        *("Unsqueeze", "Squeeze", "Reshape", "Flatten", "Transpose"),
        *("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin"),
    )
)
"""Operators whose result the evaluator returns if all inputs are known."""

_FOLDS: dict[str, Callable[[OnnxNode], Array]] = {
    "Constant": _constant,
    "Shape": _shape,
    "Size": lambda node: np.array(math.prod(node.input(0).shape), np.int64),
}
"""Folds a node that reads no elements."""

FOLDED = _EVALUATED | frozenset(_FOLDS)
"""Operators that are never computed if what they read is known."""


def fold(node: OnnxNode) -> Array | None:
    """Return the only output of ``node`` if it can be known now."""
    folds = _FOLDS.get(node.name)
    if folds is not None:
        return folds(node)
    given = [value for value in node.given_inputs if value is not None]
    if node.name not in _EVALUATED or not all(value.is_constant for value in given):
        return None
    if any(value.form.channels or value.form.zero_point for value in given):
        return None
    if node.name in _GROWING:
        size = _size(node)
        if node.name == "ConstantOfShape" and size > MAX_FOLDED:
            return None  # the device fills it
        source = sum(math.prod(value.shape) for value in given)
        node.draft.allowance.take_folded(size, source)
    is_quotient = node.name in ("Div", "Mod") and node.data(1).dtype.kind != "f"
    if is_quotient and not node.data(1).all():
        raise InvalidArgumentError("a constant is divided by zero")
    return evaluated_constants(node)[0]
