"""Operators on tensors of more than four axes, which few of the HAL's operations take.

Their operands have the first axes merged. An operator that treats neighbouring axes
alike is converted with these merged; one that works along single axes is done one axis
after the other, on what lies before it, along it and behind it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array, Shape
from asyncnn.hal.types import OperandType
from asyncnn.runtime.axes import MAX_RANK, broadcast_groups, merged_groups
from asyncnn.runtime.moves import concatenate, sliced, split
from asyncnn.runtime.tflite.indexing import bounds_of
from asyncnn.runtime.tflite.moving_operators import join
from asyncnn.runtime.tflite.node import Converter, Node
from asyncnn.runtime.tflite.rearranging import transpose
from asyncnn.runtime.unsupported import UnsupportedOperatorError

Lowered: TypeAlias = Callable[[Node, Converter], None]
"""Converts an operator on many axes; it may use the converter for up to four."""


def has_many_axes(node: Node) -> bool:
    """Return whether a tensor of the operator has more than four axes."""
    operator, tensors = node.operator, node.graph.tensors
    for index in (*operator.inputs, *operator.outputs):
        if index >= 0 and len(tensors[index].shape) > MAX_RANK:
            return True
    return False


def convert_many(node: Node, converter: Converter) -> None:
    """Convert an operator on tensors of many axes.

    :raises UnsupportedOperatorError: if that takes more than four axes in the HAL.
    """
    lowered = _LOWERED.get(node.operator.name)
    if lowered is None:
        raise UnsupportedOperatorError("a tensor of more than four axes")
    node.as_bytes = lowered in _MOVING
    lowered(node, converter)


def _with_shapes(
    node: Node,
    converter: Converter,
    shapes: Sequence[Shape],
    result: Shape,
    *,
    constants: Mapping[int, Array] | None = None,
    first: int | None = None,
) -> None:
    """Convert the operator as if its inputs and its output had other shapes.

    ``constants`` take the place of inputs that are constants, and operand ``first``
    of input 0.
    """
    tensors = list(node.graph.tensors)
    operands: dict[int, int] = {}
    for position, shape in enumerate(shapes):
        if not node.has(position):
            continue
        tensor = node.tensor(position)
        data = (constants or {}).get(position, tensor.data)
        if first is not None and not position:
            data = None
            operands[tensor.index] = node.reshape(first, shape)
        elif data is not None:
            data = data.reshape(shape)
        else:
            operands[tensor.index] = node.reshape(node.read(position), shape)
        tensors[tensor.index] = replace(
            tensor, shape=shape, data=data, is_variable=False
        )
    output = node.result()
    tensors[output.index] = replace(output, shape=result)
    graph = replace(node.graph, tensors=tensors)
    others = (node.builder, operands, node.variables, node.allowance)
    converter(Node(graph, node.operator, *others))
    node.store(node.reshape(operands[output.index], node.target().dimensions))


def _elementwise(node: Node, converter: Converter) -> None:
    """Merge neighbours along which all operands broadcast alike."""
    target = node.result().shape
    count = len(node.operator.inputs)
    shapes = [_padded(node.tensor(i).shape, len(target)) for i in range(count)]
    groups = _broadcasting(target, shapes)
    _with_shapes(
        node,
        converter,
        [merged_groups(shape, groups) or (1,) for shape in shapes],
        merged_groups(target, groups) or (1,),
    )


def _padded(shape: Shape, rank: int) -> Shape:
    if len(shape) > rank:
        raise InvalidArgumentError(f"{list(shape)} for a result of {rank} axes")
    return (1,) * (rank - len(shape)) + shape


def _broadcasting(target: Shape, shapes: Sequence[Shape]) -> list[list[int]]:
    groups = broadcast_groups(target, shapes)
    if len(groups) > MAX_RANK:
        raise UnsupportedOperatorError("broadcasting along more than four axes")
    return groups


def _last_axis(node: Node, converter: Converter) -> None:
    """Merge all axes of input 0 and the output but the last one."""
    shapes = [node.tensor(i).shape for i in range(len(node.operator.inputs))]
    whole, result = shapes[0], node.result().shape
    if not whole or len(result) != len(whole):
        raise UnsupportedOperatorError("a tensor of more than four axes")
    shapes[0] = (math.prod(whole[:-1]), whole[-1])
    _with_shapes(node, converter, shapes, (math.prod(result[:-1]), result[-1]))


def _matmul(node: Node, converter: Converter) -> None:
    """Merge the axes before the matrices."""
    target = node.result().shape
    shapes = [_padded(node.tensor(i).shape, len(target)) for i in (0, 1)]
    groups = _broadcasting(target[:-2], [shape[:-2] for shape in shapes])
    if len(groups) > MAX_RANK - 2:
        raise UnsupportedOperatorError("broadcasting along more than two axes")
    _with_shapes(
        node,
        converter,
        [(*merged_groups(shape, groups), *shape[-2:]) for shape in shapes],
        (*merged_groups(target, groups), *target[-2:]),
    )


def _reduction(node: Node, converter: Converter) -> None:
    """Merge neighbours that are reduced, and those that are not."""
    shape, result = node.tensor(0).shape, node.result().shape
    axes = {node.axis(int(axis), len(shape)) for axis in node.values(1).ravel()}
    first = None
    groups: list[list[int]] = []
    for axis in range(len(shape)):
        if groups and (groups[-1][0] in axes) == (axis in axes):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    if len(groups) > MAX_RANK:
        groups = [[a for a in range(len(shape)) if a not in axes], sorted(axes)]
        whole = transpose(node.draft, node.input(0), [*groups[0], *groups[1]])
        first = node.draft.operand(whole)
    merged = merged_groups(shape, groups)
    reduced = [place for place, found in enumerate(groups) if found[0] in axes]
    keeps = len(result) == len(shape)
    left = tuple(
        1 if place in reduced else length
        for place, length in enumerate(merged)
        if keeps or place not in reduced
    )
    places = np.array(reduced, np.int32)
    shapes, constants = [merged, places.shape], {1: places}
    left = left or (1,)
    _with_shapes(node, converter, shapes, left, constants=constants, first=first)


def _reshape(node: Node, converter: Converter) -> None:
    node.put(node.draft.reshape(node.input(0), node.result().shape))


def _slice(node: Node, converter: Converter) -> None:
    value = node.input(0)
    shape = value.shape
    if node.operator.name == "STRIDED_SLICE":
        bounds = bounds_of(node, shape)
    else:
        pairs = zip(node.values(1).tolist(), node.values(2).tolist(), strict=True)
        found = zip(pairs, shape, strict=True)
        bounds = [(b, n if s < 0 else b + s, 1) for (b, s), n in found]
    for length, bound in zip(shape, bounds, strict=True):
        places = range(*bound)
        ends = (places[0], places[-1]) if places else (-1,)
        if not all(0 <= end < length for end in ends):
            raise InvalidArgumentError(f"{places} of {length} elements")
    node.put(sliced(node.draft, value, bounds))


def _split(node: Node, converter: Converter) -> None:
    if node.operator.name == "SPLIT":
        value, axis = node.input(1), node.value(0)
    else:
        value, axis = node.input(0), node.options("UnpackOptions").Axis()
    count = len(node.operator.outputs)
    axis = node.axis(axis, value.rank)
    sizes = [value.shape[axis] // count] * count
    for index, piece in enumerate(split(node.draft, value, axis, sizes)):
        node.put(piece, index)


def _as_ever(node: Node, converter: Converter) -> None:
    converter(node)


def _concatenate(node: Node, converter: Converter) -> None:
    target, result, draft = node.target(), node.result().shape, node.draft
    is_pack = node.operator.name == "PACK"
    options = node.options("PackOptions" if is_pack else "ConcatenationOptions")
    axis = node.axis(options.Axis(), len(result))
    parts = []
    for index in range(len(node.operator.inputs)):
        shape = node.tensor(index).shape
        if is_pack:
            shape = (*shape[:axis], 1, *shape[axis:])
        operand = node.requantize(node.read(index), target)
        parts.append(draft.as_three(draft.tensor(operand, shape), axis))
    if target.type == OperandType.TENSOR_INT32:
        whole = join(node, [draft.operand(part) for part in parts], 1)
    else:
        whole = draft.operand(concatenate(draft, parts, 1))
    if not is_pack:
        whole = node.activate(whole, options.FusedActivationFunction())
    node.store(node.reshape(whole, target.dimensions))


def _tile(node: Node, converter: Converter) -> None:
    result, draft, value = node.result().shape, node.draft, node.input(0)
    value = draft.reshape(value, _padded(value.shape, len(result)))
    for axis, wanted in enumerate(result):
        count, rest = divmod(wanted, value.shape[axis])
        if rest:
            raise InvalidArgumentError(
                f"{list(value.shape)} is not repeated to {list(result)}"
            )
        value = draft.tile(value, axis, count)
    node.put(value)


def _transpose(node: Node, converter: Converter) -> None:
    value = node.input(0)
    order = _permutation(node.values(1), value.rank)
    node.put(transpose(node.draft, value, order))


def _permutation(values: Array, rank: int) -> list[int]:
    """Return the order of ``rank`` axes that a constant says.

    :raises InvalidArgumentError: if it is none.
    """
    order = [int(axis) + (rank if axis < 0 else 0) for axis in values.ravel()]
    if sorted(order) != list(range(rank)):
        raise InvalidArgumentError(f"an order of {rank} axes: {order[:20]}")
    return order


_MOVING = frozenset(
    {_reshape, _slice, _split, _concatenate, _tile, _transpose, _as_ever}
)
"""Those that see booleans as bytes."""

_LOWERED: Mapping[str, Lowered] = {
    **dict.fromkeys(
        (
            *("ABS", "CAST", "CEIL", "COS", "DEQUANTIZE", "ELU", "EXP", "FLOOR"),
            *("GELU", "HARD_SWISH", "LEAKY_RELU", "LOG", "LOGICAL_NOT", "LOGISTIC"),
            *("NEG", "QUANTIZE", "RELU", "RELU6", "RELU_0_TO_1", "RELU_N1_TO_1"),
            *("ROUND", "RSQRT", "SIGN", "SIN", "SQRT", "SQUARE", "TANH"),
            *("ADD", "ADD_N", "DIV", "FLOOR_DIV", "FLOOR_MOD", "MAXIMUM", "MINIMUM"),
            *("MUL", "POW", "SQUARED_DIFFERENCE", "SUB", "PRELU", "SELECT_V2"),
            *("EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"),
            *("LOGICAL_AND", "LOGICAL_OR", "NOT_EQUAL"),
        ),
        _elementwise,
    ),
    **dict.fromkeys(("SOFTMAX", "LOG_SOFTMAX", "FULLY_CONNECTED"), _last_axis),
    **dict.fromkeys(("L2_NORMALIZATION",), _last_axis),
    **dict.fromkeys(
        (
            *("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"),
            *("REDUCE_ALL", "REDUCE_ANY"),
        ),
        _reduction,
    ),
    **dict.fromkeys(("RESHAPE", "SQUEEZE", "EXPAND_DIMS"), _reshape),
    **dict.fromkeys(("SLICE", "STRIDED_SLICE"), _slice),
    **dict.fromkeys(("SPLIT", "UNPACK"), _split),
    **dict.fromkeys(("CONCATENATION", "PACK"), _concatenate),
    **dict.fromkeys(("TILE", "BROADCAST_TO"), _tile),
    **dict.fromkeys(("GATHER", "REVERSE_V2", "SPLIT_V"), _as_ever),
    "BATCH_MATMUL": _matmul,
    "TRANSPOSE": _transpose,
}
"""By the operator's name in the schema."""
