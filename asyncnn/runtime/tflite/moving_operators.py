"""Operators that move or reduce: reshape, join, pad, resize, split, select, mean."""

import math
from collections.abc import Sequence

from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import Operand, OperandType, OperationType
from asyncnn.runtime.moves import reverse, split
from asyncnn.runtime.tflite.node import (
    Converter,
    Node,
    axis_in,
    exact,
    in_float,
    like_input,
    of_codes,
    option,
    with_booleans,
)
from asyncnn.runtime.tflite.rearranging import moving, reduce_integers
from asyncnn.runtime.unsupported import UnsupportedOperatorError


def _reshape(node: Node) -> None:
    if node.tensor(0).type == "COMPLEX64":
        real, imaginary = (
            node.draft.reshape(each, node.result().shape)
            for each in node.read_complex(0)
        )
        node.store_complex(real, imaginary)
        return
    operand, target = node.read(0), node.target()
    if target.type == OperandType.TENSOR_BOOL8:
        node.store(node.reshape(operand, target.dimensions))
        return
    shape = node.integers(target.dimensions)
    node.emit_like(OperationType.RESHAPE, [operand, shape])


def _squeeze(node: Node) -> None:
    axes = node.options("SqueezeOptions").SqueezeDimsAsNumpy()
    is_whole = node.tensor(0).type in ("COMPLEX64", "INT32", "INT64")
    if isinstance(axes, int) or not len(axes) or not node.result().shape or is_whole:
        # Without axes, or down to a scalar, it is the output's shape that counts. The
        # HAL squeezes no int32, but reshapes it.
        _reshape(node)
        return
    axes = [node.axis(axis, node.rank()) for axis in axes.tolist()]
    node.emit_like(OperationType.SQUEEZE, [node.read(0), node.integers(axes)])


def _expand_dims(node: Node) -> None:
    if node.tensor(0).shape:
        axis = node.scalar(node.axis(node.value(1), node.rank() + 1))
        node.emit_like(OperationType.EXPAND_DIMS, [node.read(0), axis])
    else:
        _reshape(node)  # to the HAL, it has an axis already


def _concatenation(node: Node) -> None:
    options = node.options("ConcatenationOptions")
    axis = node.axis(options.Axis(), node.rank())
    activation = options.FusedActivationFunction()
    if node.type == OperandType.TENSOR_INT32:
        node.store(join(node, node.read_all(), axis))
        return
    inputs = [*node.read_all(), node.scalar(axis)]
    joined = node.compute(OperationType.CONCATENATION, inputs, node.target())
    node.store(node.activate(joined, activation))


_MAX_PIECES = 1 << 10
"""Most pieces of an int32 tensor that is joined piece by piece."""


def join(node: Node, operands: Sequence[int], axis: int) -> int:
    """Return int32 tensors joined, which the HAL can only stack, if they are alike.

    :raises UnsupportedOperatorError: if it takes too many pieces.
    """
    pieces: list[int] = []
    for operand in operands:
        dimensions = node.builder.operand(operand).dimensions
        length = dimensions[axis]
        if len(pieces) + length > _MAX_PIECES:
            raise UnsupportedOperatorError("joining int32 of more than 1024 pieces")
        outer, inner = math.prod(dimensions[:axis]), math.prod(dimensions[axis + 1 :])
        whole = node.reshape(operand, (outer, length, inner))
        piece = Operand(OperandType.TENSOR_INT32, (outer, 1, inner))
        inputs = [whole, node.scalar(1), node.scalar(length)]
        parts = node.compute_all(OperationType.SPLIT, inputs, [piece] * length)
        pieces += [node.reshape(part, (outer, inner)) for part in parts]
    stacked = Operand(OperandType.TENSOR_INT32, (outer, len(pieces), inner))
    inputs = [node.scalar(1), *pieces]
    packed = node.compute(OperationType.PACK, inputs, stacked)
    return node.reshape(
        packed, (*dimensions[:axis], len(pieces), *dimensions[axis + 1 :])
    )


def _pack(node: Node) -> None:
    axis = node.axis(node.options("PackOptions").Axis(), node.rank() + 1)
    target = node.target()
    inputs = [node.requantize(operand, target) for operand in node.read_all()]
    node.emit(OperationType.PACK, [node.scalar(axis), *inputs])


def _batch_to_space_nd(node: Node) -> None:
    operand = node.read(0)
    dimensions = node.target().dimensions
    crops = node.values(2)
    if crops.shape != (2, 2) or len(dimensions) != 4:
        raise UnsupportedOperatorError("the HAL moves batches to two axes of four")
    (top, bottom), (left, right) = crops.tolist()
    batch, height, width, depth = dimensions
    whole = node.compute(
        OperationType.BATCH_TO_SPACE_ND,
        [operand, node.read(1)],
        replace(
            node.builder.operand(operand),
            dimensions=(batch, top + height + bottom, left + width + right, depth),
        ),
    )
    if crops.any():
        begin, size = node.integers((0, top, left, 0)), node.integers(dimensions)
        node.emit_like(OperationType.SLICE, [whole, begin, size])
    else:
        node.store(whole)


def _resize(type_: OperationType, kind: str) -> Converter:
    def convert(node: Node) -> None:
        flags = node.options(kind)
        dimensions = node.target().dimensions
        if len(dimensions) != 4:
            raise InvalidArgumentError(f"images of rank {len(dimensions)}, not 4")
        options = False, bool(flags.AlignCorners()), bool(flags.HalfPixelCenters())
        scalars = map(node.scalar, (dimensions[2], dimensions[1], *options))
        node.emit_like(type_, [node.read(0), *scalars])

    return convert


def _reverse(node: Node) -> None:
    value = node.input(0)
    for axis in dict.fromkeys(node.values(1).ravel().tolist()):
        value = reverse(node.draft, value, node.axis(axis, value.rank))
    node.put(value)


def _broadcast_to(node: Node) -> None:
    node.store(node.broadcast(node.read(0), node.target().dimensions))


_FILLED = (OperandType.TENSOR_FLOAT32, OperandType.TENSOR_INT32)


def _fill(node: Node) -> None:
    target = node.target()
    if target.type in _FILLED and node.tensor(1).data is not None:
        inputs = [node.integers(target.dimensions), node.scalar(node.value(1))]
        node.emit(OperationType.FILL, inputs)
    else:
        node.store(node.broadcast(node.read(1), target.dimensions))


def _zeros_like(node: Node) -> None:
    target = node.target()
    if target.type in _FILLED:
        zero = 0 if target.type == OperandType.TENSOR_INT32 else 0.0
        inputs = [node.integers(target.dimensions), node.scalar(zero)]
        node.emit(OperationType.FILL, inputs)
    else:
        node.store(node.zeros(target))


SHAPE_INPUTS: dict[str, frozenset[int]] = {
    **dict.fromkeys(("FILL", "ZEROS_LIKE", "SHAPE", "RANK"), frozenset({0})),
    **dict.fromkeys(
        ("RESHAPE", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "BROADCAST_TO"),
        frozenset({1}),
    ),
}


def _pad_value(node: Node) -> int:
    value = node.value(2)
    return node.scalar(int(value) if isinstance(value, bool) else value)


def _rank(node: Node) -> None:
    node.store(node.integers([len(node.tensor(0).shape)]))


def _mean(node: Node) -> None:
    keep = node.scalar(int(node.options("ReducerOptions").KeepDims()))
    inputs = [node.read(0), node.read(1), keep]
    source, target = node.builder.operand(inputs[0]), node.target()
    if (source.scale, source.zero_point) == (target.scale, target.zero_point):
        node.emit(OperationType.MEAN, inputs)
    else:
        # The HAL would round to a step of the input before one of the output.
        node.emit_float(OperationType.MEAN, inputs)


def _split(node: Node) -> None:
    axis = node.axis(node.value(0), node.rank(1))
    _split_evenly(node, node.read(1), axis)


def _unpack(node: Node) -> None:
    axis = node.axis(node.options("UnpackOptions").Axis(), node.rank())
    _split_evenly(node, node.read(0), axis)


def _split_evenly(node: Node, operand: int, axis: int) -> None:
    source = node.builder.operand(operand)
    count = len(node.operator.outputs)
    dimensions = list(source.dimensions)
    dimensions[axis] //= count
    pieces = node.compute_all(
        OperationType.SPLIT,
        [operand, node.scalar(axis), node.scalar(count)],
        [replace(source, dimensions=tuple(dimensions))] * count,
    )
    for index, piece in enumerate(pieces):
        node.store(piece, index)


def _split_v(node: Node) -> None:
    value = node.input(0)
    axis = node.axis(node.value(2), value.rank)
    outputs = range(len(node.operator.outputs))
    sizes = [node.result(index).shape[axis] for index in outputs]
    for index, piece in enumerate(split(node.draft, value, axis, sizes)):
        node.put(piece, index)


def _select(node: Node) -> None:
    dimensions = node.target().dimensions
    condition, *choices = node.read_all()
    if node.operator.name == "SELECT" and node.rank() < len(dimensions):
        # Each of its elements chooses a whole row.
        ones = (1,) * (len(dimensions) - node.rank())
        condition = node.reshape(condition, (*node.tensor(0).shape, *ones))
    condition, first, second = (
        node.broadcast(each, dimensions) for each in (condition, *choices)
    )
    if not node.is_boolean(first):
        like = node.target()
        chosen = [node.requantize(each, like) for each in (first, second)]
        node.emit(OperationType.SELECT, [condition, *chosen])
        return
    like = node.builder.operand(first)
    denied = node.compute(OperationType.LOGICAL_NOT, [condition], like)
    pairs = ((condition, first), (denied, second))
    parts = [node.compute(OperationType.LOGICAL_AND, pair, like) for pair in pairs]
    node.emit(OperationType.LOGICAL_OR, parts)


_KEEP = option("ReducerOptions", "KeepDims", bool)


def _reduction(convert: Converter, pairs: OperationType) -> Converter:
    """Return a converter also for int32, which the HAL reduces by no operation."""

    def convert_any(node: Node) -> None:
        if node.type == OperandType.TENSOR_INT32:
            reduce_integers(node, pairs)
        else:
            convert(node)

    return convert_any


_REDUCTIONS: dict[str, Converter] = {
    "REDUCE_MAX": _reduction(
        of_codes(exact(OperationType.REDUCE_MAX, 0, 1, _KEEP)), OperationType.MAXIMUM
    ),
    "REDUCE_MIN": _reduction(
        of_codes(exact(OperationType.REDUCE_MIN, 0, 1, _KEEP)), OperationType.MINIMUM
    ),
    "SUM": _reduction(
        in_float(OperationType.REDUCE_SUM, 0, 1, _KEEP), OperationType.ADD
    ),
    "REDUCE_PROD": _reduction(
        in_float(OperationType.REDUCE_PROD, 0, 1, _KEEP), OperationType.MUL
    ),
}

_MOVING: dict[str, Converter] = {
    "PAD": like_input(OperationType.PAD),
    "PADV2": like_input(OperationType.PAD_V2, 0, 1, _pad_value),
    "TRANSPOSE": like_input(OperationType.TRANSPOSE),
    "SPACE_TO_BATCH_ND": like_input(OperationType.SPACE_TO_BATCH_ND, 0, 1, 2),
    "BATCH_TO_SPACE_ND": _batch_to_space_nd,
    "SPACE_TO_DEPTH": like_input(
        OperationType.SPACE_TO_DEPTH, 0, option("SpaceToDepthOptions", "BlockSize")
    ),
    "DEPTH_TO_SPACE": like_input(
        OperationType.DEPTH_TO_SPACE, 0, option("DepthToSpaceOptions", "BlockSize")
    ),
}
"""Operators whose counterparts in the HAL know neither int32 nor booleans."""

_BYTEWISE: dict[str, Converter] = {
    "TILE": like_input(OperationType.TILE),
    "SLICE": like_input(OperationType.SLICE),
    "RESHAPE": _reshape,
    "SQUEEZE": _squeeze,
    "EXPAND_DIMS": _expand_dims,
    "MIRROR_PAD": like_input(
        OperationType.MIRROR_PAD, 0, 1, option("MirrorPadOptions", "Mode")
    ),
    "CONCATENATION": _concatenation,
    "PACK": _pack,
    "REVERSE_V2": _reverse,
    "BROADCAST_TO": _broadcast_to,
    "FILL": _fill,
    "ZEROS_LIKE": _zeros_like,
    "SPLIT": _split,
    "SPLIT_V": _split_v,
    "UNPACK": _unpack,
}
"""Operators whose counterparts know no booleans."""

CONVERTERS: dict[str, Converter] = {
    **{name: moving(convert) for name, convert in _MOVING.items()},
    **{name: with_booleans(convert) for name, convert in _BYTEWISE.items()},
    "RESIZE_BILINEAR": _resize(OperationType.RESIZE_BILINEAR, "ResizeBilinearOptions"),
    "RESIZE_NEAREST_NEIGHBOR": _resize(
        OperationType.RESIZE_NEAREST_NEIGHBOR, "ResizeNearestNeighborOptions"
    ),
    "SHAPE": lambda node: node.store(node.integers(node.tensor(0).shape)),
    "RANK": _rank,
    **_REDUCTIONS,
    "MEAN": _mean,
    "REDUCE_ALL": like_input(OperationType.REDUCE_ALL, 0, 1, _KEEP),
    "REDUCE_ANY": like_input(OperationType.REDUCE_ANY, 0, 1, _KEEP),
    "ARG_MAX": with_booleans(exact(OperationType.ARGMAX, 0, axis_in(1))),
    "ARG_MIN": with_booleans(exact(OperationType.ARGMIN, 0, axis_in(1))),
    "SELECT": _select,
    "SELECT_V2": _select,
}
